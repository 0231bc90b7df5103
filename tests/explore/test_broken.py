"""Planted bugs: each is found, by the shortest way, and told in words and as a record."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import kvref
from kvcheck.explore import trace
from kvcheck.explore.search import Exploration, Pair, Violation, explore
from kvcheck.mistakes import find
from kvcheck.records.trace import replay_trace
from kvref.manager import ReferenceManager
from kvspec.blocks import KVCacheBlocks
from kvspec.interface import Implementation
from kvspec.record_file import read_trace
from kvspec.request import Request
from kvspec.snapshot import Snapshot
from tests.explore.exploring import configuration, explored
from tests.explore.test_copies import made_with
from tests.mistakes import mistaken, mistakes, of_kvfast


@dataclass(frozen=True)
class Planted:
    """A mistake, where it is looked for, and what the shortest way there ends with."""

    mistake: str
    name: str
    num_moves: int
    last_move: str
    rule: str


ORDER = Planted("TakesFromTheBack", "pool", 1, "admit", "KV-MGR-7")
LEAK = Planted("LeaksUnhashedBlocks", "pool", 2, "free", "KV-POOL-15")

PLANTED = (
    ORDER,
    Planted("UnhashedRunReversed", "pool", 2, "free", "KV-POOL-6"),
    LEAK,
    Planted("GivesABlockTwice", "pool", 1, "admit", "KV-POOL-15"),
    Planted("TouchLeavesTheBlockFree", "pool", 3, "admit", "KV-POOL-15"),
    Planted("KeepsKeysOfTakenBlocks", "pool", 3, "admit", "KV-POOL-13"),
    Planted("NewestDuplicateFirst", "pool", 2, "admit", "KV-POOL-13"),
    Planted("EvictingOneDuplicateForgetsAll", "pool", 3, "evict", "KV-POOL-13"),
    Planted("ResetsWhileInUse", "pool", 2, "reset", "KV-POOL-11"),
    Planted("SilentEviction", "pool", 2, "evict", "KV-EVT-1"),
    Planted("ReturnedOneByOne", "pool", 3, "illegal", "KV-ERR-2"),
    Planted("OneBlockMustStay", "pool", 2, "admit", "KV-MGR-7"),
    Planted("EvictsUpToTheWrongId", "manager", 2, "illegal", "KV-ERR-2"),
    Planted("TellsOfErrors", "manager", 1, "illegal", "KV-ERR-2"),
    Planted("LastTokenMayHit", "manager", 2, "admit", "KV-MGR-1"),
    Planted("SkipsOneTokenMore", "window", 2, "compute", "KV-POOL-6"),
    Planted("SkipsOneTokenMore", "hybrid", 2, "compute", "KV-MGR-7"),
    Planted("SkipsTheChunkItself", "chunked", 2, "admit", "KV-MGR-1"),
    Planted("FullKeepsTheEagleBlock", "eagle", 2, "admit", "KV-MGR-1"),
    Planted("LookaheadIsForgotten", "eagle", 1, "admit", "KV-MGR-7"),
    Planted("LoadsAreCachedAtOnce", "external", 1, "admit", "KV-POOL-13"),
    Planted("WatermarkForAll", "admission", 3, "compute", "KV-MGR-7"),
    Planted("ReservedBlocksAreTaken", "admission", 3, "admit", "KV-MGR-7"),
    Planted("FreeHitsCostNothing", "mamba", 5, "admit", "KV-ERR-1"),
    Planted("FastPathKeepsPartialKeys", "no-events", 4, "admit", "KV-HASH-6"),
    Planted("LooksNoFurther", "unequal", 3, "admit", "KV-MGR-1"),
    Planted("StatesOfGeneratedTokens", "mamba-retention", 4, "admit", "KV-POOL-13"),
    Planted("WholeFitsWithoutWatermark", "gate", 1, "admit", "KV-MGR-7"),
    Planted("GoesOnAfterARefusal", "refusals", 1, "batch", "KV-BATCH-1"),
    Planted("ReservesForEverybody", "refusals", 1, "batch", "KV-BATCH-1"),
    Planted("NoBoundaryBehindTheRun", "inside-batched", 2, "batch", "KV-BATCH-1"),
    Planted("NeedWithoutTheCopy", "inside-batched", 3, "batch", "KV-ERR-1"),
    Planted("SourceIsLetGo", "inside-batched", 2, "batch", "KV-POOL-16"),
    Planted("CopyIsNotAnswered", "inside-batched", 2, "batch", "KV-MAMBA-9"),
    Planted("CopiesAreNotOwed", "inside-batched", 3, "batch", "KV-POOL-16"),
    Planted("MovedKeysAreUsedAtOnce", "inside-batched", 2, "batch", "KV-MAMBA-2"),
    Planted("NoStateInside", "inside-states", 1, "admit", "KV-MGR-7"),
)


def by(mistake: str) -> Implementation:
    """The implementation that makes this mistake: kvref, or kvfast uncompiled."""
    made: Implementation = find(mistake, (*mistakes(), *of_kvfast())).make()
    return made


def violation_of(planted: Planted) -> tuple[Violation, Pair]:
    """What is found, and between whom."""
    subject = by(planted.mistake)
    violation = explored(configuration(planted.name), subject).violation
    assert violation is not None
    return violation, Pair(kvref.implementation(), subject)


@pytest.mark.deep
@pytest.mark.parametrize(
    ("mistake", "name"),
    [
        ("FastPathKeepsPartialKeys", "partial"),
        ("LooksNoFurther", "eagle"),
        ("StatesOfGeneratedTokens", "retention"),
        ("WholeFitsWithoutWatermark", "admission"),
        ("GoesOnAfterARefusal", "batched"),
        ("ReservesForEverybody", "batched"),
    ],
)
def test_what_only_options_together_show_is_not_found_where_one_is_missing(
    mistake: str, name: str
) -> None:
    exploration = explored(configuration(name), by(mistake))
    assert exploration.is_complete
    assert exploration.violation is None


@pytest.mark.parametrize("planted", PLANTED, ids=lambda each: f"{each.mistake}-{each.name}")
def test_a_planted_bug_is_found_by_the_shortest_way(planted: Planted) -> None:
    violation, pair = violation_of(planted)
    assert violation.broken.rule == planted.rule
    assert [len(violation.path), violation.path[-1][0]] == [planted.num_moves, planted.last_move]
    told = list(trace.lines(violation, pair))
    assert told[0].startswith(f"{planted.rule} (")
    assert violation.broken.operations[-1][0] in told[-2]


def test_the_words_tell_every_call_and_what_is_wrong_after_the_last() -> None:
    violation, pair = violation_of(LEAK)
    assert [line.strip() for line in list(trace.lines(violation, pair))[1:]] == [
        "broken in 'pool' by the last of 2 moves; fewer do not show it",
        f"pool: {configuration('pool').summary}",
        "1  new_request('r0', prompt_token_ids=[0])",
        "2  allocate_slots('r0', num_new_tokens=1, delay_cache_blocks=True,"
        " has_scheduled_reqs=False)  → [[1]]",
        ">   3  free('r0')",
        "free_means_unreferenced: block 1 has no reference but is not free: leaked",
    ]


@pytest.mark.parametrize("planted", [ORDER, LEAK], ids=lambda each: each.mistake)
def test_the_record_is_passed_by_the_reference_and_failed_at_its_end(
    planted: Planted, tmp_path: Path
) -> None:
    violation, pair = violation_of(planted)
    path, reason = trace.write_record(violation, pair, tmp_path / "records")
    assert path is not None, reason
    assert pair.subject is not None
    assert replay_trace(path, pair.oracle).mismatch is None
    mismatch = replay_trace(path, pair.subject).mismatch
    lines = path.read_text(encoding="utf-8").splitlines()
    assert mismatch is not None
    assert mismatch.line == len(lines) - 1
    assert [planted.rule in line for line in lines[1:]][-2]


def test_a_reference_that_is_broken_itself_is_found_by_its_invariants() -> None:
    broken = mistaken("LeaksUnhashedBlocks", audits=True)
    found = explore(Exploration(configuration("pool")), Pair(broken)).violation
    assert found is not None
    assert (found.broken.rule, len(found.path)) == ("KV-POOL-15", 2)


def test_what_no_record_can_hold_is_said(tmp_path: Path) -> None:
    broken = mistaken("GivesABlockTwice", audits=True)
    found = explore(Exploration(configuration("pool")), Pair(broken)).violation
    assert found is not None
    path, reason = trace.write_record(found, Pair(broken), tmp_path)
    assert (path is None) == bool(reason)
    assert path is None or list(read_trace(path))


class TurnsTheQueue(ReferenceManager):
    """Asking for a request's blocks changes which one is taken next."""

    def get_blocks(self, request: Request) -> KVCacheBlocks:
        self.pool.free_queue.reverse()
        return super().get_blocks(request)


