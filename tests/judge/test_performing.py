"""What a program asks of a manager: each step with the calls that it becomes."""

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
    Break,
    CachePartial,
    Evict,
    EvictIds,
    FailLoad,
    FinishLoad,
    GiveUp,
    Hold,
    NewStep,
    Program,
    Release,
    Reset,
    Retell,
    ReturnPopped,
    Run,
    Skip,
    Step,
    Take,
)
from kvref.implementation import ReferenceImplementation
from kvspec.config import ManagerConfig
from kvspec.interface import Capabilities, Feature, Implementation
from tests.programs.single import CFG, A, B, configure, full

TWO = configure(12, full(), full(4))
GIVEN = replace(CFG, hash_function="given_8")
PARTIAL = configure(12, full(), full(4), hash_block_size_tokens=2)
CAME = "new_request r0 prompt_token_ids=[1, 2, 3, 4, 5]"
LOOKED = "get_computed_blocks r0 num_preemptions=0"
ADMITTED = (
    CAME,
    LOOKED,
    "allocate_slots r0 num_computed_tokens=0, status='WAITING', num_new_tokens=5,"
    " num_encoder_tokens=3, has_scheduled_reqs=False",
)
FREED = "free r0"


def runs(computed: int, new: int, more: str = "") -> str:
    """A running request asks for slots."""
    return (
        f"allocate_slots r0 num_computed_tokens={computed}, status='RUNNING', num_new_tokens={new}"
        + (f", {more}" if more else "")
    )


