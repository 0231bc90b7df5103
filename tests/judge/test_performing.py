"""Each step of a program with the calls of the manager that it becomes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from kvcheck.play.calls import DEFAULTS
from kvcheck.play.performing import perform
from kvcheck.play.runner import Runner
from kvcheck.play.steps import (
    Admit,
    Arrive,
    Ask,
    Program,
    Release,
    Step,
    Take,
)
from kvref.implementation import ReferenceImplementation
from kvspec.config import ManagerConfig
from kvspec.interface import Feature, Implementation
from tests.cases import Case, cases
from tests.programs import CFG, A, configure, configured, full, steps_of
from tests.stand_ins import Lacks

TWO = configure(12, full(), full(4))
PARTIAL = configure(12, full(), full(4), hash_block_size_tokens=2)
CASES = cases(__file__, "performing.txt")


def asked(
    config: ManagerConfig, steps: Sequence[Step], subject: Implementation, counted: str = "asked"
) -> list[str]:
    """The calls in words, without arguments that are the call's defaults."""
    policy = replace(config.policy, lookups_counted=counted)
    runner = Runner(Program(replace(config, policy=policy), tuple(steps)), subject)
    perform(runner, steps)
    return [
        " ".join((name, request or "-", ", ".join(arguments_of(name, given)))).rstrip()
        for name, request, given in runner.operations
    ]


def arguments_of(name: str, given: Mapping[str, Any]) -> list[str]:
    usual = DEFAULTS.get(name, {})
    return [f"{k}={v!r}" for k, v in given.items() if k not in usual or usual[k] != v]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_step_becomes_these_calls(case: Case) -> None:
    first, *lines = case.given
    case.expect(asked(configured(first), tuple(steps_of(*lines)), ReferenceImplementation()))


def test_a_look_up_is_counted_when_its_request_is_admitted() -> None:
    steps = (Arrive(A), Admit(reserved_blocks=99), Admit(), Release(again=True), Admit())
    told = map(str.split, asked(CFG, steps, ReferenceImplementation(), "admitted"))
    made = [words[2:] for words in told if words[0].startswith("record_")]
    assert made == [["num_hits=0,", "num_preemptions=0"], ["num_hits=4,", "num_preemptions=1"]]


CALL_OF_FEATURE = {
    Feature.COMMON_PREFIX: "get_num_common_prefix_blocks",
    Feature.UNHASHED_BLOCKS: "get_block_ids",
    Feature.NEED: "get_num_blocks_to_allocate",
    Feature.HITS_PER_GROUP: "find_longest_cache_hit_per_group",
    Feature.NEW_BLOCK_IDS: "take_new_block_ids",
}


@pytest.mark.parametrize("feature", CALL_OF_FEATURE)
def test_what_a_subject_does_not_offer_is_not_asked(feature: Feature) -> None:
    steps = (Arrive(A), Admit(), Ask(), Take())
    calls = asked(TWO, steps, ReferenceImplementation())
    left = [call for call in calls if not call.startswith(f"{CALL_OF_FEATURE[feature]} ")]
    assert len(left) < len(calls)
    assert asked(TWO, steps, Lacks(feature)) == left


def test_a_step_that_fits_no_request_asks_nothing() -> None:
    nobody = "run; finish_load; fail_load; cache_partial; skip; release"
    steps = steps_of(f"admit; {nobody}; give_up; return_popped; evict; ask; break")
    assert asked(PARTIAL, tuple(steps), ReferenceImplementation()) == []
    calls = asked(PARTIAL, (Arrive(A), *steps_of(nobody)), ReferenceImplementation())
    assert calls == ["new_request r0 prompt_token_ids=[1, 2, 3, 4, 5]"]
