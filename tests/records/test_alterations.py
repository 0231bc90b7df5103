"""Each single alteration, of an implementation or of a record, is found where it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kvcheck.play.compare import Mismatch
from kvcheck.records.trace import replay_trace
from kvref import ReferenceImplementation
from kvref.manager import ReferenceManager
from kvspec.errors import InvariantViolation
from kvspec.record import Header
from kvspec.record_file import write_trace
from kvspec.request import Request
from kvspec.snapshot import Snapshot
from tests.records.changed import (
    CHANGES,
    FIELDS,
    KEY,
    LARGE,
    SMALL,
    changed,
    fields,
    observed,
    spread,
)
from tests.records.tape import Tape
from tests.stand_ins import WithManager


@pytest.mark.parametrize("name", CHANGES)
def test_every_alteration_of_a_record_is_found(name: str, tmp_path: Path) -> None:
    tape = Tape.read(SMALL)
    for altered in spread(changed(tape.operations, CHANGES[name])):
        path = tmp_path / "altered.jsonl"
        write_trace(path, tape.header, altered.operations, {})
        found = replay_trace(path, ReferenceImplementation())
        assert fields(found.mismatch) == [FIELDS.get(name, "result")]
        assert found.compared == altered.index
        assert found.mismatch is not None
        assert found.mismatch.line == altered.index + 2
        assert found.mismatch.what.startswith(f"operation {altered.index}, ")


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
