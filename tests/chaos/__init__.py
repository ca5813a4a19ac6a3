"""Faults that real servers, wires, clocks and nodes have, with agents at work. After each scene the same audit.

`make test` plays each fault once or twice; `make chaos` plays them all night long (sizes in `size.py`).
"""