PROGRAMS: Mapping[str, tuple[ManagerConfig, Sequence[Step], Sequence[str]]] = {
    "what a request consists of": (
        CFG,
        (
            Arrive(A, salt="s", lora="l", items=(("i", 1, 2),), skip_reading=True),
            Arrive(B, embedded=(1, 2)),
        ),
        (
            f"{CAME}, cache_salt='s', lora={{'name': 'l', 'id': 1}},"
            " mm_features=[{'identifier': 'i', 'offset': 1, 'length': 2}],"
            " skip_reading_prefix_cache=True",
            "new_request r1 prompt_token_ids=[1, 2, 3, 4, 9], prompt_embeddings=[1, 2]",
        ),
    ),
    "everything that an admission may ask": (
        CFG,
        (
            Arrive(A),
            Admit(
                chunk_tokens=3, lookahead_tokens=1, reserved_blocks=1, must_fit=True,
                others_scheduled=True, encoder_tokens=0,
            ),
        ),
        (
            CAME,
            LOOKED,
            "allocate_slots r0 num_computed_tokens=0, status='WAITING', num_new_tokens=3,"
            " num_lookahead_tokens=1, full_sequence_must_fit=True, reserved_blocks=1",
            FREED,
        ),
    ),
    "a hit, and a request that comes again": (
        CFG,
        (
            Arrive(A), Admit(), Release(again=True, later=True), ReturnPopped(2), Admit(), Skip(),
            Release(again=True), GiveUp(), GiveUp(), Take(), NewStep(), Reset(),
        ),
        (
            *ADMITTED,
            "pop_blocks_for_free r0",
            "free_blocks - block_ids=[3, 2]",
            "get_computed_blocks r0 num_preemptions=1",
            "allocate_slots r0 num_computed_tokens=0, status='PREEMPTED', num_new_tokens=1,"
            " num_new_computed_tokens=4, num_encoder_tokens=3, has_scheduled_reqs=False,"
            " new_computed_blocks=[[1, 2]]",
            "remove_skipped_blocks r0 total_computed_tokens=5",
            FREED,
            FREED,
            "make_prefix_cache_stats -",
            "take_new_block_ids -",
            "new_step_starts -",
            "reset_prefix_cache -",
            "free_blocks - block_ids=[1]",
        ),
    ),
    "a load that is awaited": (
        CFG,
        (Arrive(A), Admit(external_tokens=4, load_later=True), Run(), FinishLoad(), Run()),
        (
            CAME,
            LOOKED,
            "allocate_slots r0 num_computed_tokens=0, status='WAITING', num_new_tokens=0,"
            " num_external_computed_tokens=4, delay_cache_blocks=True, num_encoder_tokens=3,"
            " has_scheduled_reqs=False",
            "cache_blocks r0 num_computed_tokens=4",
            runs(4, 1),
            FREED,
        ),
    ),
    "a load that fails, once and not after the next step": (
        CFG,
        (Arrive(A), Admit(external_tokens=4), FailLoad(index=2), FailLoad(), Run(), FailLoad()),
        (
            CAME,
            LOOKED,
            "allocate_slots r0 num_computed_tokens=0, status='WAITING', num_new_tokens=1,"
            " num_external_computed_tokens=4, num_encoder_tokens=3, has_scheduled_reqs=False",
            "evict_blocks - block_ids=[2, 3]",
            runs(2, 3),
            FREED,
        ),
    ),
    "a load that fails once another request shares what it brought": (
        CFG,
        (Arrive(A), Admit(external_tokens=4), Arrive(A), Admit(), FailLoad(), FailLoad(who=1)),
        (
            CAME,
            LOOKED,
            "allocate_slots r0 num_computed_tokens=0, status='WAITING', num_new_tokens=1,"
            " num_external_computed_tokens=4, num_encoder_tokens=3, has_scheduled_reqs=False",
            CAME.replace("r0", "r1"),
            LOOKED.replace("r0", "r1"),
            "allocate_slots r1 num_computed_tokens=0, status='WAITING', num_new_tokens=1,"
            " num_new_computed_tokens=4, num_encoder_tokens=3, has_scheduled_reqs=False,"
            " new_computed_blocks=[[1, 2]]",
            FREED,
            FREED.replace("r0", "r1"),
        ),
    ),
    "a load that cannot fail any more": (
        CFG,
        (Arrive(A), Admit(external_tokens=4), Run(), FailLoad()),
        (
            CAME,
            LOOKED,
            "allocate_slots r0 num_computed_tokens=0, status='WAITING', num_new_tokens=1,"
            " num_external_computed_tokens=4, num_encoder_tokens=3, has_scheduled_reqs=False",
            "append_tokens r0 token_ids=[0]",
            runs(5, 1),
            FREED,
        ),
    ),
    "everything that a running request may ask": (
        CFG,
        (
            Arrive(A),
            Admit(chunk_tokens=2),
            Run(chunk_tokens=2, lookahead_tokens=1, delayed=True, encoder_tokens=3),
            Run(external_tokens=1),
            Run(token=7, drafts=(8, 9), accepted=1),
            Run(ahead=True, token=5, in_flight_tokens=2),
        ),
        (
            CAME,
            LOOKED,
            ADMITTED[-1].replace("num_new_tokens=5", "num_new_tokens=2"),
            runs(2, 2, "num_lookahead_tokens=1, num_encoder_tokens=3, delay_cache_blocks=True"),
            runs(4, 0, "num_external_computed_tokens=1"),
            runs(4, 3),
            "append_tokens r0 token_ids=[8]",
            runs(6, 1, "num_in_flight_tokens=2"),
            "append_tokens r0 token_ids=[5]",
            FREED,
        ),
    ),
    "what changes nothing": (
        TWO,
        (Arrive(A), Admit(), Ask(), Ask(num_tokens=3)),
        (
            *ADMITTED,
            *(
                each
                for tokens, length in ((5, 4), (3, 3))
                for need in (
                    f"get_num_blocks_to_allocate r0 num_tokens={tokens}, total_computed_tokens=5,"
                    f" num_tokens_main_model={tokens}",
                )
                for each in (
                    "get_num_common_prefix_blocks r0",
                    "get_block_ids r0",
                    need,
                    f"{need}, apply_admission_cap=True, num_encoder_tokens=5",
                    f"find_longest_cache_hit_per_group r0 max_cache_hit_length={length}",
                )
            ),
            FREED,
        ),
    ),
    "each group's own hit": (
        TWO,
        (
            Arrive(A), Admit(), Release(again=True), Admit(own_hits=True, external_tokens=1),
        ),
        (
            *ADMITTED,
            FREED,
            "find_longest_cache_hit_per_group r0 max_cache_hit_length=4",
            "allocate_slots r0 num_computed_tokens=0, status='PREEMPTED', num_new_tokens=0,"
            " num_new_computed_tokens=4, num_external_computed_tokens=1, num_encoder_tokens=3,"
            " has_scheduled_reqs=False, new_computed_blocks=[[1, 2], [4]]",
            FREED,
        ),
    ),
    "what is evicted": (
        TWO,
        (
            Arrive(A), Admit(), Evict(index=1, held=True), Evict(group=1),
            Evict(count=3, held=True), EvictIds((1, 13)),
        ),
        (
            *ADMITTED,
            "evict_blocks - block_ids=[2]",
            "evict_blocks - block_ids=[4]",
            "evict_blocks - block_ids=[0, 1, 2, 3]",
            "evict_blocks - block_ids=[1, 1]",
            FREED,
        ),
    ),
    "a boundary inside a block": (
        PARTIAL,
        (Arrive(A), Admit(), CachePartial(group=1), CachePartial(group=0), Run(token=6)),
        (
            *ADMITTED,
            "cache_partial_block r0 group=1, num_tokens=2",
            "append_tokens r0 token_ids=[6]",
            runs(5, 1),
            FREED,
        ),
    ),
    "a boundary whose hash is not known yet, since it looks ahead": (
        replace(PARTIAL, hash_lookahead_tokens=4),
        (Arrive(A), Admit(), CachePartial(group=1)),
        (*ADMITTED, FREED),
    ),
    "a boundary at the end of what is computed": (
        PARTIAL,
        (
            Arrive((1,) * 7), Admit(chunk_tokens=6), CachePartial(group=1, index=1),
            CachePartial(group=1, index=2), Run(chunk_tokens=1), CachePartial(group=3, index=3),
        ),
        (
            CAME.replace("2, 3, 4, 5", "1, 1, 1, 1, 1, 1"),
            LOOKED,
            ADMITTED[-1].replace("new_tokens=5", "new_tokens=6"),
            "cache_partial_block r0 group=1, num_tokens=6",
            "cache_partial_block r0 group=1, num_tokens=2",
            runs(6, 1),
            "cache_partial_block r0 group=1, num_tokens=6",
            FREED,
        ),
    ),
    "blocks that are held, by content, in a list or free": (
        TWO,
        (
            Arrive(A), Admit(), Hold(group=1, count=2, held=True),
            Hold(index=1, count=3, free=True), Hold(), Hold(count=3, held=True), ReturnPopped(2),
            Release(), Hold(), Hold(free=True, index=99),
        ),
        (
            *ADMITTED,
            "hold_blocks - block_ids=[0, 4, 5]",
            "hold_blocks - block_ids=[7, 8, 9, 7]",
            "hold_blocks - block_ids=[1]",
            "hold_blocks - block_ids=[0, 1, 2, 3, 0]",
            "free_blocks - block_ids=[0, 3]",
            FREED,
            "free_blocks - block_ids=[2, 1, 0, 1, 7, 9, 8, 7, 5, 4, 0]",
        ),
    ),
    "of a followed request what is not computed is told again": (
        GIVEN,
        (
            Arrive(A), Retell(fewer=1, tokens=(7,)), Admit(chunk_tokens=3),
            Retell(fewer=9, tokens=(8, 9, 8), is_prompt=True), Run(), Run(token=3),
            Retell(fewer=2, tokens=(1,) * 99), Retell(fewer=200, is_prompt=True),
        ),
        (
            CAME,
            "follow r0 num_kept=4, token_ids=[7], num_prompt=[4, None]",
            LOOKED,
            ADMITTED[-1].replace("new_tokens=5", "new_tokens=3"),
            "follow r0 num_kept=3, token_ids=[8, 9, 8], num_prompt=[3, 6]",
            runs(3, 3),
            "append_tokens r0 token_ids=[3]",
            runs(6, 1),
            f"follow r0 num_kept=7, token_ids={[1] * (CFG.max_model_len_tokens - 7)},"
            " num_prompt=[None, None]",
            "follow r0 num_kept=7, token_ids=[], num_prompt=[None, 7]",
            FREED,
        ),
    ),
    "tokens of a manager that hashes are not told again": (
        CFG, (Arrive(A), Retell(fewer=1, tokens=(7,))), (CAME,),
    ),
}  # fmt: skip


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


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_step_becomes_these_calls(name: str) -> None:
    config, steps, expected = PROGRAMS[name]
    assert asked(config, steps, ReferenceImplementation()) == list(expected)


