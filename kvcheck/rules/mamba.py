"""The chapter on Mamba (KV-MAMBA): states in the modes none and all, and what all modes share."""

from __future__ import annotations

from dataclasses import replace

from kvcheck.rules.bench import Bench
from kvcheck.rules.example import cases, example
from kvcheck.rules.judging import equal
from kvcheck.rules.placed import hits
from kvcheck.rules.specs import full, mamba
from kvspec.interface import Feature

MODES = ("none", "all", "align")


@example("KV-MAMBA-1", "KV-GRP-2")
def only_the_state_after_the_last_token_stays(bench: Bench) -> None:
    """Only the state after the last token stays: after 8 tokens the next step reads block 1."""
    for mode in ("none", "all"):
        manager = bench.manager(10, mamba(4, mode))
        request = manager.started("r", range(14))
        for computed, nulls in ((0, []), (4, []), (5, [0]), (8, [0]), (9, [0, 1])):
            manager.remove_skipped_blocks(request, computed)
            found = manager.null_positions(request)
            equal(found, nulls, f"nulls at {computed} tokens, mode {mode}")


@example("KV-MAMBA-2", "KV-MGR-19")
def a_state_of_this_step_is_refused_until_the_next(bench: Bench) -> None:
    """A state of this step is answered, and refused until the next, whatever is free."""
    for mode in MODES:
        manager = bench.manager(100, mamba(4, mode))
        manager.started("first", range(8))
        second = manager.request("second", range(12))
        state = 1 if mode == "align" else 2  # align mode keeps no state after 4 tokens
        hit = manager.get_computed_blocks(second)
        manager.same(hit.blocks, [[0, state]], f"the hit, mode {mode}")
        before = manager.visible()
        for whole in (False, True) if bench.has(Feature.ADMISSION) else (False,):
            arguments = {"full_sequence_must_fit": True} if whole else {}
            answer = manager.admit(second, **arguments)
            equal(answer, None, f"admitted in this step with {arguments}")
            equal(manager.visible(), before)
        manager.new_step_starts()
        equal(manager.admit(second) is not None, True)
        manager.same(manager.lists(second)[0][:2], [0, state])


@example("KV-MAMBA-2")
def an_older_state_is_taken_at_once(bench: Bench) -> None:
    """What counts is the last hit: an older state may be used at once."""
    manager = bench.manager(20, mamba(4))
    first = manager.request("first", range(12))
    manager.admit(first, 4)
    manager.new_step_starts()
    manager.allocate_slots(first, 4)
    for tokens, fits in ((9, False), (8, True)):
        granted = manager.admit(manager.request(str(tokens), range(tokens)))
        equal(granted is not None, fits, f"{tokens} tokens")


@example("KV-MAMBA-2", "KV-POOL-14")
def a_copy_registered_in_this_step_holds_back_the_old_one(bench: Bench) -> None:
    """The key decides: a copy registered in this step holds back the old one."""
    manager = bench.manager(20, mamba(4))
    manager.started("first", range(4))
    manager.new_step_starts()
    manager.allocate_slots(manager.request("second", range(4)), 4)
    third = manager.request("third", range(6))
    manager.same(manager.get_computed_blocks(third).blocks, [[1]])
    for fits in (False, True):
        equal(manager.admit(third) is not None, fits)
        manager.new_step_starts()


@example("KV-MAMBA-2")
def only_the_group_that_registered_a_key_waits_for_it(bench: Bench) -> None:
    manager = bench.manager(40, full(4), mamba(4))
    manager.started("first", range(8))
    manager.new_step_starts()
    again = manager.request("again", range(8))
    manager.allocate_slots(again, 8)  # without the hit: registers both anew
    waiting = manager.request("r", range(9))
    equal(manager.admit(waiting), None)
    manager.keep_cached(again, (), group=1)
    manager.new_step_starts()
    manager.free(again)
    equal(manager.admit(waiting) is not None, True)


@example("KV-MAMBA-2")
def a_call_that_registers_no_state_has_nobody_wait(bench: Bench) -> None:
    """A call that registers no state has nobody wait: a partial entry stays what it was."""
    manager = bench.manager(20, full(4), mamba(8))
    request = manager.request("r", range(14))
    manager.admit(request, 6)
    equal(manager.cache_partial_block(request, 1, 4), True)
    manager.new_step_starts()
    manager.cache_blocks(request, 6)
    equal([*filter(None, manager.snapshot().step_keys)], [], "keys of the step")
    equal(manager.counts(request), (None, None))


@example("KV-MAMBA-2", "KV-PART-5", since="0.2")
def a_partial_entry_of_this_step_has_nobody_wait_for_an_older_state(bench: Bench) -> None:
    # Retention 0 keeps the states after 8 of q's 12 tokens and after 24 of r's 30.
    manager = bench.manager(20, full(4), mamba(8), retention_interval_tokens=0)
    q = manager.request("q", range(12))
    r = manager.request("r", [*range(4), *range(100, 126)])
    for request, tokens in ((q, 12), (r, 6)):
        manager.admit(request, tokens)
        equal(manager.cache_partial_block(request, 1, 4), True)
    manager.new_step_starts()
    manager.run(r, 4)
    if bench.has(Feature.SNAPSHOT):
        equal([*filter(None, manager.snapshot().step_keys)], [], "keys of the step")
    s = manager.request("s", range(12))
    equal(manager.get_computed_blocks(s).hit_length_tokens, 8)
    equal(manager.admit(s) is not None, True)


@example("KV-MAMBA-3")
def a_hit_is_the_rightmost_state(bench: Bench) -> None:
    """A hit is the rightmost state, null before it."""
    for kept in ({0, 1, 2, 3}, {0, 2}, {0}, (), {13}, {3, 14}):
        last = max((place for place in kept if place < 14), default=-1)
        hits(bench, [mamba(4)], [kept], 4 * (last + 1), [{last}])


