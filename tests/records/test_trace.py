"""Replaying traces: what passes, what is left out, what an implementation lacks, how it is said."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kvcheck.discovery import find_implementation
from kvcheck.play.compare import Difference, Mismatch, compare_values
from kvcheck.play.features import FEATURE_OF_OPERATION, QUESTIONS, needed_features
from kvcheck.records.select import find, shipped_records
from kvcheck.records.trace import replay_trace
from kvref import ReferenceImplementation
from kvref.manager import ReferenceManager
from kvspec.config import ManagerConfig
from kvspec.errors import ConfigError, FormatError, InvariantViolation
from kvspec.interface import Feature, KVCacheManager
from kvspec.record import Header, Observed, Operation
from kvspec.record_file import write_trace
from kvspec.request import Request
from kvspec.snapshot import Snapshot
from kvspec.specs import FullAttentionSpec
from tests.judge.declared import Declared
from tests.records.changed import (
    LARGE,
    SMALL,
    Tape,
    alterations,
    assert_is_made_again,
    fields,
    observed,
)
from tests.stand_ins import WithManager

REFERENCE = ReferenceImplementation()
CAPABILITIES = REFERENCE.capabilities


@pytest.mark.parametrize("name", ["life_of_blocks.jsonl", "identities.jsonl"])
def test_the_shipped_records_are_what_the_reference_does(name: str) -> None:
    assert_is_made_again(shipped_records() / name)


def test_every_value_of_a_difference_is_cut_where_it_is_long() -> None:
    long, other = "x" * 400, "y" * 400
    difference = Difference("result", [long], [other], "[0]", long, other)
    assert list(difference.lines(5)) == [
        "result",
        '  expected ["xxx … (404 characters)',
        '  got      ["yyy … (404 characters)',
        "  first at [0]: expected xxxxx … (400 characters), got yyyyy … (400 characters)",
    ]
    assert list(Difference("error", "none", "a\nb").lines(None)) == [
        "error",
        "  expected none",
        f"  got      a\n{' ' * 13}b",
    ]
    assert list(Difference("error", "none", "\ud800").lines(None))[-1] == r"  got      \ud800"


@pytest.mark.parametrize("shows", [True, False])
def test_what_is_asked_after_each_operation_is_foreseen(
    shows: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tape, path = Tape.read(SMALL), SMALL
    if not shows:
        path = tmp_path / "stateless.jsonl"
        shown = (each.observed for each in tape.operations)
        seen = [Observed(each.num_free_blocks, each.usage) for each in shown]
        blind = [
            replace(each, observed=one, uncompared=("state",))
            for each, one in zip(tape.operations, seen, strict=True)
        ]
        write_trace(path, replace(tape.header, initial=None), blind, {})
    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr("kvcheck.records.trace.foresee", lambda _, *names: asked.append(names))
    assert replay_trace(path, REFERENCE).compared == len(tape.operations)
    wanted = ("snapshot", "get_usage") if shows else ("get_usage",)
    assert asked == [wanted] * len(tape.operations)


def quirky() -> Tape:
    return Tape.read(SMALL).altered(20, lambda op: replace(op, quirks=("odd",)))


def test_a_quirk_ends_a_trace_as_passed(tmp_path: Path) -> None:
    tape = quirky().altered(21, lambda op: replace(op, result=[[9]]))
    path = tmp_path / "quirky.jsonl"
    write_trace(path, replace(tape.header, quirks=("odd",)), tape.operations, {})
    found = replay_trace(path, REFERENCE)
    assert found.passed
    assert (found.compared, found.num_quirky, found.quirks) == (20, 14, ("odd",))


def test_a_trace_of_a_block_type_that_is_lacking_is_left_out() -> None:
    without = replace(CAPABILITIES, spec_types=CAPABILITIES.spec_types - {FullAttentionSpec})
    found = replay_trace(SMALL, Declared(without))
    assert (found.passed, found.mismatch, found.compared) == (False, None, 0)
    assert found.lacks == ("FullAttentionSpec",)


class Refusing(Declared):
    def create(self, config: ManagerConfig, **_options: Any) -> KVCacheManager:
        raise ConfigError("config", None, "something else")


def test_a_lack_is_no_excuse_for_an_invalid_configuration(tmp_path: Path) -> None:
    tape = Tape.read(SMALL)
    path = tmp_path / "invalid.jsonl"
    write_trace(path, replace(tape.header, initial=None, raises="ValueError"), (), {})
    without = replace(CAPABILITIES, spec_types=frozenset())
    assert replay_trace(path, Refusing(CAPABILITIES)).passed
    assert not replay_trace(path, Refusing(without)).passed
    assert not replay_trace(path, REFERENCE).passed


def test_a_trace_of_a_hash_function_that_is_lacking_is_left_out() -> None:
    without = replace(CAPABILITIES, hash_functions=frozenset({"xxhash_cbor"}))
    found = replay_trace(SMALL, Declared(without))
    assert found.lacks == ("sha256_cbor",)


@pytest.mark.parametrize("feature", [Feature.SNAPSHOT, Feature.PREFIX_CACHING, Feature.DRAFTING])
def test_a_trace_of_a_feature_that_is_lacking_is_left_out(feature: Feature) -> None:
    without = replace(CAPABILITIES, features=CAPABILITIES.features - {feature})
    tape = Tape.read(SMALL)
    found = replay_trace(SMALL, Declared(without))
    asked = any(feature in needed_features([*tape.operations[:n]]) for n in (len(tape.operations),))
    needed = asked or feature is not Feature.DRAFTING
    assert found.lacks == ((feature,) if needed else ())


def test_questions_that_are_lacking_are_not_asked() -> None:
    asked = {operation.name for operation in Tape.read(SMALL).operations} & QUESTIONS
    assert asked
    lost = {FEATURE_OF_OPERATION[name] for name in asked}
    without = replace(CAPABILITIES, features=CAPABILITIES.features - lost)
    found = replay_trace(SMALL, Declared(replace(without, name="kvref")))
    assert found.passed
    assert 0 < found.compared < len(Tape.read(SMALL).operations)


def test_a_manager_that_cannot_be_built_fails_the_trace() -> None:
    found = replay_trace(SMALL, Refusing(CAPABILITIES))
    assert fields(found.mismatch) == ["error"]
    assert "ConfigError: config = None" in str(found.mismatch)


@pytest.mark.parametrize(
    ("expected", "got", "place"),
    [
        (1, True, ""),
        (1, 1.0, ""),
        (0.0, math.nextafter(0.0, 1), ""),
        (None, 0, ""),
        ([1, 2], [1], "[1]"),
        ([1], [1, 2], "[1]"),
        ({"a": 1}, {}, ".a"),
        ({}, {"b": 1}, ".b"),
        ({"a": [1, {"b": None}]}, {"a": [1, {"b": []}]}, ".a[1].b"),
    ],
)
def test_values_part_where_they_differ(expected: Any, got: Any, place: str) -> None:
    (difference,) = compare_values("f", expected, got)
    assert difference.place == place
    assert list(compare_values("f", expected, expected)) == []


def test_the_example_of_the_format_is_true(root: Path, tmp_path: Path) -> None:
    text = (root / "spec" / "records.md").read_text(encoding="utf-8")
    example = tmp_path / "example.jsonl"
    example.write_text(text.partition("```jsonl\n")[2].partition("```")[0])
    found = replay_trace(example, REFERENCE)
    assert found.passed, found.mismatch and found.mismatch.render()
    assert found.compared == 7


@pytest.mark.shared
@pytest.mark.parametrize(
    "name", ["kvref", "kvfast", pytest.param("kvfast-uncompiled", marks=pytest.mark.deep)]
)
def test_an_implementation_passes_all_shared_traces(name: str, shared: Path) -> None:
    folder = shared / "golden" / "manager"
    if not folder.is_dir():
        pytest.skip(f"{folder} is not here")
    implementation = find_implementation(name)
    paths = find([folder])
    assert len(paths) == 120
    compared = 0
    for candidate in paths:
        found = replay_trace(candidate.path, implementation)
        assert found.passed, found.mismatch and found.mismatch.render()
        compared += found.compared
    assert compared == 12_824


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
