"""The bytes of a saved state: frames of CBOR, and a checksum at the end (`spec/saved.md`)."""

from __future__ import annotations

import hashlib
import sys
from array import array
from collections.abc import Mapping
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO

from kvspec.columns import CODES, Columns
from kvspec.errors import SavedStateError
from kvspec.files.objects import Where, anything, checked_members
from kvspec.files.shapes import Form, Shape, as_it_is
from kvspec.snapshot import MambaState, RequestState, Snapshot

FORMAT = "kvspec-state"
VERSION = 1
PIECE_BYTES = 2**20
"""A column is written in pieces of this size, so that neither side needs a second copy of it."""
MOST_FRAME_BYTES = 2**28
REQUESTS_PER_FRAME = 1024

_MAGIC = b"\xd9\xd9\xf7"  # "this is CBOR"
_BYTES_32 = 0x5A  # a byte string whose length follows in 4 bytes
_BYTES = 0x40  # a byte string; its length, or how many bytes say it, is added
_HEAD_BYTES = 5
AGAIN = "save the state again, or start with an empty cache"


def write_state(file: BinaryIO, config: Mapping[str, Any], columns: Columns) -> None:
    """Write the whole file."""
    import cbor2

    seen = hashlib.sha256()

    def put(body: bytes) -> None:
        frame = bytes([_BYTES_32]) + len(body).to_bytes(4, "big") + body
        seen.update(frame)
        file.write(frame)

    head = {"format": FORMAT, "version": VERSION, "config": dict(config)}
    put(_MAGIC + cbor2.dumps(head))
    put(cbor2.dumps(["rest", _REST.write(columns.rest)]))
    requests = iter(columns.rest.requests.items())
    while rows := dict(islice(requests, REQUESTS_PER_FRAME)):
        put(cbor2.dumps(["requests", {name: _encoded(row) for name, row in rows.items()}]))
    for name, code in CODES.items():
        column = memoryview(_little(getattr(columns, name), code)).cast("B")
        for start in range(0, len(column), PIECE_BYTES):
            put(cbor2.dumps([name, bytes(column[start : start + PIECE_BYTES])]))
    put(cbor2.dumps(["end", seen.digest()]))


class StateFile:
    """A file whose checksum is right. `config` is that of its first frame, as JSON.

    The file is read once: columns are collected as they arrive, unchecked, and everything else is
    decoded after the checksum matches. Raises OSError, and SavedStateError if it is not a state of
    this version.
    """

    def __init__(self, path: Path) -> None:
        self.file = str(path)
        self._columns = {name: bytearray() for name in CODES}
        self._others: list[bytes] = []
        with path.open("rb", buffering=0) as stream:
            digest = self._taken_in(stream)
        if not self._others:
            raise self._error("cut off", "is empty")
        self.config = self._checked(digest)

    def _error(self, reason: str, problem: str, advice: str = AGAIN) -> SavedStateError:
        return SavedStateError(self.file, reason, problem, advice)

    def _no_state(self) -> SavedStateError:
        return self._error("no state", "is no saved state", "name a file that `save` wrote")

    def _taken_in(self, stream: Any) -> bytes:
        """Sort the frames; the checksum of all but the last one."""
        seen, digest = hashlib.sha256(), b""
        openings = [(_opening(name), column) for name, column in self._columns.items()]
        room = bytearray(2 * PIECE_BYTES)  # the same memory again and again
        is_first, is_column = True, False
        while head := bytes(_filled(stream, memoryview(room)[:_HEAD_BYTES])):
            length = int.from_bytes(head[1:], "big")
            if head[0] != _BYTES_32 or (len(head) == _HEAD_BYTES and length > MOST_FRAME_BYTES):
                if is_first:
                    raise self._no_state()
                raise self._error("damaged", "does not have the content that was written (frames)")
            if len(head) == _HEAD_BYTES and length > len(room):
                room = bytearray(length)
            body = _filled(stream, memoryview(room)[:length])
            if len(head) < _HEAD_BYTES or len(body) < length:
                raise self._error("cut off", "ends in the middle")
            if is_first and body[: len(_MAGIC)] != _MAGIC:
                raise self._no_state()
            digest = seen.digest()
            seen.update(head)
            seen.update(body)
            is_column = not is_first and _took_piece(body, openings)
            if not is_column:
                self._others.append(bytes(body))
            is_first = False
        if is_column:
            raise self._error("cut off", "ends before its checksum")
        return digest

    def _checked(self, digest: bytes) -> dict[str, Any]:
        """Return its configuration if the last frame has this checksum."""
        end = self._decoded(self._others[-1])
        if not (isinstance(end, list) and len(end) == 2 and end[0] == "end"):
            raise self._error("cut off", "ends before its checksum")
        if end[1] != digest:
            raise self._error("damaged", "does not have the content that was written (checksum)")
        found = self._decoded(self._others[0].removeprefix(_MAGIC))
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise self._no_state()
        if found.get("version") != VERSION:
            problem = f"has version {found.get('version')!r}; this kvspec reads {VERSION}"
            raise self._error("version", problem, "load it with the kvspec that saved it")
        config = found.get("config")
        return config if isinstance(config, dict) else {}

    def _decoded(self, body: bytes) -> Any:
        import cbor2

        try:
            return cbor2.loads(body)
        except Exception as error:  # depth, memory, tags: whatever the bytes are
            raise self._error("damaged", f"holds no CBOR ({type(error).__name__})") from error

    def columns(self) -> Columns:
        """Return the state; ValueError if there is none although the checksum matches."""
        requests: dict[str, RequestState] = {}
        rest: dict[str, Any] = {}
        for body in self._others[1:-1]:
            try:
                name, value = self._decoded(body)
                if name == "requests":
                    requests.update({each: _decoded_row(row) for each, row in value.items()})
                elif name == "rest":
                    rest = checked_members(value, Where("rest"), _REST.required, _REST.optional)
                else:
                    raise ValueError(f"an unknown frame {name!r}")
            except (TypeError, KeyError, AttributeError) as error:
                raise ValueError(f"a frame of another form: {error}") from error
        try:
            arrays: Any = {name: _read(value, CODES[name]) for name, value in self._columns.items()}
        except TypeError as error:
            raise ValueError(f"a column that ends in the middle of a number: {error}") from error
        if not rest:
            raise ValueError("the frame rest is missing")
        made = _REST.made(rest, Where("rest"), requests=requests, **_POOL)
        return Columns(rest=made, **arrays)