def test_a_question_that_changes_something_is_found_without_anybody_to_compare_with() -> None:
    found = explore(Exploration(configuration("pool")), Pair(made_with(TurnsTheQueue))).violation
    assert found is not None
    assert found.broken.operations[-1][0] == "get_block_ids"
    assert (found.broken.rule, found.path[-1][0]) == ("KV-MGR-2", "ask")


@pytest.mark.parametrize(
    ("mistake", "name", "call", "rule"),
    [
        ("ForgetsAHash", "pool", "new_request", "KV-HASH-1"),
        ("HashesTheGrowthTwice", "manager", "append_tokens", "KV-HASH-4"),
    ],
)
def test_other_hashes_are_found_where_a_request_begins_or_grows(
    mistake: str, name: str, call: str, rule: str
) -> None:
    found = explored(configuration(name), mistaken(mistake)).violation
    assert found is not None
    assert found.broken.operations[-1][0] == call
    assert found.broken.rule == rule


def test_a_subject_that_fails_at_what_it_did_before_is_told_with_its_error() -> None:
    """Its path is gone again for each state."""

    class OnlyOnce(type(kvref.implementation())):  # type: ignore[misc]  # a class of a value
        """Managers are made for the start, and for no other state."""

        num_made = 0

        def create(self, config: Any, **how: Any) -> Any:
            self.num_made += 1
            if self.num_made > 2:
                raise ZeroDivisionError("once more")
            return super().create(config, **how)

    found = explored(configuration("pool"), OnlyOnce()).violation
    assert found is not None
    assert (found.broken.rule, found.broken.name) == ("KV-ERR-1", "goes_the_path_again")
    assert (found.broken.detail, found.broken.operations) == ("ZeroDivisionError('once more')", ())


class ShowsNothing(ReferenceManager):
    """Cannot be looked at while it holds something."""

    def snapshot(self) -> Snapshot:
        shown = super().snapshot()
        if shown.requests:
            raise ZeroDivisionError("not now")
        return shown


def test_a_subject_that_cannot_be_looked_at_is_told_with_its_error() -> None:
    """No operation failed, and no rule but that calls answer is known to be broken."""
    pair = Pair(kvref.implementation(), made_with(ShowsNothing))
    found = explore(Exploration(configuration("pool")), pair).violation
    assert found is not None
    broken = found.broken
    assert (broken.rule, broken.name) == ("KV-ERR-1", "answers")
    assert broken.detail == "ZeroDivisionError('not now')"
    assert broken.operations[-1][0] == "allocate_slots"
