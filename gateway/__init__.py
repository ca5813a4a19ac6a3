"""The gateway: decides, records and answers signed requests."""