def _filled(stream: Any, room: memoryview[int]) -> memoryview[int]:
    """Return the next bytes of a file, fewer at its end."""
    at = 0
    while at < len(room) and (count := stream.readinto(room[at:])):
        at += count
    return room[:at]


def _opening(name: str) -> bytes:
    """Return the first bytes of the frame of a piece of a column."""
    import cbor2

    return cbor2.dumps([name, b""])[:-1]


def _took_piece(body: memoryview[int], openings: list[tuple[bytes, bytearray]]) -> bool:
    """Append a piece of a column to its column; returns whether the frame was one."""
    for opening, column in openings:
        if body[: len(opening)] == opening:
            start = len(opening) + 1
            kind = body[start - 1] - _BYTES if len(body) >= start else -1
            length = kind
            if 24 <= kind <= 27:  # the length takes this many bytes
                start += 1 << kind - 24
                length = int.from_bytes(body[len(opening) + 1 : start], "big")
            if 0 <= kind <= 27 and start + length == len(body):
                column += body[start:]
                return True
    return False


def _little(values: Any, code: str) -> Any:
    """Return the array in the byte order of files, the lowest byte first."""
    if sys.byteorder == "little" or code == "B":
        return values
    turned = array(code, values)
    turned.byteswap()
    return turned


def _read(content: bytearray, code: str) -> memoryview[int]:
    return memoryview(_little(memoryview(content).cast(code), code)).cast("B").cast(code)  # type: ignore[call-overload, no-any-return]  # any code


def _packed(ids: Any, code: str = "i") -> bytes:
    return bytes(_little(array(code, ids), code))


def _unpacked(content: bytes, code: str = "i") -> tuple[int, ...]:
    return tuple(_read(bytearray(content), code).tolist())


def _encoded(state: RequestState) -> list[Any]:
    marks = [None if mark is None else mark.has_allocated for mark in state.mamba]
    return [[_packed(ids) for ids in state.block_ids], list(state.num_cached_blocks), marks]


def _decoded_row(value: Any) -> RequestState:
    lists, counts, marks = value
    mamba = tuple(None if mark is None else MambaState(mark) for mark in marks)
    return RequestState(tuple(map(_unpacked, lists)), tuple(counts), mamba)


def _pairs(content: bytes, code: str = "i") -> tuple[tuple[int, int], ...]:
    flat = _unpacked(content, code)
    return tuple(zip(flat[::2], flat[1::2], strict=True))


_POOL: Mapping[str, Any] = {
    **{"free_queue": (), "ref_counts": (), "block_keys": (), "covered_tokens": ()},
    "lookup_order": {},
}
"""What the columns have."""

_REST = Shape(
    Snapshot,
    forms={
        int: Form(anything, as_it_is),
        "ranks": Form(
            lambda content, _: _unpacked(content, "q"), lambda found: _packed(found, "q")
        ),
        bytes: Form(anything, as_it_is),
        tuple[int, ...]: Form(lambda content, _: _unpacked(content), _packed),
        tuple[tuple[int, int], ...]: Form(
            lambda content, _: _pairs(content), lambda pairs: _packed(chain.from_iterable(pairs))
        ),
        Mapping[int, int]: Form(
            lambda content, _: dict(_pairs(content, "q")),
            lambda found: _packed(chain.from_iterable(found.items()), "q"),
        ),
    },
    sometimes=("ranks",),
    elsewhere=(*_POOL, "requests"),
)
