"""Errors possible only with several groups, windows or states are found by the audit as well."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

import kvref
from kvcheck.rules.specs import full, mamba, sliding
from kvspec.errors import InvariantViolation
from kvspec.interface import Implementation
from kvspec.invariants import INVARIANTS
from kvspec.request import Request
from kvspec.specs import LayerSpec, SinkFullAttentionSpec
from kvspec.transitions import TRANSITION_INVARIANTS
from tests.contract.builders import admit, new_manager, new_request
from tests.mistakes import mistaken

MISTAKES = (
    ("has_the_right_shape", "NullIsMinusOne"),
    ("null_block_is_apart", "ReleasesTheNullBlock"),
    ("free_queue_has_no_duplicates", "QueuesTwice"),
    ("free_means_unreferenced", "LeaksTheWindow"),
    ("references_are_accounted_for", "KeepsTheReferences"),
    ("keys_and_lookups_agree", "LooksUpLostKeys"),
    ("keys_are_listed_once", "PartialKeysTwice"),
    ("keys_are_well_formed", "KeysBehindTheLastGroup"),
    ("cached_blocks_belong_to_their_group", "KeysOfTheFirstGroup"),
    ("a_block_has_one_place", "MovesAndKeeps"),
    ("cached_counts_fit_the_lists", "CountsSkippedHitsTwice"),
    ("nulls_come_first", "KeepsTheFirstBlock"),
    ("keys_of_one_place", "MovesTheRunningState"),
    ("keys_are_covered", "PartialEntriesCoverNothing"),
    ("blocks_set_aside_are_alone", "ListsTheSinks"),
    ("errors_change_nothing", "NeedsOneLess"),
    ("pure_calls_change_nothing", "LookUpEndsTheStep"),
    ("a_refusal_only_releases", "RefusalKeepsHits"),
    ("a_list_only_grows_or_turns_null", "CopiesBeforeWriting"),
    ("states_stay_or_move_to_the_end", "ReplacesDraftedStates"),
    ("blocks_that_stay_keep_their_keys", "EvictsOneTooMany"),
    ("lookups_keep_their_order", "ReleasedCopiesGoLast"),
)
"""Which invariant the audit finds broken by which mistake."""

MIXTURES: tuple[tuple[LayerSpec, ...], ...] = (
    (full(4), sliding(4, 6)),
    (full(4), sliding(16, 20)),
    (full(4), mamba(4), sliding(4, 6)),
    (full(4), mamba(4, "align", speculative=2)),
    (SinkFullAttentionSpec(4, 1, 8, "float16", sink_len=4), sliding(4, 6)),
)


def play(implementation: Implementation, specs: Sequence[LayerSpec], num_blocks: int) -> None:
    """Run two requests with one text, then a third, evict blocks, and fill the pool.

    Legal throughout: only a broken implementation raises.
    """
    manager = new_manager(implementation, num_blocks, specs=specs)
    can_be_partial = len(specs) > 1 and specs[1].block_size > specs[0].block_size

    def begin(name: str, *, hit: bool) -> Request:
        manager.new_step_starts()
        request = new_request(implementation, manager, name, range(40))
        if hit:
            admit(manager, request, 4)
        elif manager.allocate_slots(request, 8) is not None:
            request.num_computed_tokens = 8
        return request

    def go_on(request: Request, num_tokens: int) -> None:
        manager.new_step_starts()
        left = min(num_tokens, request.num_tokens - request.num_computed_tokens)
        if request.num_computed_tokens == 0 or left == 0:
            return
        if manager.allocate_slots(request, left) is not None:
            request.num_computed_tokens += left

    first, second = begin("first", hit=False), begin("second", hit=False)
    if can_be_partial:
        for num_tokens in (8, 4, 4):
            manager.cache_partial_block(first, 1, num_tokens)
    for _ in range(3):
        go_on(first, 9)
        go_on(second, 7)
    manager.get_computed_blocks(new_request(implementation, manager, "asks", range(30)))
    third = begin("third", hit=True)
    go_on(third, 30)
    manager.evict_blocks([1, 2, 3])
    for request in (first, second, third):
        manager.free(request)
    begin("fourth", hit=True)


def play_everything(implementation: Implementation) -> None:
    for specs in MIXTURES:
        for num_blocks in (80, *range(8, 40)):
            play(implementation, specs, num_blocks)


def test_the_reference_breaks_no_invariant() -> None:
    play_everything(kvref.implementation())


@pytest.mark.parametrize(("invariant", "mistake"), MISTAKES)
def test_the_audit_catches_a_mistake(invariant: str, mistake: str) -> None:
    with pytest.raises(InvariantViolation) as caught:
        play_everything(mistaken(mistake, audits=True))
    assert caught.value.invariant == invariant


def test_every_invariant_has_a_mistake() -> None:
    named = {i.name for i in INVARIANTS} | {i.name for i in TRANSITION_INVARIANTS}
    assert {invariant for invariant, _ in MISTAKES} == named - {
        "nothing_is_cached_with_caching_off"
    }