@example("KV-MAMBA-3")
def a_state_that_is_not_aligned_is_passed_over(bench: Bench) -> None:
    states = mamba(4)
    hits(bench, [full(8), states], [range(7), (0, 1, 2)], 8, [{0}, {1}])
    hits(bench, [full(8), states], [range(7), (0, 2)], 0, [(), ()])
    hits(bench, [full(12), states], [range(4), range(11)], 36, [range(3), {8}])


@example("KV-MAMBA-3", "KV-CFG-8")
def eagle_drops_no_state(bench: Bench) -> None:
    """Eagle drops no state, for it is a whole prefix."""
    hits(bench, [mamba(4)], [range(3)], 12, [{2}], use_eagle=True)


@example("KV-MAMBA-4")
def drafted_states_have_blocks_of_their_own(bench: Bench) -> None:
    """Drafted states have blocks of their own: S = 2, 5 tokens take 2 + 2 blocks, 9 one more."""
    for mode in ("none", "all"):
        manager = bench.manager(10, mamba(4, mode, speculative=2), enable_caching=False)
        request = manager.request("r", range(20))
        equal(manager.need(request, 5), 4, f"at first, mode {mode}")
        manager.admit(request, 5)
        manager.same(manager.lists(request), [[1, 2, 3, 4]])
        for tokens, computed, need in ((8, 5, 0), (9, 8, 1)):
            found = manager.need(request, tokens, computed=computed)
            equal(found, need, f"for {tokens} tokens")


@example("KV-MAMBA-4")
def lookahead_comes_before_drafted_states(bench: Bench) -> None:
    """Lookahead comes before drafted states: 4 tokens and 2 are two blocks, and S = 1 more."""
    manager = bench.manager(10, mamba(4, speculative=1))
    request = manager.request("r", range(4))
    manager.allocate_slots(request, 4, num_lookahead_tokens=2)
    manager.same(manager.lists(request), [[1, 2, 3]])


@example("KV-MAMBA-5", choices=("drafts_hold_states",))
def drafts_may_be_rejected_so_their_states_stay(bench: Bench) -> None:
    """Drafts may be rejected, so their states stay: of 6 tokens with S = 2 only 4 are sure."""
    manager = bench.manager(10, mamba(4, speculative=2))
    request = manager.started("r", range(16))
    for computed, nulls in ((6, []), (7, [0]), (10, [0]), (11, [0, 1])):
        manager.remove_skipped_blocks(request, computed)
        equal(manager.null_positions(request), nulls, f"nulls at {computed} tokens")


@cases((True, [0]), (False, [0, 1]))
@example("KV-POL-21", "KV-MAMBA-5")
def drafts_hold_states_or_not(bench: Bench, chosen: bool, nulls: list[int]) -> None:
    policy = replace(bench.policy, drafts_hold_states=chosen)
    manager = bench.manager(10, mamba(4, speculative=2), policy=policy)
    request = manager.started("r", range(16))
    manager.remove_skipped_blocks(request, 10)
    equal(manager.null_positions(request), nulls)


@example("KV-MAMBA-5", "KV-GRP-4", choices=("drafts_hold_states",))
def the_drafts_count_for_the_removal_only(bench: Bench) -> None:
    """Taking hits skips by s(8) = 7 with S = 6, too; only the removal waits for the drafts."""
    manager = bench.manager(20, mamba(4, speculative=6))
    manager.started("first", range(8))
    manager.new_step_starts()
    second = manager.started("second", range(12))
    manager.same(manager.lists(second)[0][:2], [0, 2])
    for computed, nulls in ((12, [0]), (15, [0, 1])):
        manager.remove_skipped_blocks(second, computed)
        equal(manager.null_positions(second), nulls, f"nulls at {computed} tokens")


@example("KV-MAMBA-5", "KV-GRP-5", "KV-GRP-6")
def the_drafts_do_not_count_for_external_tokens(bench: Bench) -> None:
    """The drafts do not count for external tokens: s(16) = 15 skips 3 blocks."""
    manager = bench.manager(20, mamba(4, speculative=4))
    request = manager.request("r", range(18))
    answer = manager.allocate_slots(request, 1, num_external_computed_tokens=16)
    manager.same(answer, [[2, 3, 4, 5, 6]], "the answer")
    manager.same(manager.lists(request), [[0, 0, 0, 1, 2, 3, 4, 5, 6]])


@example("KV-MAMBA-13", "KV-MGR-15")
def a_group_of_states_has_no_common_prefix(bench: Bench) -> None:
    for mode in MODES:
        manager = bench.manager(20, full(4), mamba(4, mode))
        request = manager.started("r", range(7))
        found = tuple(manager.get_num_common_prefix_blocks(request))
        told = 2 if bench.policy.counts_common_prefix else 0
        equal(found, (told, 0), f"alone, mode {mode}")


@example("KV-MAMBA-1", "KV-MAMBA-3", "KV-POOL-7")
def a_hit_state_is_released_when_the_next_is_there(bench: Bench) -> None:
    """A hit state is kept while its next token is computed, and released when the next is there."""
    manager = bench.manager(8, mamba(4))
    manager.free(manager.started("first", range(8)))
    manager.new_step_starts()
    second = manager.request("second", range(13))
    manager.admit(second, 1)
    manager.same(manager.lists(second), [[0, 2, 3]])
    manager.queues([4, 5, 6, 7, 1])
    manager.run(second)
    manager.same(manager.lists(second), [[0, 0, 3]])
    manager.queues([4, 5, 6, 7, 1, 2])
    equal(manager.cached_positions(second), [])
