"""Each single alteration, of an implementation or of a record, is found where it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kvcheck.play.compare import Mismatch
from kvcheck.records.trace import replay_trace
from kvref import ReferenceImplementation
from kvref.manager import ReferenceManager
from kvspec.errors import FormatError, InvariantViolation
from kvspec.record import Header, Operation
from kvspec.record_file import write_trace
from kvspec.request import Request
from kvspec.snapshot import Snapshot
from tests.records.changed import LARGE, SMALL, alterations, fields, observed
from tests.records.tape import Tape
from tests.stand_ins import WithManager

MAX_PLACES = 5
"""Of the alterations of a member, so many are tried, evenly spread."""
TAPE = Tape.read(SMALL)


@pytest.mark.parametrize("name", sorted({op.name for op in TAPE.operations}))
def test_every_alteration_of_a_record_is_found(name: str, tmp_path: Path) -> None:
    path, found = tmp_path / "altered.jsonl", set[str]()
    altered: dict[str, list[Operation]] = {}
    for op in TAPE.operations:
        for field, other in alterations(op) if op.name == name else ():
            altered.setdefault(field, []).append(other)
    for field, others in altered.items():
        for op in others[:: -(-len(others) // MAX_PLACES)]:
            operations = [*TAPE.operations[: op.index], op, *TAPE.operations[op.index + 1 :]]
            write_trace(path, TAPE.header, operations, {})
            with suppress(FormatError):
                result = replay_trace(path, ReferenceImplementation())
                assert fields(result.mismatch) == [field]
                assert result.compared == op.index
                assert result.mismatch is not None
                assert result.mismatch.line == op.index + 2
                assert result.mismatch.what.startswith(f"operation {op.index}, ")
                found.add(field)
    assert {"num_free_blocks", "usage", "state.free_queue"} <= found


KEY = "c9d58ba695280d69b243e1e0df813136ca9196b286fb1a021e0b2e028ef071cb"

HEADERS: Mapping[str, tuple[Callable[[Header], Header], list[str]]] = {
    "none hash": (lambda h: replace(h, none_hash=b"\0" * 32), ["none_hash"]),
    "free blocks": (lambda h: _initial(h, num_free_blocks=6), ["num_free_blocks"]),
    "usage": (lambda h: _initial(h, usage=0.5), ["usage"]),
    "state": (
        lambda h: _initial(h, state={**_state(h), "free_queue": [2, 1, 3, 4, 5, 6, 7]}),
        ["state.free_queue"],
    ),
    "duplicates": (lambda h: _initial(h, dup_order={KEY: [1, 2]}), ["dup_order"]),
    "refused": (lambda h: replace(h, initial=None, raises="ValueError"), ["error"]),
}


def _state(header: Header) -> Mapping[str, Any]:
    assert header.initial is not None
    return header.initial.state


def _initial(header: Header, **changes: Any) -> Header:
    assert header.initial is not None
    return replace(header, initial=replace(header.initial, **changes))


@pytest.mark.parametrize("name", HEADERS)
def test_the_freshly_built_manager_is_compared(name: str, tmp_path: Path) -> None:
    change, expected = HEADERS[name]
    tape = Tape.read(SMALL)
    path = tmp_path / "altered.jsonl"
    header = change(tape.header)
    write_trace(path, header, tape.operations if header.initial else (), {})
    found = replay_trace(path, ReferenceImplementation())
    assert fields(found.mismatch) == expected
    assert found.compared == 0
    assert found.mismatch is not None
    assert found.mismatch.line == 1


def test_a_large_pool_is_compared_by_its_hash(tmp_path: Path) -> None:
    tape = Tape.read(LARGE)
    cases: list[tuple[dict[str, Any], list[str]]] = [
        ({"state_sha256": "00" * 32}, ["state_sha256"]),
        ({"state_parts": {}}, ["state_parts.free_queue", "state_parts.ref_cnt"]),
    ]
    for changes, expected in cases:
        altered = tape.altered(2, partial(observed, **changes))
        path = tmp_path / "altered.jsonl"
        write_trace(path, altered.header, altered.operations, {})
        found = replay_trace(path, ReferenceImplementation())
        assert fields(found.mismatch)[: len(expected)] == expected
        assert found.compared == 2


def broken(replayed: Path, **methods: Any) -> Mismatch:
    """Replay a record on a kvref whose manager has these methods."""
    manager: Any = type("Broken", (ReferenceManager,), methods)
    found = replay_trace(replayed, WithManager(manager))
    assert found.mismatch is not None
    return found.mismatch


def test_a_large_pool_names_the_field_that_is_wrong() -> None:
    def swapped(manager: ReferenceManager) -> Snapshot:
        whole = ReferenceManager.snapshot(manager)
        first, second, *rest = whole.free_queue
        late = manager.num_free_blocks <= 92
        return replace(whole, free_queue=(second, first, *rest)) if late else whole

    found = broken(LARGE, snapshot=swapped)
    assert fields(found) == ["state_parts.free_queue", "state_sha256"]
    assert found.line > 2


def test_a_broken_invariant_is_a_mismatch() -> None:
    def free(manager: ReferenceManager, request: Request) -> None:
        raise InvariantViolation("free_blocks_are_unreferenced", "KV-POOL-1", "block 3")

    found = broken(SMALL, free=free)
    assert "InvariantViolation: free_blocks_are_unreferenced" in found.render()


def test_a_snapshot_that_fails_is_a_mismatch() -> None:
    assert fields(broken(SMALL, snapshot=lambda manager: 1 / 0)) == ["snapshot"]
