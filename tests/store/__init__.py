"""One exercise for every store engine."""
