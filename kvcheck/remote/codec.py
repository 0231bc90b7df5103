"""Both framings of the protocol: messages to bytes and back.

CBOR frames: a length of 4 big-endian bytes, then one CBOR map. JSON lines: one object per line. A
message means the same in both: only what JSON can say occurs, bytes are lower-case hexadecimal.
"""

from __future__ import annotations

import json
from io import BufferedIOBase
from typing import Any

from kvspec.files.jsonlines import parse_line
from kvspec.files.objects import Where, check_plain, shown

FRAMINGS = ("cbor", "json")
MAX_MESSAGE_BYTES = 2**24
"""No message is longer, its frame not counted.

Bounds what a broken peer can make us hold: at worst 64 bytes of objects for each byte, 1 GiB.
"""

LENGTH_BYTES = 4
READ_BYTES = 2**16
_MESSAGE = Where("message")


def encode(message: dict[str, Any], framing: str) -> bytes:
    """Encode the message with its frame. Raises FormatError if it is too long."""
    if framing == "json":
        body = json.dumps(message, separators=(",", ":"), allow_nan=False).encode("ascii")
        framed = body + b"\n"
    else:
        import cbor2

        body = cbor2.dumps(message)
        framed = len(body).to_bytes(LENGTH_BYTES, "big") + body
    if len(body) > MAX_MESSAGE_BYTES:
        raise _MESSAGE.error(_too_long(len(body)))
    return framed


def decode(body: bytes, framing: str) -> dict[str, Any]:
    """Decode the message in a frame. Raises FormatError for any other bytes."""
    value = parse_line(body, _MESSAGE) if framing == "json" else _decode_cbor(body)
    if not isinstance(value, dict):
        raise _MESSAGE.error(f"{shown(value)} is not an object")
    return value


def _decode_cbor(body: bytes) -> Any:
    """Decode one CBOR value that nothing follows."""
    import io

    import cbor2

    stream = io.BytesIO(body)
    try:
        value = cbor2.load(stream)
    except Exception as error:  # depth, memory, tags: the bytes are not trusted
        raise _MESSAGE.error(f"not CBOR: {type(error).__name__}: {error}") from None
    rest = len(body) - stream.tell()
    if rest:
        raise _MESSAGE.error(f"{rest} bytes behind the CBOR value")
    check_plain(value, _MESSAGE, most_values=len(body))
    return value


def _too_long(num_bytes: int) -> str:
    return f"{num_bytes} bytes; a message has at most {MAX_MESSAGE_BYTES}"


class MessageBuffer:
    def __init__(self, framing: str) -> None:
        self.framing = framing
        self._bytes = bytearray()
        self._searched = 0

    def __len__(self) -> int:
        """Return the number of bytes not yet read as messages."""
        return len(self._bytes)

    def feed(self, data: bytes) -> None:
        self._bytes += data

    def take(self) -> bytes | None:
        """Return the body of the next message, or None until it is complete.

        Raises FormatError as soon as a message is known to be too long.
        """
        return self._take_line() if self.framing == "json" else self._take_frame()

    def start(self, limit: int = 40) -> bytes:
        return bytes(self._bytes[:limit])

    def _take_line(self) -> bytes | None:
        end = self._bytes.find(b"\n", self._searched)
        self._searched = len(self._bytes)
        if end < 0 and len(self._bytes) <= MAX_MESSAGE_BYTES:
            return None
        size = len(self._bytes) if end < 0 else end
        if size > MAX_MESSAGE_BYTES:
            raise _MESSAGE.error(f"a line of at least {_too_long(size)}")
        self._searched = 0
        return self._cut(0, end, end + 1)

    def _take_frame(self) -> bytes | None:
        if len(self._bytes) < LENGTH_BYTES:
            return None
        size = int.from_bytes(self._bytes[:LENGTH_BYTES], "big")
        if size > MAX_MESSAGE_BYTES:
            raise _MESSAGE.error(f"a frame of {_too_long(size)}")
        end = LENGTH_BYTES + size
        return self._cut(LENGTH_BYTES, end, end) if len(self._bytes) >= end else None

    def _cut(self, start: int, end: int, next_start: int) -> bytes:
        body = bytes(self._bytes[start:end])
        del self._bytes[:next_start]
        return body


class MessageStream:
    """The server's side: messages read one after the other from a blocking stream."""

    def __init__(self, source: BufferedIOBase) -> None:
        self._source = source
        first = source.read(1)
        self.framing = "json" if first == b"{" else "cbor"
        self._buffer = MessageBuffer(self.framing)
        self._buffer.feed(first)

    def next(self) -> bytes | None:
        """Return the next message's body, or None at the end; FormatError if cut or too long."""
        while (body := self._buffer.take()) is None:
            data = self._source.read1(READ_BYTES)
            if not data:
                rest = len(self._buffer)
                if rest:
                    raise _MESSAGE.error(f"the stream ends {rest} bytes into a message")
                return None
            self._buffer.feed(data)
        return body
