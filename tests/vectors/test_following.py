"""Who follows the vectors, at which level, and what a record that lies is caught at."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import kvfast
import kvref
from kvcheck.judge.static import find_walk, parting_from
from kvcheck.play.verdicts import Level
from kvcheck.records.trace import replay_trace
from kvref.block_pool import BlockPool
from kvref.implementation import ReferenceImplementation
from kvspec.errors import InvalidArgumentError
from kvspec.interface import Implementation
from kvspec.record_file import write_trace
from tests.mistakes import mistaken
from tests.records.changed import CHANGES, changed
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


@pytest.mark.parametrize(
    "name",
    [
        *("hit blocks", "a longer hit", "not refused", "a prompt's hash", "no error"),
        *("an error where there is none", "an event less", "a statistic", "the free queue"),
        *("the order of duplicates", "usage"),
    ],
)
@pytest.mark.parametrize("subject", [REFERENCE, kvfast.implementation()])
def test_a_tampered_answer_is_rejected_at_its_line(
    name: str, subject: Implementation, tmp_path: Path
) -> None:
    """By the static tier and by `kvspec golden`, which reads it from a file."""
    walk = walks("pool")[0]
    *_, tampered = changed(walk.operations, CHANGES[name])
    number = tampered.index
    parting = parting_from(replace(walk, operations=tampered.operations), subject, Level.IDENTITY)
    assert parting is not None
    assert parting.num_operations == number + 1
    assert len(parting.violation.operations) == number + 1
    path = tmp_path / "tampered.jsonl"
    write_trace(path, walk.header, tampered.operations, {})
    mismatch = replay_trace(path, subject).mismatch
    assert mismatch is not None
    assert mismatch.line == number + 2  # the header is line 1


def test_a_walk_that_is_not_there_is_said() -> None:
    assert find_walk("pool", 1).operations == walks("pool")[0].operations
    for name, number in (("pool", 0), ("pool", 99), ("nobody", 1)):
        with pytest.raises(InvalidArgumentError, match=f"{name}/{number}"):
            find_walk(name, number)
