"""Steps of a program, the calls that they become, and operations that are no single call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from kvcheck.play.calls import DEFAULTS
from kvcheck.play.performing import perform
from kvcheck.play.player import Player
from kvcheck.play.runner import Runner
from kvcheck.play.steps import Admit, Arrive, Ask, Copy, Program, Release, Run, Step, Take
from kvref.implementation import ReferenceImplementation
from kvspec.config import ManagerConfig
from kvspec.errors import InvalidArgumentError
from kvspec.interface import Feature, Implementation
from kvspec.snapshot import Snapshot
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


GIVEN = replace(CFG, hash_function="given_8")
PROMPT = [1, 2, 3, 4, 5]


def player(config: Any = CFG, implementation: Any = None) -> Player:
    made = implementation or ReferenceImplementation()
    found = Player(made, made.create(config))
    did(found, "new_request", "r0", prompt_token_ids=PROMPT)
    asked = {"num_computed_tokens": 0, "status": "WAITING", "num_new_tokens": 4}
    did(found, "allocate_slots", "r0", **asked)
    return found


def did(player: Player, name: str, request: str | None = None, **arguments: Any) -> Any:
    outcome = player.perform(name, request, arguments)
    assert outcome.error is None
    return outcome.result


def test_what_is_known_of_held_blocks_is_shown_before_and_after() -> None:
    made = player()
    keys = made.requests["r0"].block_hashes
    free = (0, None, None)
    assert did(made, "hold_blocks", block_ids=[1, 5]) == [
        (1, keys[0], 0), free, (2, keys[0], 0), (1, None, None),
    ]  # fmt: skip
    assert (
        did(player(implementation=Lacks(Feature.BLOCK_FACTS)), "hold_blocks", block_ids=[1]) == []
    )


def test_a_request_is_followed_first_to_what_stays_then_to_what_comes() -> None:
    made = player(GIVEN)
    request, kept = made.requests["r0"], made.kept["r0"]
    first = [each.hex() for each in request.block_hashes]
    new = [7, 8, 9]
    told = did(made, "follow", "r0", num_kept=4, token_ids=new, num_prompt=[4, 6])
    assert list(kept.tokens) == [1, 2, 3, 4, 7, 8, 9]
    hashes = [each.hex() for each in request.block_hashes]
    assert told == [7, 6, hashes]
    assert (hashes[:2], len(hashes)) == (first, 3)
    told = did(made, "follow", "r0", num_kept=7, token_ids=[3], num_prompt=[None, None])
    assert told[:2] == [8, 6]
    more = did(made, "append_tokens", "r0", token_ids=[1, 2])
    hashes = [each.hex() for each in request.block_hashes]
    assert more == {"num_tokens": 10, "num_block_hashes": 5, "new_block_hashes": hashes[4:]}


def test_the_blocks_of_a_request_and_which_of_them_have_no_key() -> None:
    made = player(configure(12, full(), full(4)))
    found = did(made, "get_block_ids", "r0")
    assert found == {"blocks": [[1, 2], [3]], "unhashed": [[], []]}


@pytest.mark.parametrize(
    ("name", "request_id", "field"),
    [
        ("no_call", None, "op"),
        ("free", None, "req"),
        ("reset_prefix_cache", "r0", "req"),
        ("free", "r1", "req"),
        ("follow", None, "req"),
    ],
)
def test_what_is_no_operation_is_an_error_of_the_caller(
    name: str, request_id: str | None, field: str
) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        player().perform(name, request_id, {})
    assert caught.value.field == field


class Copies(ReferenceImplementation):
    def __init__(self) -> None:
        super().__init__()
        self.copied: list[tuple[str, object]] = []

    def clone(self, manager: Any) -> Any:
        self.copied.append(("clone", manager.snapshot()))
        return super().clone(manager)

    def restore(self, config: ManagerConfig, snapshot: Snapshot) -> Any:
        self.copied.append((f"restore {config.kv_cache == CFG.kv_cache}", snapshot))
        return super().restore(config, snapshot)


def test_a_copy_goes_on_in_place_of_the_manager_on_both_sides() -> None:
    subject, oracle = Copies(), Copies()
    steps = (Arrive(A), Admit(), Copy(), Run(token=6), Copy(restored=True), Run(token=7))
    runner = Runner(Program(CFG, steps), subject, oracle)
    perform(runner, steps)
    assert [name for name, _ in subject.copied] == ["clone", "restore True"]
    assert oracle.copied == subject.copied
    assert runner.view.snapshot.requests == {}
    for feature in (Feature.CLONE, Feature.RESTORE):
        lacks = Lacks(feature)
        assert asked(CFG, steps, lacks) == asked(CFG, (*steps[:2], *steps[3:4], steps[5]), lacks)
