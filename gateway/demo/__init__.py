"""`tallystick demo`: a swarm replays real work under leases, and strangers check what came of it.

`trace` reads and compresses the work, `swarm` does it, `victim` is a worker that gets killed, `scene` is a circle of
two, `company` one operator's sessions and programs, `checks` re-reads the ledger with lists and loops; `__main__` puts
them in order and says what it saw.
"""
