"""The chapter on Mamba in mode align: lists, how long they get, and how many blocks that takes."""

from __future__ import annotations

from typing import Any

from kvcheck.rules.bench import Bench
from kvcheck.rules.example import example
from kvcheck.rules.judging import equal
from kvcheck.rules.managed import Managed
from kvcheck.rules.specs import mamba
from kvspec.errors import InvalidArgumentError
from kvspec.interface import Feature
from kvspec.request import Request


def aligned(
    bench: Bench, drafted: int = 0, block_size: int = 4, num_blocks: int = 10, **options: Any
) -> tuple[Managed, Request]:
    """A manager of one aligned group, and a request of 100 tokens."""
    manager = bench.manager(num_blocks, mamba(block_size, "align", speculative=drafted), **options)
    return manager, manager.request("r", range(100))


def stepped(
    bench: Bench, manager: Managed, request: Request, *expected: tuple[int, Any, list[int]]
) -> None:
    """Steps of so many tokens: the answer (if given), and the list afterwards."""
    for tokens, answer, blocks in expected:
        granted = manager.run(request, tokens)
        if answer is not None:
            manager.same(granted, [answer], f"the answer to {tokens} tokens")
        manager.same(manager.lists(request), [blocks], f"the list after {tokens} tokens")


def allocated(bench: Bench, manager: Managed, request: Request) -> bool:
    """Whether the group remembers that the request took blocks."""
    state = manager.snapshot().requests[request.request_id].mamba[0]
    return state is not None and state.has_allocated


@example("KV-MAMBA-9")
def a_first_allocation_pads_with_null(bench: Bench) -> None:
    """A first allocation pads with null; the next state is then the first drafted one."""
    manager, request = aligned(bench, drafted=2)
    padded = [0, 0, 0, 1, 2, 3]
    stepped(
        bench,
        manager,
        request,
        (13, padded, padded),
        (3, [], padded),
        (1, [4], [0, 0, 0, 1, 2, 3, 4]),
    )
    equal(allocated(bench, manager, request), True)


@example("KV-MAMBA-9")
def drafted_states_before_the_running_one_move_to_the_end(bench: Bench) -> None:
    """Drafted states before the running one move to the end, in order."""
    for tokens, answer, blocks in (
        (12, [2, 3, 4], [0, 0, 0, 1, 0, 0, 2, 3, 4]),  # from 6 to 9 entries
        (8, [2, 4], [0, 0, 0, 1, 0, 3, 2, 4]),  # from 6 to 8: 3 is the running state
    ):
        manager, request = aligned(bench, drafted=2)
        manager.run(request, 13)
        stepped(bench, manager, request, (tokens, answer, blocks))


@example("KV-MAMBA-9")
def a_hit_stays_where_it_is(bench: Bench) -> None:
    """A hit stays where it is: entry 1, and 13 tokens end in entry 3."""
    manager = bench.manager(10, mamba(4, "align", speculative=1))
    manager.started("first", range(8))
    manager.new_step_starts()
    second = manager.started("second", range(13))
    manager.same(manager.lists(second), [[0, 1, 0, 3, 4]])
    equal(allocated(bench, manager, second), True)


@example("KV-MAMBA-9")
def an_allocation_whose_list_is_long_enough_takes_nothing(bench: Bench) -> None:
    """An allocation whose list is long enough takes nothing, and is none to remember."""
    manager, request = aligned(bench)
    manager.allocate_slots(request, 0, num_external_computed_tokens=8)
    manager.same(manager.lists(request), [[0, 1]])
    equal(allocated(bench, manager, request), False)
    request.num_computed_tokens = 8
    manager.run(request)
    equal(allocated(bench, manager, request), True)


@example("KV-MAMBA-1", "KV-GRP-2")
def the_state_of_the_last_step_goes_when_the_next_boundary_is_behind(bench: Bench) -> None:
    manager, request = aligned(bench, enable_caching=False)
    for tokens in (13, 7):
        manager.run(request, tokens)
    for computed, blocks in ((13, [0, 0, 0, 1, 2]), (16, [0, 0, 0, 1, 2]), (17, [0, 0, 0, 0, 2])):
        manager.remove_skipped_blocks(request, computed)
        manager.same(manager.lists(request), [blocks], f"the list at {computed}")
    manager.queues([1, *range(3, 10)])


@example("KV-MAMBA-11")
def the_removal_goes_on_past_nulls(bench: Bench) -> None:
    """The removal goes on past nulls: states before a gap are released, the last first."""
    manager, request = aligned(bench, enable_caching=False)
    stepped(bench, manager, request, (5, None, [0, 1]), (15, None, [0, 1, 0, 0, 2]))
    manager.remove_skipped_blocks(request, 20)
    manager.same(manager.lists(request), [[0, 0, 0, 0, 2]])
    manager.queues([1, *range(3, 10)])
    manager, request = aligned(bench, drafted=2, block_size=2, enable_caching=False)
    for tokens in (1, 2):
        manager.run(request, tokens)
    request.num_computed_tokens -= 1  # a draft that is rejected
    manager.run(request, 9)
    before = [1, 2, 0, 0, 0, 3, 4, 5]
    manager.same(manager.lists(request), [before])
    manager.remove_skipped_blocks(request, 11)
    manager.same(manager.lists(request), [[0] * 5 + before[5:]])
    manager.queues([2, 1, 6, 7, 8, 9])


