"""R-SWA (KV-RSWA), and windows that retain more than they read (KV-SW-9)."""

from __future__ import annotations

from typing import Any

from kvcheck.rules.bench import Bench
from kvcheck.rules.example import example
from kvcheck.rules.judging import equal, raises
from kvcheck.rules.managed import Managed
from kvcheck.rules.placed import needs_capped
from kvcheck.rules.specs import full, rswa, sliding
from kvspec.blocks import NULL_BLOCK, KVCacheBlocks
from kvspec.errors import StaleHitError


def grown(manager: Managed, num_prompt: int, *steps: int) -> Any:
    """A request of tokens 0, 1, …: those of the prompt, then so many in each step."""
    request = manager.started("r", range(num_prompt))
    for step in steps:
        manager.append(request, range(request.num_tokens, request.num_tokens + step))
        manager.run(request, step)
    return request


@example("KV-RSWA-1", "KV-GRP-2", "KV-POOL-7")
def what_lies_between_prompt_and_window_goes(bench: Bench) -> None:
    """What lies between prompt and window goes: at 18 tokens block 3, at 22 the next."""
    manager = bench.manager(10, rswa(4, 5))
    request = grown(manager, 6, 12)
    for computed, left in ((16, [1, 2, 3, 4, 5]), (17, [1, 2, 0, 4, 5]), (18, [1, 2, 0, 4, 5])):
        manager.remove_skipped_blocks(request, computed)
        manager.same(manager.lists(request), [left], f"at {computed}")
    manager.append(request, range(18, 23))
    manager.run(request, 4)
    manager.run(request)
    manager.same(manager.lists(request), [[1, 2, 0, 0, 5, 6]], "at 22")
    manager.free(request)
    manager.queues([6, 7, 8, 9, 3, 4, 5, 2, 1])


@example("KV-RSWA-1", "KV-POOL-7", "KV-MGR-14")
def the_gap_is_released_last_block_first(bench: Bench) -> None:
    """The gap is released in one call, the last block first; the prompt stays."""
    manager = bench.manager(10, rswa(4, 1))
    request = grown(manager, 4, 17)
    manager.remove_skipped_blocks(request, 21)
    manager.same(manager.lists(request), [[1, 0, 0, 0, 0, 6]])
    manager.queues([7, 8, 9, 5, 4, 3, 2])
    equal(manager.counts(request), (5,))


@example("KV-RSWA-1", "KV-MGR-21")
def the_gap_follows_what_is_processed(bench: Bench) -> None:
    """The gap follows what is processed, not what is in flight."""
    manager = bench.manager(10, rswa(4, 1))
    request = grown(manager, 4)
    manager.append(request, range(4, 10))
    manager.run(request, 5)
    request.num_in_flight_tokens = 1
    manager.run(request)
    manager.same(manager.lists(request), [[1, 2, 3]], "with one in flight")
    manager.append(request, [10])
    manager.run(request)
    manager.same(manager.lists(request), [[1, 0, 3]], "a token later")


@example("KV-RSWA-2", "KV-COORD-6", "KV-FULL-7")
def hits_of_rswa_are_those_of_full_attention(bench: Bench) -> None:
    """Hits of R-SWA are those of full attention, generated tokens and the gap included."""
    manager = bench.manager(20, full(4), rswa(4, 5))
    request = grown(manager, 6, *[1] * 13)
    manager.same(manager.lists(request)[1], [3, 4, 0, 8, 10], "the list")
    common = tuple(manager.get_num_common_prefix_blocks(request))
    if manager.real.config.policy.counts_common_prefix:
        equal(common, (5, 2))
    again = manager.request("again", range(19))
    hit = manager.get_computed_blocks(again)
    manager.same(hit.blocks, ((1, 2, 5, 7), (3, 4, 6, 8)), "the hit")
    manager.evict_blocks(hit.blocks.to_lists()[1][2:3])
    equal(manager.get_computed_blocks(again).hit_length_tokens, 8)


@example("KV-SW-9", "KV-SW-1", "KV-GRP-2")
def retained_tokens_keep_their_blocks(bench: Bench) -> None:
    """Retained tokens keep their blocks: 3 of them one block, at 13 tokens."""
    for extra, left in ((0, [0, 0, 3, 4]), (3, [0, 2, 3, 4]), (5, [1, 2, 3, 4])):
        manager = bench.manager(10, sliding(4, 6, extra_retained_tokens=extra))
        request = manager.started("r", range(13))
        manager.remove_skipped_blocks(request, 13)
        manager.same(manager.lists(request), [left], f"with {extra}")


@example("KV-SW-9", "KV-SW-7", "KV-GRP-4")
def admission_counts_retained_tokens(bench: Bench) -> None:
    """Admission counts retained tokens: cdiv(5 + 4 + 8, 4) + 1 blocks."""
    for extra, most in ((0, 5), (4, 6)):
        needs_capped(bench, sliding(4, 6, extra_retained_tokens=extra), (8, 200, 100, most))


@example("KV-SW-9", "KV-SW-3", "KV-MGR-8", "KV-GRP-5")
def hits_are_those_of_the_window(bench: Bench) -> None:
    """Hits are those of the window alone, null where nobody reads; such a null is legal."""
    manager = bench.manager(20, sliding(4, 6, extra_retained_tokens=7))
    manager.started("a", range(17))
    request = manager.request("b", range(17))
    hit = manager.get_computed_blocks(request)
    manager.same(hit.blocks, ((0, 0, 3, 4),), "the hit")
    manager.admit(request)
    manager.same(manager.lists(request), [[0, 0, 3, 4, 6]])
    wrong = KVCacheBlocks(([NULL_BLOCK, NULL_BLOCK, NULL_BLOCK, hit.blocks.to_lists()[0][3]],))
    other = manager.request("c", range(17))
    with raises(StaleHitError):
        manager.allocate_slots(other, 1, num_new_computed_tokens=16, new_computed_blocks=wrong)
