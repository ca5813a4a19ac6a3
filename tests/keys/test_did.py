"""Every accepted text form of a public key gives the same 32 strict bytes; everything else is Malformed."""

from __future__ import annotations

import base64
import hashlib
from hashlib import sha256

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, SSHCertificateBuilder
from cryptography.hazmat.primitives.serialization import SSHCertificateType as CertificateType
from hypothesis import example, given, settings
from hypothesis import strategies as st

from keys.did import PUBLIC_KEY_CHARS_MAX, parse_public_key
from keys.signing import SigningKey
from verifier.did import encode_did
from verifier.note import make_vkey
from verifier.sig import SMALL_ORDER, is_strict_key
from verifier.wire import Malformed

KEY = SigningKey(bytes(range(32)))
SPEC_DID = "did:key:z6MkhaXgBZDvotDkL5257faiztiGiC2QtKLGpbnnEGta2doK"  # W3C-CCG did:key
SPEC_VKEY = "example.com/foo+530d903a+AekyeRrm56hApGFkyQR4ZCbV54Id2LKaANYcrnKv3U2k"  # C2SP signed-note
SPEC_VKEY_KEY = "e932791ae6e7a840a46164c904786426d5e7821dd8b29a00d61cae72afdd4da4"

NON_CANONICAL = (2**255 - 19 + 3).to_bytes(32, "little")  # y = 3, written as p + 3
MIXED_ORDER = bytes.fromhex("95" + "99" * 31)  # the base point plus a point of order 2
NOT_ON_THE_CURVE = (2).to_bytes(32, "little")
WEAK_KEYS = [*sorted(SMALL_ORDER), NON_CANONICAL, MIXED_ORDER, NOT_ON_THE_CURVE]


def ssh_string(value: bytes) -> bytes:
    return len(value).to_bytes(4, "big") + value


def ssh_line(public_key: bytes, comment: str = "", key_type: str = "ssh-ed25519") -> str:
    """An OpenSSH public key line built by hand (RFC 8709 section 4)."""
    blob = base64.b64encode(ssh_string(key_type.encode()) + ssh_string(public_key)).decode()
    return f"{key_type} {blob}" + (f" {comment}" if comment else "")


def raw_vkey(name: str, public_key: bytes) -> str:
    """A well-formed vkey for any 32 bytes, which the verifier's own maker would refuse."""
    payload = b"\x01" + public_key
    key_id = sha256(name.encode() + b"\n" + payload).digest()[:4]
    return f"{name}+{key_id.hex()}+{base64.b64encode(payload).decode()}"


FORMS = [
    ("did:key", KEY.did),
    ("vkey", make_vkey("ledger.example/main", KEY.public_key).vkey),
    ("cosignature vkey", make_vkey("witness.example", KEY.public_key, 4).vkey),
    ("ssh", ssh_line(KEY.public_key)),
    ("ssh with a comment", ssh_line(KEY.public_key, "agent@host, made on a laptop")),
    ("ssh with a foreign comment", ssh_line(KEY.public_key, "clé de l’agent")),
]


@pytest.mark.parametrize("text", [row[1] for row in FORMS], ids=[row[0] for row in FORMS])
def test_every_form_gives_the_same_32_bytes(text: str) -> None:
    assert parse_public_key(text) == KEY.public_key


def test_the_published_vectors_are_read() -> None:
    assert encode_did(parse_public_key(SPEC_DID)) == SPEC_DID
    assert parse_public_key(SPEC_VKEY).hex() == SPEC_VKEY_KEY


def test_the_ssh_line_of_a_second_library_is_read() -> None:
    other = Ed25519PrivateKey.from_private_bytes(bytes(range(32))).public_key()
    assert parse_public_key(other.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()) == KEY.public_key


@pytest.mark.parametrize(
    "form", [encode_did, lambda key: raw_vkey("a.example", key), ssh_line], ids=["did", "vkey", "ssh"]
)
@pytest.mark.parametrize("weak", WEAK_KEYS, ids=lambda key: key.hex()[:8] + "…" + key.hex()[-4:])
def test_a_weak_key_is_refused_in_every_form(weak: bytes, form: object) -> None:
    """Small order, non-canonical, mixed order, no point at all: each could disown signatures or split verifiers."""
    assert callable(form)
    with pytest.raises(Malformed):
        parse_public_key(form(weak))


def test_the_refusal_of_a_weak_ssh_key_says_what_it_is_and_what_to_do() -> None:
    with pytest.raises(Malformed, match=r"small-order, non-canonical or mixed-order .* tallystick keys new"):
        parse_public_key(ssh_line(min(SMALL_ORDER)))


def rsa_line() -> str:
    key = rsa.generate_private_key(public_exponent=65_537, key_size=1_024).public_key()
    return key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()


def ecdsa_line() -> str:
    key = ec.generate_private_key(ec.SECP256R1()).public_key()
    return key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()


def certificate_line() -> str:
    key = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
    builder = SSHCertificateBuilder().public_key(key.public_key()).type(CertificateType.USER).serial(1).key_id(b"a")
    builder = builder.valid_principals([b"a"]).valid_after(0).valid_before(2**64 - 1)
    return builder.sign(key).public_bytes().decode()


