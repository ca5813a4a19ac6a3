"""Hashes every value of a ledger file again, says what is damaged, and mends what the leaves prove.

A start looks at the last batch and at what is live; this looks at all of it. Read-only unless told to mend, so it goes
beside a running gateway and checks what stood when it began. Source: docs/operating.md, fsck; docs/protocol.md 13.
"""

from gateway.fsck.check import Check, Folder, check_file
from gateway.fsck.findings import Flaw, Flaws

__all__ = ["Check", "Flaw", "Flaws", "Folder", "check_file"]
