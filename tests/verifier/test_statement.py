"""The root's statements about keys: one spelling, one ledger, one signature."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.verifier import maker
from tests.verifier.maker import LOG, NEW_LOG, NEW_RECEIPT, ORIGIN, ROOT, STRANGER
from verifier.note import KIND_COSIGNATURE, make_vkey, parse_vkey
from verifier.statement import KeyStatement, key_statement_text, open_key_statement, read_key_statement
from verifier.wire import Malformed

LEDGER = maker.opened()
GENESIS = bytes.fromhex(LEDGER.genesis)
PINNED = parse_vkey(maker.root_vkey())
LOG_VKEY, RECEIPT_VKEY = NEW_LOG.vkey(ORIGIN), NEW_RECEIPT.vkey(f"{ORIGIN}/receipt")
NEXT = "5a" * 32
GOOD = [
    (f"announce log {LOG_VKEY} -", KeyStatement("announce", "log", parse_vkey(LOG_VKEY))),
    (f"announce receipt {RECEIPT_VKEY} {NEXT}", KeyStatement("announce", "receipt", parse_vkey(RECEIPT_VKEY), NEXT)),
    (f"retire log {LOG_VKEY}", KeyStatement("retire", "log", parse_vkey(LOG_VKEY))),
    (f"compromise receipt {RECEIPT_VKEY}", KeyStatement("compromise", "receipt", parse_vkey(RECEIPT_VKEY))),
]


@pytest.mark.parametrize(
    ("what", "wanted"), GOOD, ids=[what.split(" ")[0] + str(n) for n, (what, _) in enumerate(GOOD)]
)
def test_a_statement_reads_back_and_is_written_so(what: str, wanted: KeyStatement) -> None:
    note = LEDGER.key_statement(what).encode()
    assert open_key_statement(note, PINNED, ORIGIN, GENESIS) == wanted
    assert note.decode().startswith(key_statement_text(wanted, ORIGIN, GENESIS) + "\n")


def edited(old: str, new: str) -> Callable[[str], str]:
    return lambda text: text.replace(old, new)


WHAT = f"announce log {LOG_VKEY} {NEXT}"
BAD: list[tuple[str, str, Callable[[str], str]]] = [  # what is stated instead, how its text is changed before signing
    ("another first line", WHAT, edited("tallystick-key/v1", "tallystick-key/v2")),
    ("a key document's first line", WHAT, edited("tallystick-key/v1", "tallystick-keys/v1")),
    ("another origin", WHAT, edited(f"origin {ORIGIN}", "origin gateway.example/other")),
    ("another ledger of this origin", WHAT, edited(f"genesis {LEDGER.genesis}", f"genesis {NEXT}")),
    ("a genesis in capitals", WHAT, edited(LEDGER.genesis, LEDGER.genesis.upper())),
    ("no genesis", WHAT, edited(f"genesis {LEDGER.genesis}\n", "")),
    ("a line too many", WHAT, edited(f"{NEXT}\n", f"{NEXT}\n{WHAT}\n")),
    ("a word too many", f"{WHAT} -", str),
    ("no next word", f"announce log {LOG_VKEY}", str),
    ("a next word for a retirement", f"retire log {LOG_VKEY} -", str),
    ("an unknown verb", f"revive log {LOG_VKEY}", str),
    ("a root", f"announce root {ROOT.vkey(f'{ORIGIN}/root')} -", str),
    ("a custodial key", f"announce custodial {NEW_LOG.vkey(f'{ORIGIN}/custodial/a')} -", str),
    ("a log key named like a receipt key", f"announce log {RECEIPT_VKEY} -", str),
    ("a receipt key named like a log key", f"announce receipt {LOG_VKEY} -", str),
    ("a log key of another log", f"announce log {NEW_LOG.vkey('gateway.example/other')} -", str),
    ("a witness's key", f"announce log {NEW_LOG.vkey(ORIGIN, KIND_COSIGNATURE)} -", str),
    ("no vkey", "announce log x -", str),
    ("a short next", f"announce log {LOG_VKEY} {NEXT[2:]}", str),
    ("a next in capitals", f"announce log {LOG_VKEY} {NEXT.upper()}", str),
    ("two blanks", WHAT.replace(" log ", "  log "), str),
]


@pytest.mark.parametrize(("what", "change"), [row[1:] for row in BAD], ids=[row[0] for row in BAD])
def test_what_is_no_statement_of_this_ledger_is_malformed_though_the_root_signed_it(
    what: str, change: Callable[[str], str]
) -> None:
    text = change(f"tallystick-key/v1\norigin {ORIGIN}\ngenesis {LEDGER.genesis}\n{what}\n")
    note = f"{text}\n{ROOT.note_line(f'{ORIGIN}/root', text)}".encode()
    with pytest.raises(Malformed):
        read_key_statement(note, ORIGIN, GENESIS)
    with pytest.raises(Malformed):
        open_key_statement(note, PINNED, ORIGIN, GENESIS)


def test_only_the_root_of_this_ledger_states_anything_and_once() -> None:
    good = LEDGER.key_statement(WHAT)
    line = good.split("\n\n")[1]
    others = [
        LEDGER.key_statement(WHAT, STRANGER),
        LEDGER.key_statement(WHAT, LOG),
        good + line,
        good + STRANGER.note_line("nobody.example", "x"),
        good.replace(line, STRANGER.note_line("nobody.example", good.split("\n\n")[0] + "\n")),
        good.split("\n\n")[0],
        "",
    ]
    for note in others:
        with pytest.raises(Malformed):
            open_key_statement(note.encode(), PINNED, ORIGIN, GENESIS)
    for root in (parse_vkey(STRANGER.vkey(f"{ORIGIN}/root")), make_vkey(PINNED.name, PINNED.public_key, 4)):
        with pytest.raises(Malformed, match="no valid signature"):
            open_key_statement(good.encode(), root, ORIGIN, GENESIS)


def test_every_flipped_byte_of_a_statement_is_refused() -> None:
    note = LEDGER.key_statement(WHAT).encode()
    for place in range(len(note)):
        for mask in (0x01, 0x20):
            with pytest.raises(Malformed):
                open_key_statement(
                    note[:place] + bytes([note[place] ^ mask]) + note[place + 1 :], PINNED, ORIGIN, GENESIS
                )
