"""Hand-judged texts: JSON, vkeys, notes, checkpoints, proofs. (comment, bytes, verdict…)"""

from __future__ import annotations

import base64

from tests.vectors import curve
from tests.verifier.samples import LOG, ORIGIN, WITNESS, cosigned, log_line, public_key, signed, tree_of
from verifier.checkpoint import checkpoint_text
from verifier.merkle import EMPTY_ROOT
from verifier.note import Note, encode_note
from verifier.wire import encode_base64

# (comment, text, accepted by the strict reader, canonical)
JSON_TEXTS: list[tuple[str, bytes, bool, bool]] = [
    ("empty object", b"{}", True, True),
    ("every kind of value", b'{"a":null,"b":[true,false,0,-1],"c":{"d":"e"}}', True, True),
    ("greatest integer", b'{"a":9007199254740991}', True, True),
    ("smallest integer", b'{"a":-9007199254740991}', True, True),
    ("characters beyond ASCII stand as they are", '{"a":"é€😀\u2028\x7f"}'.encode(), True, True),
    ("the seven short escapes", b'{"a":"\\b\\t\\n\\f\\r\\"\\\\"}', True, True),
    ("other control characters in lower-case hex", b'{"a":"\\u0001\\u001f"}', True, True),
    ("eight levels", b'{"a":' + b"[" * 7 + b"]" * 7 + b"}", True, True),
    ("brackets inside a string are no levels", b'{"a":"' + b"[{" * 20 + b'"}', True, True),
    ("member name of 64 characters", b'{"' + b"a" * 64 + b'":1}', True, True),
    ("spaces", b'{"a": 1}', True, False),
    ("final newline", b'{"a":1}\n', True, False),
    ("members out of order", b'{"b":1,"a":2}', True, False),
    ("needless escape", b'{"a":"\\u0062"}', True, False),
    ("upper-case hex in an escape", b'{"a":"\\u001F"}', True, False),
    ("escaped slash", b'{"a":"\\/"}', True, False),
    ("surrogate pair as escapes", b'{"a":"\\ud83d\\ude00"}', True, False),
    ("member name in capitals", b'{"A":1}', True, False),
    ("member name with a hyphen", b'{"a-b":1}', True, False),
    ("empty member name", b'{"":1}', True, False),
    ("member name of 65 characters", b'{"' + b"a" * 65 + b'":1}', True, False),
    ("member name with a final newline", b'{"a\\n":1}', True, False),
    ("capitals one level down", b'{"a":[{"B":1}]}', True, False),
    ("nothing", b"", False, False),
    ("an array on top", b"[]", False, False),
    ("a string on top", b'"a"', False, False),
    ("a number on top", b"1", False, False),
    ("nine levels", b'{"a":' + b"[" * 8 + b"]" * 8 + b"}", False, False),
    ("two thousand levels", b'{"a":' + b"[" * 2_000, False, False),
    ("levels hidden behind a quote and a backslash", b'{"a":"\\\\",' + b'"b":[' * 9, False, False),
    ("duplicate members", b'{"a":1,"a":1}', False, False),
    ("duplicate by an escape", b'{"a":1,"\\u0061":2}', False, False),
    ("duplicate one level down", b'{"a":{"b":1,"b":1}}', False, False),
    ("a fraction", b'{"a":1.0}', False, False),
    ("an exponent", b'{"a":1e3}', False, False),
    ("infinity by exponent", b'{"a":1e400}', False, False),
    ("NaN", b'{"a":NaN}', False, False),
    ("Infinity", b'{"a":Infinity}', False, False),
    ("-Infinity", b'{"a":-Infinity}', False, False),
    ("minus zero", b'{"a":-0}', False, False),
    ("leading zero", b'{"a":07}', False, False),
    ("plus sign", b'{"a":+7}', False, False),
    ("digits of another script", '{"a":٧}'.encode(), False, False),
    ("2^53", b'{"a":9007199254740992}', False, False),
    ("-2^53", b'{"a":-9007199254740992}', False, False),
    ("a thousand digits", b'{"a":' + b"9" * 1_000 + b"}", False, False),
    ("lone high surrogate", b'{"a":"\\ud800"}', False, False),
    ("lone low surrogate in a name", b'{"\\udc00":1}', False, False),
    ("surrogates in the wrong order", b'{"a":"\\ude00\\ud83d"}', False, False),
    ("surrogate as bytes", b'{"a":"\xed\xa0\x80"}', False, False),
    ("overlong UTF-8", b'{"a":"\xc0\xaf"}', False, False),
    ("byte order mark", b'\xef\xbb\xbf{"a":1}', False, False),
    ("UTF-16", '{"a":1}'.encode("utf-16"), False, False),
    ("raw control character", b'{"a":"\x01"}', False, False),
    ("raw newline in a string", b'{"a":"\n"}', False, False),
    ("single quotes", b"{'a':1}", False, False),
    ("trailing comma", b'{"a":1,}', False, False),
    ("a comment", b'{"a":1/**/}', False, False),
    ("two objects", b"{}{}", False, False),
    ("cut off", b'{"a":', False, False),
    ("cut off inside a string", b'{"a":"', False, False),
    ("cut off after a backslash", b'{"a":"\\', False, False),
    ("space of another script", '{"a":\u00a01}'.encode(), False, False),
]

