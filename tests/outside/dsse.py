"""Checks a receipt as a plain DSSE envelope with securesystemslib, the library below TUF and in-toto.

    python dsse.py RECEIPT PUBLIC-KEY-HEX KEYID

Run by the Python of the peers' environment; it shares nothing with Tallystick but the file.
"""

import json
import sys
from pathlib import Path

from securesystemslib.dsse import Envelope  # type: ignore[import-not-found]  # lives in the peers' environment
from securesystemslib.signer import SSlibKey  # type: ignore[import-not-found]


def main(path: str, public_key_hex: str, keyid: str) -> None:
    receipt = json.loads(Path(path).read_bytes())
    envelope = Envelope.from_dict({name: receipt[name] for name in ("payloadType", "payload", "signatures")})
    key = SSlibKey(keyid, "ed25519", "ed25519", {"public": public_key_hex})
    envelope.verify([key], 1)
    print(f"securesystemslib: {envelope.payload_type}, {len(envelope.payload)} bytes, signed by {keyid}")


if __name__ == "__main__":
    main(*sys.argv[1:])
