"""Hand-judged statements of a root about keys. (comment, bytes, verdict); the root signed most of the bad ones too."""

from __future__ import annotations

from tests.verifier import maker
from tests.verifier.maker import LOG, NEW_LOG, NEW_RECEIPT, ORIGIN, ROOT, STRANGER
from verifier.note import KIND_COSIGNATURE

LEDGER = maker.opened()
LOG_VKEY, RECEIPT_VKEY = NEW_LOG.vkey(ORIGIN), NEW_RECEIPT.vkey(f"{ORIGIN}/receipt")
NEXT = "5a" * 32
WHAT = f"announce log {LOG_VKEY} {NEXT}"


def _signed(what: str, old: str = "", new: str = "") -> bytes:
    """The statement with one passage replaced, exactly once, before it is signed."""
    text = f"tallystick-key/v1\norigin {ORIGIN}\ngenesis {LEDGER.genesis}\n{what}\n"
    assert not old or text.count(old) == 1, old
    text = text.replace(old, new) if old else text
    return f"{text}\n{ROOT.note_line(f'{ORIGIN}/root', text)}".encode()


_GOOD = _signed(WHAT)
_TEXT, _LINE = (part.decode() for part in _GOOD.split(b"\n\n"))
STATEMENTS: list[tuple[str, bytes, bool]] = [
    ("the first log key after those of entry 0", _signed(f"announce log {LOG_VKEY} -"), True),
    ("a log key, and what the next one must be", _GOOD, True),
    ("a receipt key, and what the next one must be", _signed(f"announce receipt {RECEIPT_VKEY} {NEXT}"), True),
    ("a log key retired", _signed(f"retire log {LOG_VKEY}"), True),
    ("a log key of entry 0 retired", _signed(f"retire log {LOG.vkey(ORIGIN)}"), True),
    ("a receipt key disowned", _signed(f"compromise receipt {RECEIPT_VKEY}"), True),
    ("another first line", _signed(WHAT, "tallystick-key/v1", "tallystick-key/v2"), False),
    ("a key document's first line", _signed(WHAT, "tallystick-key/v1", "tallystick-keys/v1"), False),
    ("another origin", _signed(WHAT, f"origin {ORIGIN}", "origin gateway.example/other"), False),
    ("another ledger of this origin", _signed(WHAT, f"genesis {LEDGER.genesis}", f"genesis {NEXT}"), False),
    ("a genesis in capitals", _signed(WHAT, LEDGER.genesis, LEDGER.genesis.upper()), False),
    ("no genesis", _signed(WHAT, f"genesis {LEDGER.genesis}\n", ""), False),
    ("a line too many", _signed(f"{WHAT}\n{WHAT}"), False),
    ("a word too many", _signed(f"{WHAT} -"), False),
    ("no next word", _signed(f"announce log {LOG_VKEY}"), False),
    ("a next word for a retirement", _signed(f"retire log {LOG_VKEY} -"), False),
    ("an unknown verb", _signed(f"revive log {LOG_VKEY}"), False),
    ("a root", _signed(f"announce root {ROOT.vkey(f'{ORIGIN}/root')} -"), False),
    ("a custodial key", _signed(f"announce custodial {NEW_LOG.vkey(f'{ORIGIN}/custodial/a')} -"), False),
    ("a log key named like a receipt key", _signed(f"announce log {RECEIPT_VKEY} -"), False),
    ("a receipt key named like a log key", _signed(f"announce receipt {LOG_VKEY} -"), False),
    ("a log key of another log", _signed(f"announce log {NEW_LOG.vkey('gateway.example/other')} -"), False),
    ("a witness's key", _signed(f"announce log {NEW_LOG.vkey(ORIGIN, KIND_COSIGNATURE)} -"), False),
    ("no vkey", _signed("announce log x -"), False),
    ("a short next", _signed(f"announce log {LOG_VKEY} {NEXT[2:]}"), False),
    ("a next in capitals", _signed(f"announce log {LOG_VKEY} {NEXT.upper()}"), False),
    ("two blanks", _signed(WHAT, " log ", "  log "), False),
    ("signed by a stranger under the root's name", LEDGER.key_statement(WHAT, STRANGER).encode(), False),
    ("signed by the log key under the root's name", LEDGER.key_statement(WHAT, LOG).encode(), False),
    ("signed twice", _GOOD + _LINE.encode(), False),
    ("a stranger's line beside the root's", _GOOD + STRANGER.note_line("nobody.example", "x").encode(), False),
    ("a stranger's line only", f"{_TEXT}\n\n{STRANGER.note_line('nobody.example', _TEXT)}".encode(), False),
    ("not signed", f"{_TEXT}\n".encode(), False),
    ("changed after it was signed", _GOOD.replace(b"announce log", b"announce Log"), False),
    ("CRLF", _GOOD.replace(b"\n", b"\r\n"), False),
    ("empty", b"", False),
]