_V = LOG.vkey
_HEAD, _ID, _KEY = _V.split("+", 2)
_FOO = "example.com/foo+530d903a+AekyeRrm56hApGFkyQR4ZCbV54Id2LKaANYcrnKv3U2k"  # C2SP signed-note


def _key(kind: int, key: bytes) -> str:
    return base64.b64encode(bytes([kind]) + key).decode()


VKEYS: list[tuple[str, str, bool]] = [
    ("a log key", _V, True),
    ("a witness key", WITNESS.vkey, True),
    ("the vector of the C2SP specification", _FOO, True),
    ("empty", "", False),
    ("a name alone", _HEAD, False),
    ("no key", f"{_HEAD}+{_ID}", False),
    ("an empty key", f"{_HEAD}+{_ID}+", False),
    ("an empty name", f"+{_ID}+{_KEY}", False),
    ("another key id", f"{_HEAD}+00000000+{_KEY}", False),
    ("a key id in capitals", f"{_HEAD}+{_ID.upper()}+{_KEY}", False),
    ("a key id with a space", f"{_HEAD}+{_ID[:6]} {_ID[6:]}+{_KEY}", False),
    ("a short key id", f"{_HEAD}+{_ID[:6]}+{_KEY}", False),
    ("a name with a space", f"a b+{_ID}+{_KEY}", False),
    ("a name with a no-break space", f"a\u00a0b+{_ID}+{_KEY}", False),
    ("a name with NUL", f"a\x00b+{_ID}+{_KEY}", False),
    ("a name with a lone surrogate", f"a\ud800b+{_ID}+{_KEY}", False),
    ("a final newline", _V + "\n", False),
    ("base64 without padding", f"{_FOO}=", False),
    ("base64 of 31 bytes", f"{_HEAD}+{_ID}+{_key(1, bytes(31))}", False),
    ("base64 of 33 bytes", f"{_HEAD}+{_ID}+{_key(1, public_key(1) + bytes(1))}", False),
    ("an unknown kind", f"{_HEAD}+{_ID}+{_key(6, public_key(1))}", False),
    ("the identity point", f"{_HEAD}+{_ID}+{_key(1, curve.encode(curve.IDENTITY))}", False),
]

_TEXT = checkpoint_text(ORIGIN, 7, tree_of(7).root())
_NOTE = signed(_TEXT)
_BOTH = encode_note(cosigned(log_line(_TEXT)))
_LINE = log_line(_TEXT).lines[0]
_ROW = _NOTE[_NOTE.rindex("—".encode()) :]
_BASE64 = _ROW.decode().split(" ")[2].rstrip("\n")


def _with_row(row: str) -> bytes:
    return _TEXT.encode() + b"\n" + row.encode()


