"""PostgreSQL's messages on the wire, cut out of a stream: as much of the protocol as a proxy needs to see a COMMIT.

Source: PostgreSQL documentation, "Message Formats". A message is a letter, its length (4 bytes, itself included) and
its text; the first of a client has no letter.
"""

from __future__ import annotations

from collections.abc import Iterator

_SSL_REQUEST, _GSS_REQUEST = 80_877_103, 80_877_104  # answered by one byte without a length


class Frames:
    """Cuts one direction of one connection. What is not complete yet stays until the rest comes."""

    def __init__(self, *, is_client: bool) -> None:
        self.is_opening = is_client  # a client's first message has no letter
        self.single_bytes = 0  # answers without a length that are still due (a server's side)
        self.asks_encryption = False  # the last message of a client was such a question
        self._rest = b""

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Yield the messages that are complete now, byte for byte as they came."""
        self._rest += chunk
        while size := self._size():
            frame, self._rest = self._rest[:size], self._rest[size:]
            if self.is_opening:
                self.asks_encryption = int.from_bytes(frame[4:8]) in (_SSL_REQUEST, _GSS_REQUEST)
                self.is_opening = self.asks_encryption
            elif self.single_bytes:
                self.single_bytes -= 1
            yield frame

    def _size(self) -> int:
        """Return the length of the first message, or 0 if it is not all there."""
        if self.single_bytes:
            return min(1, len(self._rest))
        head = 0 if self.is_opening else 1
        if len(self._rest) < head + 4:
            return 0
        size = head + int.from_bytes(self._rest[head : head + 4])
        return size if len(self._rest) >= size else 0


def is_commit(frame: bytes) -> bool:
    """Say whether a client's message asks for a COMMIT: as plain text, or to be prepared."""
    return _statement(frame).startswith(b"COMMIT")


def ends_request(frame: bytes) -> bool:
    """Say whether a server acts on all that came up to this message: a plain statement, or the end of a pipeline."""
    return frame[:1] in (b"Q", b"S")


def is_begin(frame: bytes) -> bool:
    """Say whether a client's message begins a transaction."""
    return _statement(frame).startswith((b"BEGIN", b"START TRANSACTION"))


def _statement(frame: bytes) -> bytes:
    kind, text = frame[:1], frame[5:]
    if kind == b"P":
        text = text.partition(b"\0")[2]  # after the name of what is prepared
    return text.strip().upper() if kind in (b"Q", b"P") else b""


def is_committed(frame: bytes) -> bool:
    """Say whether a server's message acknowledges a COMMIT."""
    return frame[:1] == b"C" and frame[5:] == b"COMMIT\0"
