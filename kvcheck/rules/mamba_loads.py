"""The chapter on Mamba in mode align: tokens from outside (KV-MAMBA-8)."""

from __future__ import annotations

from kvcheck.rules.bench import Bench
from kvcheck.rules.example import example
from kvcheck.rules.judging import equal
from kvcheck.rules.mamba_align import allocated
from kvcheck.rules.managed import Managed
from kvcheck.rules.specs import mamba
from kvspec.interface import Feature
from kvspec.request import Request


@example("KV-MAMBA-8")
def the_need_with_external_tokens_is_what_is_taken(bench: Bench) -> None:
    """The need with external tokens is what is taken: one block for them, then two."""
    # s(10) = 9 skips two blocks, the state after 10 tokens comes to index 2.
    for num_blocks in (10, 4, 3):
        manager = bench.manager(num_blocks, mamba(4, "align", speculative=1))
        request = manager.request("r", range(14))
        before = manager.visible()
        answer = manager.allocate_slots(request, 3, num_external_computed_tokens=10)
        equal(answer is not None, num_blocks > 3, f"granted in {num_blocks} blocks")
        if answer is None:
            equal(manager.visible(), before)
            continue
        manager.same(answer, [[2, 3]], "the answer")
        manager.same(manager.lists(request), [[0, 0, 1, 2, 3]])


@example("KV-MAMBA-8")
def one_external_token_is_counted(bench: Bench) -> None:
    """One external token is counted: B = 1, a state for it and another for the new one."""
    for left, fits in ((2, True), (1, False)):
        manager = bench.manager(10, mamba(1, "align"))
        request = manager.request("r", range(5))
        arguments = {"num_external_computed_tokens": 1, "reserved_blocks": 9 - left}
        answer = manager.allocate_slots(request, 1, **arguments)
        equal(answer is not None, fits, f"granted with {left} left")
        manager.same(manager.lists(request), [[1, 2] if fits else []])


def behind_a_hit(
    bench: Bench, num_blocks: int, drafted: int, num_hit: int, num_tokens: int, *, free: bool
) -> tuple[Managed, Request]:
    """A request whose first tokens hit a state of an earlier step, free or in use."""
    manager = bench.manager(num_blocks, mamba(4, "align", speculative=drafted))
    first = manager.started("first", range(num_hit))
    if free:
        manager.free(first)
    manager.new_step_starts()
    request = manager.request("second", range(num_tokens))
    hit = manager.get_computed_blocks(request)
    manager.same(hit.blocks, [[0] * (num_hit // 4 - 1) + [1]])
    return manager, request


@example("KV-MAMBA-8")
def a_hit_before_what_is_skipped_of_a_load_is_not_even_touched(bench: Bench) -> None:
    """A hit before what is skipped of a load is not even touched: 4 hit, s(10) = 9."""
    manager, second = behind_a_hit(bench, 10, 0, 4, 14, free=False)
    manager.admit(second, 3, num_external_computed_tokens=6)
    manager.same(manager.lists(second), [[0, 0, 2, 3]])
    equal(allocated(bench, manager, second), True)
    equal(sorted(manager.snapshot().ref_counts)[-4:], [0, 1, 1, 1])


@example("KV-MAMBA-8")
def a_free_hit_that_is_skipped_is_not_needed(bench: Bench) -> None:
    """A free hit that is skipped is not needed: three blocks, and it stays free."""
    for reserved, fits in ((1, True), (2, False)):
        manager, second = behind_a_hit(bench, 5, 1, 8, 20, free=True)
        manager.queues([2, 3, 4, 1])
        arguments = {"num_external_computed_tokens": 8, "reserved_blocks": reserved}
        granted = manager.admit(second, 4, **arguments) is not None
        equal(granted, fits, f"granted beside {reserved}")
        if fits:
            manager.same(manager.lists(second), [[0, 0, 0, 2, 3, 4]])
            manager.queues([1])


@example("KV-MAMBA-8", "KV-MGR-4")
def a_hit_stays_if_the_token_behind_it_is_the_last(bench: Bench) -> None:
    """A hit stays if the token behind it is the last: 8 hit, 1 external, s is taken at 8."""
    # The need: the hit, e = 3 - 2 for the external token, and y. S = 1 and one new token: R = 4
    # and y = 4 - 3. Eight: R = 6, y = 6 - 4. S = 0 and none: R = 3, y = 0.
    bench.need(Feature.DRAFTING)
    for drafted, new, behind in ((1, 1, [2, 3]), (0, 0, [2]), (1, 8, [2, 0, 3, 4])):
        for short_of in (0, 1):
            manager, request = behind_a_hit(bench, 8, drafted, 8, 9, free=True)
            need = 1 + len([*filter(None, behind)])
            before = manager.visible()
            arguments = {"num_external_computed_tokens": 1, "reserved_blocks": 7 - need + short_of}
            granted = manager.admit(request, new, **arguments) is not None
            equal(granted, not short_of, f"S = {drafted}, {new} new, {arguments}")
            if granted:
                manager.same(manager.lists(request), [[0, 1, *behind]])
            else:
                equal(manager.visible(), before)