NOTES: list[tuple[str, bytes, bool]] = [
    ("one line", _NOTE, True),
    ("signature and cosignature", _BOTH, True),
    ("empty lines in the text", signed("a\n\nb\n"), True),
    ("64 signature lines", encode_note(Note(_TEXT, (_LINE,) * 64)), True),
    ("an unknown line of one byte", _with_row(f"— a.example {encode_base64(bytes(5))}\n"), True),
    ("65 signature lines", encode_note(Note(_TEXT, (_LINE,) * 65)), False),
    ("empty", b"", False),
    ("a newline", b"\n", False),
    ("two newlines", b"\n\n", False),
    ("no signature", _TEXT.encode() + b"\n", False),
    ("no empty line", _NOTE.replace(b"\n\n", b"\n"), False),
    ("two empty lines", _NOTE.replace(b"\n\n", b"\n\n\n"), True),
    ("CRLF", _NOTE.replace(b"\n", b"\r\n"), False),
    ("no final newline", _NOTE[:-1], False),
    ("an empty line at the end", _NOTE + b"\n", False),
    ("NUL in the name", _NOTE.replace(b"\x94 gate", b"\x94 ga\x00te"), False),
    ("NUL in the text", b"\x00" + _NOTE, False),
    ("a tab in the text", b"\t" + _NOTE, False),
    ("not UTF-8", b"\xff" + _NOTE, False),
    ("a hyphen for the dash", _NOTE.replace("—".encode(), b"-"), False),
    ("two spaces", _with_row(f"—  {ORIGIN} {_BASE64}\n"), False),
    ("a space at the end of a line", _with_row(f"— {ORIGIN} {_BASE64} \n"), False),
    ("a plus in the name", _with_row(f"— a+b {_BASE64}\n"), False),
    ("a no-break space in the name", _with_row(f"— a\u00a0b {_BASE64}\n"), False),
    ("no name", _with_row(f"—  {_BASE64}\n"), False),
    ("no base64", _with_row(f"— {ORIGIN} \n"), False),
    ("base64 of the key id alone", _with_row(f"— {ORIGIN} {encode_base64(_LINE.key_id)}\n"), False),
    ("base64 with other unused bits", _NOTE.replace(b"RAY=\n", b"RAZ=\n"), False),
    ("base64 without padding", _NOTE.replace(b"RAY=\n", b"RAY\n"), False),
    ("base64 of the URL alphabet", _with_row(f"— {ORIGIN} {_BASE64.replace('+', '-').replace('/', '_')}\n"), False),
    ("text between the lines", _NOTE + b"hello\n" + _ROW, False),
]


def _checkpoint(*rows: str) -> bytes:
    return signed("".join(f"{row}\n" for row in rows))


_ROOT = encode_base64(tree_of(7).root())
_EMPTY = encode_base64(EMPTY_ROOT)
CHECKPOINTS: list[tuple[str, bytes, bool]] = [
    ("the checkpoint of c2sp.md section 12", _BOTH, True),
    ("an empty tree", _checkpoint(ORIGIN, "0", _EMPTY), True),
    ("an extension line", _checkpoint(ORIGIN, "7", _ROOT, "an extension"), True),
    ("the greatest size", _checkpoint(ORIGIN, "9007199254740991", _ROOT), True),
    ("an empty tree with a root", _checkpoint(ORIGIN, "0", _ROOT), False),
    ("an empty extension line", _checkpoint(ORIGIN, "7", _ROOT, ""), False),
    ("an empty line before an extension", _checkpoint(ORIGIN, "7", _ROOT, "", "x"), False),
    ("size 07", _checkpoint(ORIGIN, "07", _ROOT), False),
    ("size +7", _checkpoint(ORIGIN, "+7", _ROOT), False),
    ("size -7", _checkpoint(ORIGIN, "-7", _ROOT), False),
    ("size 1_0", _checkpoint(ORIGIN, "1_0", _ROOT), False),
    ("size with a space", _checkpoint(ORIGIN, "7 ", _ROOT), False),
    ("size in other digits", _checkpoint(ORIGIN, "٧", _ROOT), False),
    ("size 0x7", _checkpoint(ORIGIN, "0x7", _ROOT), False),
    ("no size", _checkpoint(ORIGIN, "", _ROOT), False),
    ("size 2^53", _checkpoint(ORIGIN, "9007199254740992", _ROOT), False),
    ("no root", _checkpoint(ORIGIN, "7"), False),
    ("a root of 31 bytes", _checkpoint(ORIGIN, "7", encode_base64(bytes(31))), False),
    ("a root of 33 bytes", _checkpoint(ORIGIN, "7", encode_base64(bytes(33))), False),
    ("a root with other unused bits", _checkpoint(ORIGIN, "7", _ROOT.replace("IcA=", "IcB=")), False),
    ("no origin", _checkpoint("", "7", _ROOT), False),
    ("an origin with a space", _checkpoint("a b", "7", _ROOT), False),
    ("an origin with a plus", _checkpoint("a+b", "7", _ROOT), False),
    ("CRLF", _BOTH.replace(b"\n", b"\r\n"), False),
]

_MAGIC = "c2sp.org/tlog-proof@v1\n"
_PATH = "".join(f"{encode_base64(part)}\n" for part in tree_of(7).path(4, 7))


def _proof(header: str, checkpoint: bytes = _BOTH, magic: str = _MAGIC) -> bytes:
    return f"{magic}{header}\n".encode() + checkpoint


_HASH = encode_base64(bytes(32)) + "\n"


