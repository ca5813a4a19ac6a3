"""Hand-judged policies, quorums and key documents. (comment, bytes, verdict…)"""

from __future__ import annotations

from tests.verifier.samples import (
    CUSTODIAL,
    DOCUMENT_TEXT,
    LOG,
    OLD_LOG,
    ORIGIN,
    RECEIPT,
    ROOT,
    WITNESS,
    public_key,
    signed,
    tree_of,
    witness,
)
from verifier.checkpoint import checkpoint_text
from verifier.note import KIND_COSIGNATURE, make_vkey
from verifier.wire import encode_base64

_LOG = f"log {LOG.vkey}\n"
_W = "".join(f"witness w{index} {witness(index).vkey}\n" for index in range(1, 6))
_SAME = make_vkey("another.example", public_key(101), KIND_COSIGNATURE)
_WIDE = "".join(f"log {make_vkey(f'log.example/{n}', public_key(n)).vkey}\n" for n in range(1, 33))
_WIDE += "".join(f"witness v{n} {witness(n).vkey}\n" for n in range(32))
_WIDE += "".join(f"group g{n} any v{n}\n" for n in range(32)) + "quorum g31\n"


def _policy(rest: str, head: str = _LOG + _W) -> bytes:
    return (head + rest).encode()


POLICIES: list[tuple[str, bytes, bool]] = [
    ("a log and no witness", _policy("quorum none\n", _LOG), True),
    ("one witness is the quorum", _policy("quorum w1\n"), True),
    ("two of three", _policy("group g 2 w1 w2 w3\nquorum g\n"), True),
    ("groups of groups", _policy("group a any w1 w2\ngroup b all w3 w4\ngroup c 2 a b w5\nquorum c\n"), True),
    ("a log with a URL", f"log {LOG.vkey} https://log.example/\nquorum none\n".encode(), True),
    ("a witness with a URL", _policy(f"witness x {WITNESS.vkey} https://w.example/\nquorum x\n", _LOG), True),
    ("one origin, two keys", f"log {LOG.vkey}\nlog {OLD_LOG.vkey}\nquorum none\n".encode(), True),
    ("runs of spaces and tabs", _policy("\t group \t g  any\tw1 \t\nquorum\tg\n"), True),
    ("comments and blank lines", _policy("# c\n \t# c\n\n \t\nquorum none\n"), True),
    ("bytes beyond ASCII are opaque", _policy("group g\u00fc any w1\nquorum g\u00fc\n"), True),
    ("a no-break space parts no words", _policy("group a\u00a0b any w1\nquorum a\u00a0b\n"), True),
    ("not UTF-8 is opaque too", _policy("# ") + b"\xff\xfe\nquorum none\n", True),
    ("a quorum line before others", _policy("quorum w1\ngroup g any w2\n"), True),
    (
        "a witness named like a keyword",
        _policy(f"witness any {WITNESS.vkey}\ngroup all all any\nquorum all\n", _LOG),
        True,
    ),
    ("32 logs, 32 witnesses, 32 groups", _WIDE.encode(), True),
    ("empty", b"", False),
    ("no quorum", _policy(""), False),
    ("two quorums", _policy("quorum none\nquorum none\n"), False),
    ("quorum without a name", _policy("quorum\n"), False),
    ("quorum with two names", _policy("quorum w1 w2\n"), False),
    ("an unknown quorum", _policy("quorum w9\n"), False),
    ("a quorum of a later line", _policy("quorum g\ngroup g any w1\n"), False),
    ("a quorum that is a log", _policy(f"quorum {ORIGIN}\n"), False),
    ("no final newline", _policy("quorum none"), False),
    ("CRLF", _policy("quorum none\r\n"), False),
    ("a form feed", _policy("\x0cquorum none\n"), False),
    ("DEL", _policy("# \x7f\nquorum none\n"), False),
    ("NUL in a comment", _policy("# \x00\nquorum none\n"), False),
    ("a comment after a line", _policy("quorum none # c\n"), False),
    ("an unknown keyword", _policy("mirror m x\nquorum none\n"), False),
    ("a keyword in capitals", _policy("QUORUM none\n"), False),
    ("a threshold of 0", _policy("group g 0 w1\nquorum g\n"), False),
    ("a threshold above the members", _policy("group g 3 w1 w2\nquorum g\n"), False),
    ("a threshold of 01", _policy("group g 01 w1\nquorum g\n"), False),
    ("a threshold of +1", _policy("group g +1 w1\nquorum g\n"), False),
    ("a threshold of 1_0", _policy("group g 1_0 w1\nquorum g\n"), False),
    ("a threshold in other digits", _policy("group g ١ w1\nquorum g\n"), False),
    ("a threshold in words", _policy("group g most w1\nquorum g\n"), False),
    ("a group without members", _policy("group g any\nquorum g\n"), False),
    ("a group of itself", _policy("group g any g\nquorum g\n"), False),
    ("a group of a later line", _policy("group a any b\ngroup b any w1\nquorum a\n"), False),
    ("an unknown member", _policy("group g any w9\nquorum g\n"), False),
    ("the member none", _policy("group g any none\nquorum g\n"), False),
    ("a witness in two groups", _policy("group a any w1\ngroup b any w1\nquorum b\n"), False),
    ("a witness twice in one group", _policy("group a 2 w1 w1\nquorum a\n"), False),
    ("a group in two groups", _policy("group a any w1\ngroup b any a\ngroup c any a\nquorum c\n"), False),
    ("a group named none", _policy("group none any w1\nquorum none\n"), False),
    ("a witness named none", _policy(f"witness none {WITNESS.vkey}\nquorum none\n"), False),
    ("two witnesses of one name", _policy(f"witness w1 {WITNESS.vkey}\nquorum none\n"), False),
    ("a group named like a witness", _policy("group w1 any w2\nquorum w1\n"), False),
    ("a witness named like a group", _policy(f"group x any w1\nwitness x {WITNESS.vkey}\nquorum x\n"), False),
    ("one witness key under two names", _policy(f"witness x {_SAME.vkey}\nquorum none\n"), False),
    (
        "one log key under two origins",
        _policy(f"log {make_vkey('b.example', public_key(1)).vkey}\nquorum none\n"),
        False,
    ),
    ("the same log twice", _policy(_LOG + "quorum none\n"), False),
    ("a log without a key", b"log\nquorum none\n", False),
    ("a log with too many words", f"log {LOG.vkey} u v\nquorum none\n".encode(), False),
    ("a log key of the kind of witnesses", f"log {WITNESS.vkey}\nquorum none\n".encode(), False),
    ("a witness key of the kind of logs", _policy(f"witness x {RECEIPT.vkey}\nquorum none\n"), False),
    ("a witness without a name", _policy(f"witness {WITNESS.vkey}\nquorum none\n"), False),
    ("a vkey with another key id", _policy("quorum none\n", _LOG.replace("de5948d4", "de5948d5")), False),
]

