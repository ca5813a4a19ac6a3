"""The simulator: real gateways in virtual time, everything else a seeded adversary, and a checker that reads leaves."""
