"""The bytes of a saved state: frames of CBOR, and a checksum at the end (`spec/saved.md`)."""

from __future__ import annotations

import hashlib
import sys
from array import array
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from kvspec.columns import CODES, Columns
from kvspec.errors import SavedStateError
from kvspec.snapshot import MambaState, RequestState, Snapshot

FORMAT = "kvspec-state"
VERSION = 1
PIECE_BYTES = 2**20
"""A column is written in pieces of so many bytes, so that no reader or writer needs room twice."""
MOST_FRAME_BYTES = 2**28
REQUESTS_PER_FRAME = 1024

_MAGIC = b"\xd9\xd9\xf7"  # "this is CBOR"
_BYTES_32 = 0x5A  # a byte string whose length follows in 4 bytes
_HEAD_BYTES = 5
_AGAIN = "save the state again, or start with an empty cache"


def write_state(file: BinaryIO, config: Mapping[str, Any], columns: Columns) -> None:
    """The whole file."""
    import cbor2

    seen = hashlib.sha256()

    def put(body: bytes) -> None:
        frame = bytes([_BYTES_32]) + len(body).to_bytes(4, "big") + body
        seen.update(frame)
        file.write(frame)

    head = {"format": FORMAT, "version": VERSION, "config": dict(config)}
    put(_MAGIC + cbor2.dumps(head))
    put(cbor2.dumps(["rest", _encoded_rest(columns.rest)]))
    requests = iter(columns.rest.requests.items())
    while rows := dict(islice(requests, REQUESTS_PER_FRAME)):
        put(cbor2.dumps(["requests", {name: _encoded(row) for name, row in rows.items()}]))
    for name, code in CODES.items():
        column = memoryview(_little(getattr(columns, name), code)).cast("B")
        for start in range(0, len(column), PIECE_BYTES):
            put(cbor2.dumps([name, bytes(column[start : start + PIECE_BYTES])]))
    put(cbor2.dumps(["end", seen.digest()]))


class StateReader:
    """A file whose checksum is right. `config` is that of its first frame, as JSON has it.

    Raises OSError, and SavedStateError for everything that is not a state of this version.
    """

    def __init__(self, path: Path) -> None:
        self.file = str(path)
        self._stream = path.open("rb")
        try:
            self.config = self._checked()
        except BaseException:
            self._stream.close()
            raise

    def __enter__(self) -> StateReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()

    def _error(self, reason: str, problem: str, advice: str = _AGAIN) -> SavedStateError:
        return SavedStateError(self.file, reason, problem, advice)

    def _checked(self) -> dict[str, Any]:
        """Read all of it once; its configuration."""
        seen, before = hashlib.sha256(), b""
        head = last = b""
        for number, body in enumerate(self._frames()):
            seen.update(before)
            before = bytes([_BYTES_32]) + len(body).to_bytes(4, "big") + body
            head = head or body
            last = body
            if number == 0 and not body.startswith(_MAGIC):
                raise self._error("no state", "is no saved state", "name a file that `save` wrote")
        if not head:
            raise self._error("cut off", "is empty")
        end = self._decoded(last)
        if not (isinstance(end, list) and len(end) == 2 and end[0] == "end"):
            raise self._error("cut off", "ends before its checksum")
        if end[1] != seen.digest():
            raise self._error("damaged", "does not have the content that was written (checksum)")
        found = self._decoded(head.removeprefix(_MAGIC))
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise self._error("no state", "is no saved state", "name a file that `save` wrote")
        if found.get("version") != VERSION:
            problem = f"has version {found.get('version')!r}; this kvspec reads {VERSION}"
            raise self._error("version", problem, "load it with the kvspec that saved it")
        config = found.get("config")
        return config if isinstance(config, dict) else {}

    def _frames(self) -> Iterator[bytes]:
        """The content of each frame."""
        self._stream.seek(0)
        while head := self._stream.read(_HEAD_BYTES):
            length = int.from_bytes(head[1:], "big")
            if head[0] != _BYTES_32 or (len(head) == _HEAD_BYTES and length > MOST_FRAME_BYTES):
                if self._stream.tell() <= _HEAD_BYTES:
                    raise self._error(
                        "no state", "is no saved state", "name a file that `save` wrote"
                    )
                raise self._error("damaged", "does not have the content that was written (frames)")
            body = self._stream.read(length) if len(head) == _HEAD_BYTES else b""
            if len(head) < _HEAD_BYTES or len(body) < length:
                raise self._error("cut off", "ends in the middle")
            yield body

    def _decoded(self, body: bytes) -> Any:
        import cbor2

        try:
            return cbor2.loads(body)
        except Exception as error:  # depth, memory, tags: whatever the bytes are
            raise self._error("damaged", f"holds no CBOR ({type(error).__name__})") from error

    def columns(self) -> Columns:
        """The state. ValueError, and what is one, where it is none although its checksum fits."""
        columns = {name: bytearray() for name in CODES}
        requests: dict[str, RequestState] = {}
        rest: dict[str, Any] = {}
        for body in islice(self._frames(), 1, None):
            try:
                name, value = self._decoded(body)
                if name in columns:
                    columns[name] += value
                elif name == "requests":
                    requests.update({each: _decoded_row(row) for each, row in value.items()})
                elif name == "rest":
                    rest = _decoded_rest(value)
                elif name != "end":
                    raise ValueError(f"an unknown frame {name!r}")
            except (TypeError, KeyError, AttributeError) as error:
                raise ValueError(f"a frame of another form: {error}") from error
        arrays: Any = {name: _read(value, CODES[name]) for name, value in columns.items()}
        if not rest:
            raise ValueError("the frame rest is missing")
        return Columns(rest=Snapshot(requests=requests, **rest), **arrays)


def _little(values: Any, code: str) -> Any:
    """The array as it stands in files, the lowest byte first."""
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


def _encoded_rest(rest: Snapshot) -> dict[str, Any]:
    return {
        "num_blocks": rest.num_blocks,
        "none_hash": rest.none_hash,
        "popped_blocks": _packed(rest.popped_blocks),
        "new_block_ids": [_packed(ids) for ids in rest.new_block_ids],
        "step_keys": [sorted(keys) for keys in rest.step_keys],
        "reserved_blocks": _packed(rest.reserved_blocks),
        "pending_copies": [
            _packed([block for pair in pairs for block in pair]) for pairs in rest.pending_copies
        ],
        "written_from": _packed([n for pair in rest.written_from.items() for n in pair], "q"),
    }


def _pairs(content: bytes, code: str = "i") -> tuple[tuple[int, int], ...]:
    flat = _unpacked(content, code)
    return tuple(zip(flat[::2], flat[1::2], strict=True))


def _decoded_rest(value: Any) -> dict[str, Any]:
    each: dict[str, Callable[[Any], Any]] = {
        "num_blocks": int,
        "none_hash": bytes,
        "popped_blocks": _unpacked,
        "new_block_ids": lambda groups: tuple(map(_unpacked, groups)),
        "step_keys": lambda groups: tuple(map(frozenset, groups)),
        "reserved_blocks": _unpacked,
        "pending_copies": lambda groups: tuple(map(_pairs, groups)),
        "written_from": lambda content: dict(_pairs(content, "q")),
    }
    pool = {"free_queue": (), "ref_counts": (), "block_keys": (), "covered_tokens": ()}
    return {name: read(value[name]) for name, read in each.items()} | pool | {"lookup_order": {}}