_TREE = _policy("group a any w1 w2\ngroup b all w3 w4\ngroup c 2 a b w5\nquorum c\n")
QUORUMS: list[tuple[str, bytes, list[str], bool]] = [
    ("one of a, all of b", _TREE, ["w1", "w3", "w4"], True),
    ("one of a and w5", _TREE, ["w2", "w5"], True),
    ("everybody", _TREE, ["w1", "w2", "w3", "w4", "w5"], True),
    ("nobody", _TREE, [], False),
    ("two of one branch count once", _TREE, ["w1", "w2"], False),
    ("half of b", _TREE, ["w1", "w3"], False),
    ("b alone", _TREE, ["w3", "w4"], False),
    ("a group's name is no witness", _TREE, ["a", "b", "c"], False),
    ("an unknown name", _TREE, ["w1", "w9"], False),
    ("quorum none with everybody", _policy("quorum none\n"), ["w1", "w2", "w3", "w4", "w5"], False),
    ("the name none", _policy("quorum none\n"), ["none"], False),
    ("one witness, present", _policy("quorum w2\n"), ["w2"], True),
    ("one witness, absent", _policy("quorum w2\n"), ["w1"], False),
    ("two of three, one there", _policy("group g 2 w1 w2 w3\nquorum g\n"), ["w1"], False),
    ("two of three, two there", _policy("group g 2 w1 w2 w3\nquorum g\n"), ["w1", "w3"], True),
]