def test_a_look_up_is_counted_when_its_request_is_admitted() -> None:
    """With its hit and preemptions; what is refused is not (KV-POL-18)."""
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


class Lacks(ReferenceImplementation):
    def __init__(self, feature: Feature) -> None:
        super().__init__()
        self.feature = feature

    @property
    def capabilities(self) -> Capabilities:
        has = super().capabilities
        return replace(has, features=has.features - {self.feature})


@pytest.mark.parametrize("feature", CALL_OF_FEATURE)
def test_what_a_subject_does_not_offer_is_not_asked(feature: Feature) -> None:
    """And everything else is, all the same."""
    steps = (Arrive(A), Admit(), Ask(), Take())
    calls = asked(TWO, steps, ReferenceImplementation())
    left = [call for call in calls if not call.startswith(f"{CALL_OF_FEATURE[feature]} ")]
    assert len(left) < len(calls)
    assert asked(TWO, steps, Lacks(feature)) == left


def test_a_step_that_fits_no_request_asks_nothing() -> None:
    steps = (
        Admit(), Run(), FinishLoad(), FailLoad(), CachePartial(), Skip(), Release(), GiveUp(),
        ReturnPopped(), Evict(), Ask(), Break(),
    )  # fmt: skip
    assert asked(PARTIAL, steps, ReferenceImplementation()) == []
    assert asked(PARTIAL, (Arrive(A), *steps[1:7]), ReferenceImplementation()) == [CAME]
