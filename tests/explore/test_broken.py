"""Planted mistakes of calls and of whole steps, each found by the shortest way."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import kvref
from kvcheck.explore import trace
from kvcheck.explore.bounds import Step
from kvcheck.explore.configurations import manager_of
from kvcheck.explore.search import Exploration, Pair, Violation, explore
from kvcheck.mistakes import find
from kvcheck.records.trace import replay_trace
from kvref.manager import ReferenceManager
from kvspec.blocks import KVCacheBlocks
from kvspec.interface import Feature, Implementation
from kvspec.record_file import read_trace
from kvspec.request import Request
from kvspec.snapshot import Snapshot
from tests.cases import Case, cases
from tests.explore.managers import configuration, explored
from tests.mistakes import mistaken, mistakes, of_kvfast
from tests.stand_ins import Lacks, WithManager

PLANTED = cases(__file__, "planted.txt")
ORDER, LEAK = "TakesFromTheBack in pool", "LeaksUnhashedBlocks in pool"


def by(mistake: str) -> Implementation:
    made: Implementation = find(mistake, (*mistakes(), *of_kvfast())).make()
    return made


def violation_of(planted: str) -> tuple[Violation, Pair]:
    mistake, _, name = planted.partition(" in ")
    subject = by(mistake)
    violation = explored(configuration(name), subject).violation
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


@pytest.mark.parametrize("case", PLANTED, ids=str)
def test_a_planted_bug_is_found_by_the_shortest_way(case: Case) -> None:
    violation, pair = violation_of(case.name)
    told = list(trace.lines(violation, pair))
    assert told[0].startswith(f"{violation.broken.rule} (")
    assert violation.broken.operations[-1][0] in told[-2]
    rule, _, _ = told[0].partition("  ")  # its sentence follows
    last = f"the last of {len(violation.path)} moves: {violation.path[-1][0]}"
    case.expect([last, rule, *told[1:]])


@pytest.mark.parametrize("planted", [ORDER, LEAK])
def test_the_record_is_passed_by_the_reference_and_failed_at_its_end(
    planted: str, tmp_path: Path
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
    assert [violation.broken.rule in line for line in lines[1:]][-2]


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
    path, reason = trace.write_record(*violation_of("ForgetsTheBudget in refusals"), tmp_path)
    assert (path, "whole steps" in reason) == (None, True)


class TurnsTheQueue(ReferenceManager):
    """Asking for a request's blocks changes which one is taken next."""

    def get_blocks(self, request: Request) -> KVCacheBlocks:
        self.pool.free_queue.reverse()
        return super().get_blocks(request)


def test_a_question_that_changes_something_is_found_without_anybody_to_compare_with() -> None:
    found = explore(Exploration(configuration("pool")), Pair(WithManager(TurnsTheQueue))).violation
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
    pair = Pair(kvref.implementation(), WithManager(ShowsNothing))
    found = explore(Exploration(configuration("pool")), pair).violation
    assert found is not None
    broken = found.broken
    assert (broken.rule, broken.name) == ("KV-ERR-1", "answers")
    assert broken.detail == "ZeroDivisionError('not now')"
    assert broken.operations[-1][0] == "allocate_slots"


SMALL = replace(configuration("batched"), prompts=((0, 0),), steps=(Step(1),))


def test_steps_that_are_single_calls_are_right_with_and_without_the_feature() -> None:
    tiny = replace(SMALL, config=manager_of("3; full of 1; max_model_len_tokens=2"))
    beside = explored(tiny, Lacks(Feature.BATCHED))
    assert beside.violation is None
    assert beside.counts == explored(tiny).counts