def _document(old: str = "", new: str = "") -> bytes:
    """The signed document with one passage replaced, exactly once, before it is signed."""
    assert not old or DOCUMENT_TEXT.count(old) == 1, old
    return signed(DOCUMENT_TEXT.replace(old, new) if old else DOCUMENT_TEXT, ROOT, 9)


_HASH = "07" * 32
_ROWS = DOCUMENT_TEXT.splitlines(keepends=True)
_OLD_LINE = next(row for row in _ROWS if OLD_LOG.vkey in row)
_FINAL = _OLD_LINE.split("compromised", 1)[1].rstrip("\n")  # with the blank before it


def _note(origin: str, size: int, root_size: int | None = None) -> str:
    """A checkpoint in base64, as it stands on the line of a compromised key."""
    text = checkpoint_text(origin, size, tree_of(root_size or size).root())
    return encode_base64(signed(text))


_LAST = _note(ORIGIN, 7)
_LOG_LINE = f"key log {LOG.vkey} 8 - active\n"
_RECEIPT_LINE = f"key receipt {RECEIPT.vkey} 0 - active\n"
_OTHER = make_vkey("other.example/ledger", public_key(6))
_NEAR = make_vkey(f"{ORIGIN}x/a", public_key(6))
KEY_DOCUMENTS: list[tuple[str, bytes, bool]] = [
    ("version 2 with every purpose", _document(), True),
    ("version 1", _document(f"version 2\nprevious {_HASH}", "version 1\nprevious -"), True),
    ("a retired key", _document(_LOG_LINE, f"key log {LOG.vkey} 8 20 retired\n"), True),
    ("an active key with a planned end", _document(_LOG_LINE, f"key log {LOG.vkey} 8 20 active\n"), True),
    ("a key of one size", _document(_LOG_LINE, f"key log {LOG.vkey} 8 8 retired\n"), True),
    ("a compromised receipt key", _document(_RECEIPT_LINE, f"key receipt {RECEIPT.vkey} 0 9 compromised\n"), True),
    ("a compromised log key with a checkpoint of its last tree", _document(_FINAL, f"{_FINAL} {_LAST}"), True),
    ("a last tree above the end", _document(f" 0 7 compromised{_FINAL}", f" 0 5 compromised{_FINAL}"), True),
    ("no keys at all", signed("".join(_ROWS[:5]), ROOT, 9), True),
    ("signed by nobody known", signed(DOCUMENT_TEXT, LOG, 1), False),
    ("signed by another key under the root's name", signed(DOCUMENT_TEXT, ROOT, 1), False),
    ("changed after it was signed", _document().replace(b"version 2", b"version 3"), False),
    ("signed twice by the root", _document() + _document()[_document().rindex("—".encode()) :], False),
    ("another first line", _document("tallystick-keys/v1", "tallystick-keys/v2"), False),
    (
        "another origin than the root's name says",
        _document(f"origin {ORIGIN}\n", "origin other.example/ledger\n"),
        False,
    ),
    ("version 0", _document("version 2", "version 0"), False),
    ("version 02", _document("version 2", "version 02"), False),
    ("version 1 with a previous document", _document("version 2", "version 1"), False),
    ("version 2 without a previous document", _document(_HASH, "-"), False),
    ("a previous hash in capitals", _document(_HASH, "AA" * 32), False),
    ("a short previous hash", _document(_HASH, "07" * 31), False),
    ("no genesis", signed("".join(_ROWS[:2] + _ROWS[3:]), ROOT, 9), False),
    ("genesis after version", signed("".join([*_ROWS[:2], _ROWS[3], _ROWS[2], *_ROWS[4:]]), ROOT, 9), False),
    ("an empty line", _document("version 2", "version 2\n"), False),
    ("a comment", _document("version 2", "# two\nversion 2"), False),
    ("key lines not sorted", signed("".join(_ROWS[:5] + _ROWS[:4:-1]), ROOT, 9), False),
    ("a key line twice", _document(_LOG_LINE, _LOG_LINE * 2), False),
    ("one key for two purposes", _document(RECEIPT.vkey, make_vkey(RECEIPT.name, public_key(1)).vkey), False),
    ("an unknown purpose", _document("key receipt", "key reader"), False),
    ("an unknown status", _document(_LOG_LINE, _LOG_LINE.replace("active", "paused")), False),
    ("compromised without an end", _document(_RECEIPT_LINE, _RECEIPT_LINE.replace("active", "compromised")), False),
    ("a last tree below the end", _document(f" 0 7 compromised{_FINAL}", f" 0 8 compromised{_FINAL}"), False),
    ("a checkpoint of another last size", _document(_FINAL, f"{_FINAL} {_note(ORIGIN, 8)}"), False),
    ("a checkpoint of another last root", _document(_FINAL, f"{_FINAL} {_note(ORIGIN, 7, 8)}"), False),
    ("a checkpoint of another origin", _document(_FINAL, f"{_FINAL} {_note('other.example', 7)}"), False),
    ("a checkpoint that is none", _document(_FINAL, f"{_FINAL} {encode_base64(b'x')}"), False),
    ("a checkpoint not in base64", _document(_FINAL, f"{_FINAL} x"), False),
    ("a ninth word", _document(_FINAL, f"{_FINAL} {_LAST} x"), False),
    ("a checkpoint for a receipt key", _document(_RECEIPT_LINE, f"{_RECEIPT_LINE[:-1]}{_FINAL} {_LAST}\n"), False),
    ("retired without an end", _document(_LOG_LINE, _LOG_LINE.replace("active", "retired")), False),
    ("an end before the beginning", _document(_LOG_LINE, f"key log {LOG.vkey} 8 7 active\n"), False),
    ("a beginning of 08", _document(_LOG_LINE, f"key log {LOG.vkey} 08 - active\n"), False),
    ("a compromised log key without its last tree", _document(_FINAL, ""), False),
    ("a last tree for an active key", _document(_LOG_LINE, _LOG_LINE.rstrip("\n") + _FINAL + "\n"), False),
    ("a last size without a root", _document(_FINAL, " 7"), False),
    (
        "a last tree for a receipt key",
        _document(_RECEIPT_LINE, f"key receipt {RECEIPT.vkey} 0 - compromised{_FINAL}\n"),
        False,
    ),
    ("a log key of another name", _document(LOG.vkey, _OTHER.vkey), False),
    ("a receipt key named like a log key", _document(RECEIPT.vkey, make_vkey(ORIGIN, public_key(3)).vkey), False),
    ("a custodial key of another origin", _document(CUSTODIAL.vkey, _OTHER.vkey), False),
    ("a custodial key of an origin that begins alike", _document(CUSTODIAL.vkey, _NEAR.vkey), False),
    ("a key of the kind of witnesses", _document(LOG.vkey, make_vkey(ORIGIN, public_key(1), 4).vkey), False),
    ("two spaces", _document("version 2", "version  2"), False),
    ("CRLF", _document().replace(b"\n", b"\r\n"), False),
    ("empty", b"", False),
]
