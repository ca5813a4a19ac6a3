"""The floor every ratio of the bench stands on: one bare strict verification, one bare signature, in this thread."""

import time

from keys.signing import SigningKey
from verifier.sig import is_valid

ROUNDS = 3_000
MESSAGE = b"m" * 700  # about the length of a signature base


def floor_us() -> dict[str, float]:
    """Return the CPU µs of one verification and of one signature, measured here and now."""
    key = SigningKey(bytes(range(32)))
    signature = key.sign(MESSAGE)
    assert is_valid(key.public_key, MESSAGE, signature)
    started_s = time.thread_time()
    for _ in range(ROUNDS):
        is_valid(key.public_key, MESSAGE, signature)
    verified_s = time.thread_time()
    for _ in range(ROUNDS):
        key.sign(MESSAGE)
    signed_s = time.thread_time()
    return {"verify": (verified_s - started_s) / ROUNDS * 1e6, "sign": (signed_s - verified_s) / ROUNDS * 1e6}