SK_LINE = ssh_line(KEY.public_key, key_type="sk-ssh-ed25519@openssh.com")
SK_CERTIFICATE = ssh_line(KEY.public_key, key_type="sk-ssh-ed25519-cert-v01@openssh.com")
OTHER_SSH = [
    ("certificate", certificate_line(), "this is an SSH certificate, .* Give the plain key"),
    ("security key", SK_LINE, r"an SSH security-key \(sk-\) .* ssh-keygen -t ed25519"),
    ("security key's certificate", SK_CERTIFICATE, "this is an SSH certificate"),
    ("security key, ecdsa", "sk-ecdsa-sha2-nistp256@openssh.com AAAA", r"an SSH security-key \(sk-\)"),
    ("RSA", rsa_line(), "an RSA key, and only Ed25519 is accepted. Make one with: ssh-keygen -t ed25519"),
    ("ECDSA", ecdsa_line(), "an SSH key of another type, and only ssh-ed25519 is accepted"),
    ("DSA", "ssh-dss AAAA", "an SSH key of another type"),
]


@pytest.mark.parametrize(("name", "text", "expected"), OTHER_SSH, ids=[row[0] for row in OTHER_SSH])
def test_other_ssh_keys_are_refused_by_their_kind(name: str, text: str, expected: str) -> None:
    with pytest.raises(Malformed, match=expected):
        parse_public_key(text)


GOOD = ssh_line(KEY.public_key)
BLOB = GOOD.split(" ")[1]
DAMAGED = [
    ("no key", "ssh-ed25519"),
    ("empty key", "ssh-ed25519 "),
    ("two spaces", f"ssh-ed25519  {BLOB}"),
    ("tab", f"ssh-ed25519\t{BLOB}"),
    ("leading space", f" {GOOD}"),
    ("newline at the end", f"{GOOD}\n"),
    ("two lines", f"{GOOD}\n{GOOD}"),
    ("a newline in the comment", f"{GOOD} a\nb"),
    ("options before it", f"no-pty {GOOD}"),
    ("cut", GOOD[:-8]),
    ("no padding where none belongs", f"{GOOD}="),
    ("a foreign letter in the key", f"ssh-ed25519 {BLOB[:-1]}é"),
    ("31 bytes", ssh_line(KEY.public_key[:31])),
    ("33 bytes", ssh_line(KEY.public_key + b"a")),
    ("bytes after the key", "ssh-ed25519 " + base64.b64encode(base64.b64decode(BLOB) + b"a").decode()),
    ("an inner type that differs", "ssh-ed25519 " + ssh_line(KEY.public_key, key_type="ssh-ed25520").split(" ")[1]),
    ("PEM", "-----BEGIN PUBLIC KEY-----"),
    ("hex", KEY.public_key.hex()),
    ("empty", ""),
    ("another DID method", "did:web:example.com"),
    ("a DID with a fragment", f"{KEY.did}#{KEY.did[8:]}"),
    ("a DID with a newline", f"{KEY.did}\n"),
    ("a vkey with another id", SPEC_VKEY.replace("530d903a", "530d903b")),
    ("a vkey with a newline", f"{SPEC_VKEY}\n"),
    ("a vkey of kind 2", raw_vkey("a.example", KEY.public_key).replace("+AQ", "+Ag")),
    ("longer than the bound", ssh_line(KEY.public_key, "x" * PUBLIC_KEY_CHARS_MAX)),
]


@pytest.mark.parametrize(("name", "text"), DAMAGED, ids=[row[0] for row in DAMAGED])
def test_a_damaged_text_is_refused(name: str, text: str) -> None:
    with pytest.raises(Malformed) as caught:
        parse_public_key(text)
    assert KEY.public_key.hex() not in str(caught.value)


def mutations(text: str) -> st.SearchStrategy[str]:
    """Texts one edit away from a good one: where parsers go wrong."""
    position = st.integers(0, len(text))
    return st.builds(
        lambda at, cut, put: text[:at] + put + text[at + cut :], position, st.integers(0, 3), st.text(max_size=3)
    )


ANY_TEXT = st.one_of(
    st.text(max_size=200),
    st.builds(lambda prefix, tail: prefix + tail, st.sampled_from(["did:key:z6Mk", "ssh-ed25519 ", "a+0+"]), st.text()),
    *(mutations(text) for _, text in FORMS),
    st.binary(min_size=32, max_size=32).map(ssh_line),
    st.binary(max_size=80).map(lambda blob: "ssh-ed25519 " + base64.b64encode(blob).decode()),
)


@settings(max_examples=600, deadline=None)
@given(ANY_TEXT)
@example("ssh-ed25519 \ud800")
@example("did:" + "\ud800")
@example("\ud800+\ud800+\ud800")
@example("ssh-ed25519 " + base64.b64encode(b"\xff" * 51).decode())
def test_any_text_gives_32_strict_bytes_or_malformed(text: str) -> None:
    try:
        public_key = parse_public_key(text)
    except Malformed:
        return
    assert len(public_key) == 32
    assert is_strict_key(public_key)


@settings(max_examples=50, deadline=None)
@given(st.binary(min_size=32, max_size=32))
def test_a_strict_key_survives_every_form(seed: bytes) -> None:
    key = SigningKey(hashlib.sha256(seed).digest())
    for text in (key.did, make_vkey("a.example", key.public_key).vkey, ssh_line(key.public_key, "c")):
        assert parse_public_key(text) == key.public_key
