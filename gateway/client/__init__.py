"""What an agent runs: signed calls, heartbeats, trust in a lease, the fence guard."""
