"""Whole steps with one mistake each, of the tests that have them, as mutants (KV-BATCH-*)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType

from kvspec.sequential import SequentialManager
from tests.judge.broken_batches import MISTAKES, WithSteps
from tests.mutants.make import Mutant, Mutated

WHAT_IS_WRONG: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "ForgetsTheBudget": ("KV-BATCH-8", "New entries are bound by no budget."),
        "GoesOnAfterARefusal": ("KV-BATCH-8", "Entries behind a refused one are tried."),
        "ForgetsLookahead": ("KV-BATCH-6", "Nothing is allocated ahead."),
        "NeverStartsAStep": ("KV-BATCH-1", "No step starts."),
        "ReservesForEverybody": ("KV-BATCH-7", "No blocks are kept from new entries."),
        "TakesBoolsForInts": ("KV-BATCH-3", "A bool is a handle."),
        "NamesThePlan": ("KV-BATCH-2", "An error names the plan, not the entry."),
        "ChecksTooLate": ("KV-BATCH-2", "Requests end before the rest of the plan is checked."),
        "DecodesBeforeItPreempts": ("KV-BATCH-1", "Preempted requests are freed last."),
        "CountsNoPreemption": ("KV-BATCH-5", "A preemption is not counted."),
        "LeavesFinishedRunning": ("KV-BATCH-5", "What ended has the status RUNNING."),
        "SaysNothingNew": ("KV-BATCH-10", "What a request gave back still counts as reported."),
        "ComputesLater": ("KV-BATCH-6", "Granted tokens count as computed in the next step."),
        "TellsNoHit": ("KV-BATCH-7", "The hit of a new entry is told as 0."),
        "StaysWaiting": ("KV-BATCH-7", "An admitted request keeps its status."),
        "LooksUpTwice": ("KV-BATCH-7", "A new entry is looked up twice, and counted so."),
        "IsAlwaysBesideOthers": ("KV-BATCH-7", "The first entry is told that others run."),
        "LastReleasedFirst": ("KV-BATCH-4", "The handle released last is used first."),
        "WritesOneSlotTooMany": ("KV-BATCH-9", "The place behind the last slot is written."),
        "SlotsBehindTheirPlace": ("KV-BATCH-9", "Every slot is one too high."),
        "TellsEverythingAgain": ("KV-BATCH-10", "Rows that were reported are reported again."),
        "LeavesOutTheRest": ("KV-BATCH-11", "Rows that do not fit are lost."),
        "CountsNothingPending": ("KV-BATCH-11", "No rows are ever left."),
        "RewindsTooFar": ("KV-BATCH-12", "A rewind takes one token more."),
        "AppendsOneEach": ("KV-BATCH-12", "Each request gets one token, whatever the counts."),
        "LooksUpInvisibly": ("KV-BATCH-12", "A look-up clears the statistics."),
        "ForeseesTheBack": ("KV-BATCH-13", "The blocks that are taken last are told."),
        "LeavesOutNulls": ("KV-BATCH-13", "Null entries of lists are not counted."),
    }
)
"""Of each mistake: the rule that it breaks, and what is wrong."""


class BrokenSteps(WithSteps, Mutated):
    """The reference, never audited, with other whole steps."""


def _of(mistake: type[SequentialManager]) -> Mutant:
    rule, about = WHAT_IS_WRONG[mistake.__name__]
    return Mutant(mistake.__name__, (rule,), about, partial(BrokenSteps, mistake), (mistake,))


MUTANTS = tuple(map(_of, MISTAKES))
