"""The floor every ratio of the bench stands on: one bare strict verification, one bare signature, in this thread.

The messages are as long as the real ones: what a request signs, and what the receipt key signs of its leaf.
"""

import time

from keys.signing import SigningKey
from verifier.sig import is_valid

ROUNDS = 3_000
SIGNATURE_BASE = b"m" * 640
LEAF = b"m" * 1_550


def floor_us() -> dict[str, float]:
    """Return the CPU µs of one verification and of one signature, measured here and now."""
    key = SigningKey(bytes(range(32)))
    signature = key.sign(SIGNATURE_BASE)
    assert is_valid(key.public_key, SIGNATURE_BASE, signature)
    started_s = time.thread_time()
    for _ in range(ROUNDS):
        is_valid(key.public_key, SIGNATURE_BASE, signature)
    verified_s = time.thread_time()
    for _ in range(ROUNDS):
        key.sign(LEAF)
    signed_s = time.thread_time()
    return {"verify": (verified_s - started_s) / ROUNDS * 1e6, "sign": (signed_s - verified_s) / ROUNDS * 1e6}