@example("KV-MAMBA-12", "KV-MGR-17")
def freeing_forgets_what_was_remembered(bench: Bench) -> None:
    """Freed or popped, a request starts like a new one and takes 1 + S blocks again."""
    for popped in (False, True):
        manager, request = aligned(bench, drafted=1, enable_caching=False)
        for tokens in (13, 12):
            manager.run(request, tokens)
        if popped:
            manager.free_blocks(manager.pop_blocks_for_free(request)[::-1])
        else:
            manager.free(request)
        request.num_computed_tokens = 0
        equal(manager.need(request, 9), 2)
        manager.run(request, 9)
        equal(len(manager.lists(request)[0]), 4)
        equal(manager.cached_positions(request), [])


@example("KV-MAMBA-6")
def the_list_ends_with_the_running_and_the_drafted_states(bench: Bench) -> None:
    """The list ends with the running and the drafted states, lookahead or not."""
    for lookahead in (0, 7):
        manager = bench.manager(10, mamba(4, "align", speculative=1))
        request = manager.request("r", range(5))
        manager.allocate_slots(request, 5, num_lookahead_tokens=lookahead)
        what = f"{lookahead} tokens of lookahead"
        manager.same(manager.lists(request), [[0, 1, 2]], what)


@example("KV-MAMBA-6", "KV-MGR-4", since="0.2")
def the_main_tokens_end_at_the_longest_sequence(bench: Bench) -> None:
    """The main tokens end at the longest sequence; more are illegal."""
    bench.need(Feature.DRAFTING)
    manager = bench.manager(10, mamba(4, "align"), max_model_len_tokens=8)
    request = manager.request("r", range(6))
    manager.run(request, 6)
    for new in (3, 2**20, 2**40, 2**53 - 1):
        with manager.refuses(InvalidArgumentError):
            manager.allocate_slots(request, new)
    stepped(bench, manager, request, (2, [], [0, 1]))


@example("KV-MAMBA-7", "KV-MGR-18")
def the_need_is_one_state_and_the_drafted_ones_at_first(bench: Bench) -> None:
    """The need is one state and the drafted ones at first, then none within a block, else one."""
    manager, request = aligned(bench, drafted=2)
    equal(manager.need(request, 13), 3)
    manager.run(request, 13)
    equal(manager.num_free_blocks, 6)
    for tokens, need in ((16, 0), (17, 1), (90, 1)):
        found = manager.need(request, tokens, computed=13)
        equal(found, need, f"for {tokens} tokens")
    manager.run(request, 77)
    equal(manager.num_free_blocks, 5)


@example("KV-MAMBA-7", "KV-MGR-18")
def a_list_that_is_long_enough_needs_nothing(bench: Bench) -> None:
    """Without caching, a list that is long enough needs nothing, and one without tokens S."""
    for drafted in (0, 1):
        manager, request = aligned(bench, drafted, enable_caching=False)
        manager.run(request, 13)
        equal(manager.counts(request), (None,))
        found = [manager.need(request, n, computed=13) for n in (16, 17)]
        equal(found, [0, 1], f"in the same entry and in the next, S = {drafted}")
    for drafted, need in ((0, 0), (1, 2), (2, 3)):
        manager, request = aligned(bench, drafted)
        equal(manager.need(request, 0), need, f"no token, S = {drafted}")


@example("KV-MAMBA-7", "KV-MGR-18")
def after_a_load_the_need_is_what_is_taken(bench: Bench) -> None:
    """After a load the need is what is taken, from any length on."""
    cases = ((s, n, e, c) for s in (0, 1, 2) for n in (0, 1, 3) for e in (1, 4, 5, 8, 9, 13, 20)
             for c in (0, 3, 4, 7) if n <= max(8 - e, 0))  # fmt: skip
    for drafted, new, external, computed in cases:
        spec = mamba(4, "align", speculative=drafted)
        manager = bench.manager(30, spec, max_model_len_tokens=8)
        request = manager.request("r", range(60))
        manager.allocate_slots(request, new, num_external_computed_tokens=external)
        request.num_computed_tokens = computed = min(computed, external + new)
        manager.remove_skipped_blocks(request, computed)
        need = manager.need(request, 8, computed=computed)
        before = manager.num_free_blocks
        manager.run(request, 8 - computed)
        what = f"S = {drafted}, {external} external and {new} new tokens, then {computed}"
        equal(before - manager.num_free_blocks, need, what)


@example("KV-MAMBA-7", "KV-GRP-4")
def a_hit_state_that_is_free_counts_in_the_need(bench: Bench) -> None:
    """It is revived, and one more taken; null before it costs nothing."""
    for num_blocks, cached, blocks in ((3, 4, [1, 2]), (2, 4, []), (3, 8, [0, 1, 2]), (2, 8, [])):
        manager = bench.manager(num_blocks, mamba(4, "align"))
        manager.free(manager.started("first", range(cached)))
        manager.new_step_starts()
        second = manager.request("second", range(cached + 4))
        granted = manager.admit(second) is not None
        equal(granted, bool(blocks), f"granted in {num_blocks} blocks")
        manager.same(manager.lists(second), [blocks])


@example("KV-MAMBA-7", "KV-GRP-9")
def a_load_of_a_running_request_takes_one_state(bench: Bench) -> None:
    """A load of a running request takes one state: drafted block 3 is the running one then."""
    for left, blocks in ((1, [0, 0, 0, 3, 2, 4]), (0, None)):
        manager, request = aligned(bench, drafted=2)
        stepped(bench, manager, request, (8, None, [0, 1, 2, 3]))
        reserved = manager.num_free_blocks + 1 - left  # block 1 goes before: s(12 - 2) = 9
        arguments = {"num_external_computed_tokens": 4, "reserved_blocks": reserved}
        answer = manager.allocate_slots(request, 1, **arguments)
        equal(answer is not None, blocks is not None, f"granted with {left} left")
        if blocks:
            manager.same(manager.lists(request), [blocks])