def _consistency(head: str, checkpoint: bytes = _BOTH) -> bytes:
    return head.encode() + b"\n" + checkpoint


CONSISTENCY: list[tuple[str, bytes, bool]] = [
    ("two hashes", _consistency(f"old 3\n{_HASH * 2}"), True),
    ("no hashes", _consistency("old 7\n"), True),
    ("old 0", _consistency("old 0\n"), True),
    ("63 hashes", _consistency("old 4\n" + _HASH * 63), True),
    ("64 hashes", _consistency("old 4\n" + _HASH * 64), False),
    ("empty", b"", False),
    ("old 03", _consistency(f"old 03\n{_HASH}"), False),
    ("old +3", _consistency(f"old +3\n{_HASH}"), False),
    ("old -3", _consistency(f"old -3\n{_HASH}"), False),
    ("old without a size", _consistency(f"old\n{_HASH}"), False),
    ("old twice", _consistency(f"old 3\nold 3\n{_HASH}"), False),
    ("old 2^53", _consistency("old 9007199254740992\n"), False),
    ("Old", _consistency(f"Old 3\n{_HASH}"), False),
    ("two spaces", _consistency(f"old  3\n{_HASH}"), False),
    ("a hash of 31 bytes", _consistency(f"old 3\n{encode_base64(bytes(31))}\n"), False),
    ("a hash with a space", _consistency(f"old 3\n {_HASH}"), False),
    ("a hash with other unused bits", _consistency(f"old 3\n{_HASH[:-3]}B=\n"), False),
    ("CRLF", _consistency(f"old 3\n{_HASH}").replace(b"\n", b"\r\n"), False),
    ("no empty line", _consistency(f"old 3\n{_HASH}")[: -len(_BOTH) - 1], False),
    ("no checkpoint", _consistency("old 3\n", b""), False),
    ("a checkpoint that is none", _consistency("old 3\n", b"x\n"), False),
    ("a proof of inclusion", _proof(f"index 4\n{_PATH}"), False),
]
PROOFS: list[tuple[str, bytes, bool]] = [
    ("the proof of c2sp.md section 12", _proof(f"index 4\n{_PATH}"), True),
    ("no hashes", _proof("index 0\n"), True),
    ("extra", _proof(f"extra aGk=\nindex 4\n{_PATH}"), True),
    ("63 hashes", _proof("index 4\n" + _HASH * 63), True),
    ("64 hashes", _proof("index 4\n" + _HASH * 64), False),
    ("empty", b"", False),
    ("the first line alone", _MAGIC.encode(), False),
    ("another version", _proof(f"index 4\n{_PATH}", magic="c2sp.org/tlog-proof@v2\n"), False),
    ("index 04", _proof(f"index 04\n{_PATH}"), False),
    ("index +4", _proof(f"index +4\n{_PATH}"), False),
    ("index -4", _proof(f"index -4\n{_PATH}"), False),
    ("two spaces before the index", _proof(f"index  4\n{_PATH}"), False),
    ("no index", _proof(_PATH), False),
    ("index twice", _proof(f"index 4\nindex 4\n{_PATH}"), False),
    ("index 2^53", _proof(f"index 9007199254740992\n{_PATH}"), False),
    ("empty extra", _proof(f"extra \nindex 4\n{_PATH}"), False),
    ("extra without a value", _proof(f"extra\nindex 4\n{_PATH}"), False),
    ("extra twice", _proof(f"extra aGk=\nextra aGk=\nindex 4\n{_PATH}"), False),
    ("extra after the index", _proof(f"index 4\nextra aGk=\n{_PATH}"), False),
    ("extra with other unused bits", _proof(f"extra aGl=\nindex 4\n{_PATH}"), False),
    ("a hash of 31 bytes", _proof(f"index 4\n{encode_base64(bytes(31))}\n"), False),
    ("a hash with a space", _proof("index 4\n " + _HASH), False),
    ("a hash with other unused bits", _proof(f"index 4\n{_HASH[:-3]}B=\n"), False),
    ("an unknown header line", _proof(f"index 4\nhello\n{_PATH}"), False),
    ("CRLF", _proof(f"index 4\n{_PATH}").replace(b"\n", b"\r\n"), False),
    ("no empty line", _proof(f"index 4\n{_PATH}")[: -len(_BOTH) - 1], False),
    ("no checkpoint", _proof(f"index 4\n{_PATH}", b""), False),
    ("NUL in the checkpoint", _proof(f"index 4\n{_PATH}", b"\x00" + _BOTH), False),
]
