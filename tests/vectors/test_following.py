"""Who follows the vectors, at which level, and what a record that lies is caught at."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import kvfast
import kvref
from kvcheck.judge.static import Recorded, find_walk, parting_from
from kvcheck.play.verdicts import Level
from kvcheck.records.trace import replay_trace
from kvref.block_pool import BlockPool
from kvref.implementation import ReferenceImplementation
from kvspec.errors import InvalidArgumentError
from kvspec.interface import Implementation
from kvspec.record import Operation
from kvspec.record_file import write_trace
from tests.mistakes import mistaken
from tests.vectors.having import NAMES, first_parting, walks

REFERENCE = kvref.implementation()
LEVELS = (Level.IDENTITY, Level.BEHAVIOUR)


class CountsFromTheBack(BlockPool):
    """Every block has another number: b is called num_blocks - b, and nothing else is different."""

    def __init__(self, num_blocks: int, **options: Any) -> None:
        super().__init__(num_blocks, **options)
        self.free_queue.reverse()


class TurnsEachRun(BlockPool):
    """Unhashed blocks that come back together are taken in another order: no bijection of ids."""

    def release(self, blocks: Iterable[int]) -> None:
        before = set(self.free_queue)
        super().release(blocks)
        front = []
        while self.free_queue and self.free_queue[0] not in before:
            if self.keys[self.free_queue[0]]:
                break
            front.append(self.free_queue.pop(0))
        self.free_queue[:0] = front[::-1]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", ["pool", "hybrid", "mamba", "external", "partial"])
def test_kvfast_follows_every_walk(name: str, level: Level) -> None:
    assert first_parting(name, kvfast.implementation(), level) is None


@pytest.mark.deep
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", NAMES)
def test_the_reference_and_both_builds_follow_every_walk(name: str, level: Level) -> None:
    for subject in (REFERENCE, kvfast.implementation(), kvfast.uncompiled()):
        assert first_parting(name, subject, level) is None


@pytest.mark.parametrize("pool", [CountsFromTheBack, TurnsEachRun])
@pytest.mark.parametrize("name", ["pool", "manager", "external", "own-hits"])
def test_at_behaviour_block_ids_are_the_subjects_own(name: str, pool: type[BlockPool]) -> None:
    """Hits, popped blocks and evicted ones are named as the subject names them."""
    subject = ReferenceImplementation(pool)
    assert first_parting(name, subject, Level.BEHAVIOUR) is None
    assert first_parting(name, subject, Level.IDENTITY) is not None


def test_order_among_duplicates_is_no_matter_of_ids() -> None:
    """The translation of ids does not hide who is answered."""
    subject = mistaken("NewestDuplicateFirst", audits=True)
    assert first_parting("base", subject, Level.BEHAVIOUR) is not None


def altered(walk: Recorded, number: int, **change: Any) -> Recorded:
    """The walk with one operation changed."""
    operations = list(walk.operations)
    operations[number] = replace(operations[number], **change)
    return replace(walk, operations=tuple(operations))


def observing(operation: Operation, **change: Any) -> dict[str, Any]:
    """The operation with something else observed after it."""
    return {"observed": replace(operation.observed, **change)}


TAMPERED: tuple[tuple[str, Callable[[Operation], bool], Callable[[Operation], dict[str, Any]]], ...]
TAMPERED = (
    (
        "a block of a hit",
        lambda op: op.name == "get_computed_blocks" and op.result["blocks"] != [[]],
        lambda op: {"result": {**op.result, "blocks": [[2]]}},
    ),
    (
        "a hit length",
        lambda op: op.name == "get_computed_blocks",
        lambda op: {"result": {**op.result, "num_computed_tokens": 7}},
    ),
    (
        "a grant",
        lambda op: op.name == "allocate_slots" and op.raises is None and op.result is None,
        lambda op: {"result": [[]]},
    ),
    (
        "a hash",
        lambda op: op.name == "new_request",
        lambda op: {"result": {**op.result, "block_hashes": ["00" * 32] * 2}},
    ),
    (
        "an error that is due",
        lambda op: op.raises is not None,
        lambda op: {"raises": None},
    ),
    (
        "an error that is not",
        lambda op: op.name == "free",
        lambda op: {"raises": "ValueError"},
    ),
    (
        "an event",
        lambda op: op.name == "take_events" and bool(op.result),
        lambda op: {"result": op.result[1:]},
    ),
    (
        "statistics",
        lambda op: op.name == "make_prefix_cache_stats",
        lambda op: {"result": {**op.result, "hits": 99}},
    ),
    (
        "the free queue",
        lambda op: len(op.observed.state.get("free_queue", ())) > 1,
        lambda op: observing(
            op,
            state={**op.observed.state, "free_queue": op.observed.state["free_queue"][::-1]},
        ),
    ),
    (
        "the order of duplicates",
        lambda op: bool(op.observed.dup_order),
        lambda op: observing(
            op, dup_order={key: ids[::-1] for key, ids in (op.observed.dup_order or {}).items()}
        ),
    ),
    (
        "usage",
        lambda op: op.name == "free",
        lambda op: observing(op, usage=op.observed.usage / 2 + 0.1),
    ),
)


@pytest.mark.parametrize(
    ("is_about", "alter"),
    [(is_about, alter) for _, is_about, alter in TAMPERED],
    ids=[what for what, _, _ in TAMPERED],
)
@pytest.mark.parametrize("subject", [REFERENCE, kvfast.implementation()])
def test_a_tampered_answer_is_rejected_at_its_line(
    is_about: Callable[[Operation], bool],
    alter: Callable[[Operation], dict[str, Any]],
    subject: Implementation,
    tmp_path: Path,
) -> None:
    """By the static tier and by `kvspec golden`, which reads it from a file."""
    walk = walks("pool")[0]
    number = [n for n, op in enumerate(walk.operations) if is_about(op)][-1]
    tampered = altered(walk, number, **alter(walk.operations[number]))
    parting = parting_from(tampered, subject, Level.IDENTITY)
    assert parting is not None
    assert parting.num_operations == number + 1
    assert len(parting.violation.operations) == number + 1
    path = tmp_path / "tampered.jsonl"
    write_trace(path, tampered.header, tampered.operations, {})
    mismatch = replay_trace(path, subject).mismatch
    assert mismatch is not None
    assert mismatch.line == number + 2  # the header is line 1


def test_a_walk_that_is_not_there_is_said() -> None:
    assert find_walk("pool", 1).operations == walks("pool")[0].operations
    for name, number in (("pool", 0), ("pool", 99), ("nobody", 1)):
        with pytest.raises(InvalidArgumentError, match=f"{name}/{number}"):
            find_walk(name, number)
