"""Reads a public key in every form that people paste: did:key, C2SP verifier key, or an OpenSSH line.

Whatever the form, the answer is the same 32 bytes, and the same strict key rule has the last word: a small-order or
non-canonical key would let its owner disown signatures (docs/protocol.md, strict Ed25519).
"""

from __future__ import annotations

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key

from verifier.did import decode_did
from verifier.note import parse_vkey
from verifier.sig import is_strict_key
from verifier.wire import Malformed

PUBLIC_KEY_CHARS_MAX = 1_024  # a did:key has 56; an SSH line has 80 and a comment, a vkey 45 and a name

_SSH_TYPE = "ssh-ed25519"
_SSH_BEGINNINGS = ("ssh-", "sk-ssh-", "sk-ecdsa-", "ecdsa-")


def parse_public_key(text: str) -> bytes:
    """Return the 32 raw bytes of the Ed25519 public key in `text`, one line without its newline.

    Accepted: `did:key:z6Mk…`, `<name>+<key id>+<base64>`, `ssh-ed25519 <base64> [comment]`. An SSH comment is ignored
    and proves nothing. Malformed for everything else, and for a key that breaks the strict rule.
    """
    if len(text) > PUBLIC_KEY_CHARS_MAX:
        raise Malformed(f"public key: at most {PUBLIC_KEY_CHARS_MAX} characters, got {len(text)}")
    public_key = _parse_form(text)
    if not is_strict_key(public_key):
        raise Malformed(
            "public key: a small-order, non-canonical or mixed-order Ed25519 point, which honest software never makes. "
            "Make a new key with: tallystick keys new"
        )
    return public_key


def _parse_form(text: str) -> bytes:
    if text.startswith("did:"):
        return decode_did(text)
    if text.startswith(_SSH_BEGINNINGS):
        return _parse_ssh(text)
    if text.count("+") >= 2:
        return parse_vkey(text).public_key
    raise Malformed("public key: expected did:key:z6Mk…, a verifier key <name>+<id>+<base64>, or ssh-ed25519 <base64>")


def _parse_ssh(text: str) -> bytes:
    """Return the key of one `ssh-ed25519` line as `ssh-keygen -t ed25519` writes it to its .pub file."""
    key_type, _, rest = text.partition(" ")
    _refuse_other_ssh(key_type)
    blob = rest.partition(" ")[0]
    if not blob.isascii() or "\n" in text or "\r" in text:
        raise Malformed("public key: an SSH public key is one line. Paste the one line of the .pub file")
    line = f"{_SSH_TYPE} {blob}".encode()
    try:
        key = load_ssh_public_key(line)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise Malformed("public key: the ssh-ed25519 line is damaged. Copy the .pub file again") from error
    if not isinstance(key, Ed25519PublicKey) or key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) != line:
        raise Malformed("public key: the ssh-ed25519 line is not in the form that ssh-keygen writes")
    return key.public_bytes_raw()


def _refuse_other_ssh(key_type: str) -> None:
    """Say why a key of another SSH type can't be used, and which one can."""
    advice = "Make one with: ssh-keygen -t ed25519"
    if "-cert-" in key_type:
        raise Malformed(
            "public key: this is an SSH certificate, and its authority is not known here. Give the plain key"
        )
    if key_type.startswith("sk-"):
        raise Malformed(f"public key: an SSH security-key (sk-) signs its own format, not ours. {advice}")
    if key_type == "ssh-rsa":
        raise Malformed(f"public key: an RSA key, and only Ed25519 is accepted. {advice}")
    if key_type != _SSH_TYPE:
        raise Malformed(f"public key: an SSH key of another type, and only {_SSH_TYPE} is accepted. {advice}")
