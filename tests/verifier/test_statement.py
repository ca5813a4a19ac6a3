"""The root's statements about keys: what they say, and whose they are. tests/vectors/statements.py has the bad ones."""

from __future__ import annotations

import pytest

from tests.verifier import maker
from tests.verifier.maker import NEW_LOG, NEW_RECEIPT, ORIGIN, STRANGER
from verifier.note import make_vkey, parse_vkey
from verifier.statement import KeyStatement, key_statement_text, open_key_statement
from verifier.wire import Malformed

LEDGER = maker.opened()
GENESIS = bytes.fromhex(LEDGER.genesis)
PINNED = parse_vkey(maker.root_vkey())
LOG_VKEY, RECEIPT_VKEY = NEW_LOG.vkey(ORIGIN), NEW_RECEIPT.vkey(f"{ORIGIN}/receipt")
NEXT = "5a" * 32
WHAT = f"announce log {LOG_VKEY} {NEXT}"
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


def test_only_the_pinned_root_states_anything() -> None:
    good = LEDGER.key_statement(WHAT)
    for root in (parse_vkey(STRANGER.vkey(f"{ORIGIN}/root")), make_vkey(PINNED.name, PINNED.public_key, 4)):
        with pytest.raises(Malformed, match="no valid signature"):
            open_key_statement(good.encode(), root, ORIGIN, GENESIS)


def test_a_root_of_the_kind_of_witnesses_states_nothing_though_its_line_is_good() -> None:
    text = LEDGER.key_statement(WHAT).split("\n\n")[0] + "\n"
    note = f"{text}\n{maker.ROOT.cosignature(PINNED.name, text)}".encode()
    with pytest.raises(Malformed, match="no valid signature"):
        open_key_statement(note, make_vkey(PINNED.name, PINNED.public_key, 4), ORIGIN, GENESIS)


def test_every_flipped_byte_of_a_statement_is_refused() -> None:
    note = LEDGER.key_statement(WHAT).encode()
    for place in range(len(note)):
        for mask in (0x01, 0x20):
            with pytest.raises(Malformed):
                open_key_statement(
                    note[:place] + bytes([note[place] ^ mask]) + note[place + 1 :], PINNED, ORIGIN, GENESIS
                )
