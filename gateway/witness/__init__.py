"""A C2SP witness: a server of its own that signs how far it has seen ledgers, and never signs two histories of one.

It imports the verifier, the keys and aiohttp, and nothing of a gateway: who runs one for others needs none.
"""
