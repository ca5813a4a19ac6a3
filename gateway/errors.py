"""What can go wrong below the decisions, in kinds that are never mixed.

A refusal is not an error: it is a decision with an entry (`gateway/core/refusal.py`). Malformed is the sender's
fault (`verifier/wire.py`). The rest is here:

* `Busy`: nothing happened, or nobody knows yet whether it did: come back after `retry_after_s` and repeat the very same
  thing under the same idempotency key.
* `Unfit`: a Busy that lasts until an operator has changed a setting; its text says which.
* `Fatal`: we no longer know, or what we know is wrong. Nobody goes on; an operator reads the text.
* `HeadMoved`, `Unknown`: said by a store to the sequencer and to nobody else; they never reach a door.
* `StoreOwned`: another gateway owns this store. Said at start, to the person at the terminal.
* `StartError`: the gateway can't start, for any other reason that the operator can do something about.
"""

from __future__ import annotations


class Busy(Exception):
    """Nothing happened. `reason` is a short code for logs and metrics, `retry_after_s` is at least 1."""

    def __init__(self, reason: str, retry_after_s: int = 1) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry_after_s = retry_after_s


class Unfit(Busy):
    """The store would not keep what it is to promise: nothing is decided. `text` is for the operator, and says what to
    change; reads go on."""

    def __init__(self, text: str) -> None:
        super().__init__("store_unfit", 5)
        self.text = text

    def __str__(self) -> str:
        return self.text


class Fatal(Exception):
    """The ledger can't go on without a person; the text says what was found and what to do."""


class HeadMoved(Exception):
    """The head is not where the caller saw it. Nothing happened; read again, decide again."""


class Unknown(Exception):
    """The commit may have happened or not. Ask `landed` before doing anything else."""


class StartError(Exception):
    """The gateway can't start; the text says why and what to do."""


class Damaged(Exception):
    """The gateway found its own ledger damaged; the text is the auditor's code. Nothing happened, and nothing will
    before an operator has looked."""


class StoreOwned(Exception):
    """Another gateway owns this store; the text names it."""
