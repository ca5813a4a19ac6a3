"""Checks a COSE receipt of inclusion with pycose; the path is climbed as RFC 9162 says, with code of its own.

    python cose.py RECEIPT LEAF PUBLIC-KEY-HEX

Run by the Python of the peers' environment; it shares nothing with Tallystick but the files.
"""

import sys
from hashlib import sha256
from pathlib import Path

import cbor2
from pycose.keys import OKPKey  # type: ignore[import-not-found]  # lives in the peers' environment
from pycose.messages import CoseMessage  # type: ignore[import-not-found]


def main(receipt: str, leaf: str, public_key_hex: str) -> None:
    message = CoseMessage.decode(Path(receipt).read_bytes())
    headers = {getattr(name, "identifier", name): value for name, value in message.uhdr.items()}
    size, index, path = cbor2.loads(headers[396][-1][0])
    message.payload = climb(Path(leaf).read_bytes(), index, size, path)  # it was left out: only the path gives it
    message.key = OKPKey(crv="ED25519", x=bytes.fromhex(public_key_hex), optional_params={"KEY_OPS": ["VERIFY"]})
    if not message.verify_signature():
        sys.exit("pycose: the signature over the root does not hold")
    print(f"pycose: entry {index} of {size}, root {message.payload.hex()}")


def climb(leaf: bytes, index: int, size: int, path: list[bytes]) -> bytes:
    node, last = sha256(b"\0" + leaf).digest(), size - 1
    for part in path:
        if index & 1 or index == last:
            node = sha256(b"\1" + part + node).digest()
            while index and not index & 1:
                index, last = index >> 1, last >> 1
        else:
            node = sha256(b"\1" + node + part).digest()
        index, last = index >> 1, last >> 1
    return node


if __name__ == "__main__":
    main(*sys.argv[1:])
