"""Each single alteration, of an implementation or of a record, is found where it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kvcheck.records.trace import replay_trace
from kvref import ReferenceImplementation
from kvspec.config import ManagerConfig
from kvspec.errors import InvariantViolation
from kvspec.interface import KVCacheManager
from kvspec.record import Header
from kvspec.record_file import write_trace
from kvspec.request import Request, RequestInput
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


@dataclass
class BrokenTwin:
    alter: Callable[[KVCacheManager, str, Any], Any]
    inner: ReferenceImplementation

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def create(self, config: ManagerConfig, *, check_invariants: bool = True) -> Any:
        return BrokenManager(self.inner.create(config), self.alter)

    def make_request(self, manager: Any, request: RequestInput) -> Request:
        return self.inner.make_request(manager.inner, request)

    def append_tokens(self, manager: Any, request: Request, token_ids: tuple[int, ...]) -> None:
        self.inner.append_tokens(manager.inner, request, token_ids)


@dataclass
class BrokenManager:
    inner: KVCacheManager
    alter: Callable[[KVCacheManager, str, Any], Any]

    def __getattr__(self, name: str) -> Any:
        return self.alter(self.inner, name, getattr(self.inner, name))


def twin(alter: Callable[[KVCacheManager, str, Any], Any]) -> Any:
    return BrokenTwin(alter, ReferenceImplementation())


def test_a_large_pool_names_the_field_that_is_wrong() -> None:
    def swapped(manager: KVCacheManager, name: str, member: Any) -> Any:
        if name != "snapshot" or manager.num_free_blocks > 92:
            return member
        snapshot = manager.snapshot()
        first, second, *rest = snapshot.free_queue
        return lambda: replace(snapshot, free_queue=(second, first, *rest))

    found = replay_trace(LARGE, twin(swapped))
    assert fields(found.mismatch) == ["state_parts.free_queue", "state_sha256"]
    assert found.compared > 0


def test_an_exception_of_the_implementation_is_a_mismatch() -> None:
    def crash(manager: KVCacheManager, name: str, member: Any) -> Any:
        return (lambda request: [][3]) if name == "free" else member

    found = replay_trace(SMALL, twin(crash))
    assert fields(found.mismatch)[0] == "error"
    assert found.compared == 17
    assert found.mismatch is not None
    assert found.mismatch.differences[0].got.startswith(
        "IndexError: list index out of range (test_alterations.py:"
    )


def test_a_broken_invariant_is_a_mismatch() -> None:
    def violate(manager: KVCacheManager, name: str, member: Any) -> Any:
        if name != "free":
            return member

        def free(request: Request) -> None:
            raise InvariantViolation("free_blocks_are_unreferenced", "KV-POOL-1", "block 3")

        return free

    found = replay_trace(SMALL, twin(violate))
    assert found.mismatch is not None
    assert "InvariantViolation: free_blocks_are_unreferenced" in found.mismatch.render()


def test_a_snapshot_that_fails_is_a_mismatch() -> None:
    def no_snapshot(manager: KVCacheManager, name: str, member: Any) -> Any:
        return (lambda: 1 / 0) if name == "snapshot" else member

    found = replay_trace(SMALL, twin(no_snapshot))
    assert fields(found.mismatch) == ["snapshot"]


def test_answers_of_another_type_are_differences() -> None:
    def floats(manager: KVCacheManager, name: str, member: Any) -> Any:
        if name == "pop_blocks_for_free":
            return lambda request: [float(block) for block in member(request)]
        return member

    found = replay_trace(SMALL, twin(floats))
    assert fields(found.mismatch)[0] == "error"
    assert "TypeError" in str(found.mismatch)

    def one(manager: KVCacheManager, name: str, member: Any) -> Any:
        return (lambda: int(member())) if name == "reset_prefix_cache" else member

    assert fields(replay_trace(SMALL, twin(one)).mismatch) == ["result"]
