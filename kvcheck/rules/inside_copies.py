"""Hits inside a block: what is taken, copied, moved and waited for (KV-INSIDE-14 …)."""

from __future__ import annotations

from typing import Any

from kvcheck.play.verdicts import Level
from kvcheck.rules.bench import Bench
from kvcheck.rules.example import cases, example
from kvcheck.rules.inside import A, made, next_step, seven, states
from kvcheck.rules.judging import equal, raises
from kvspec.blocks import KVCacheBlocks
from kvspec.errors import InvalidArgumentError, StaleHitError
from kvspec.events import BlockRemoved
from kvspec.inside import BlockCopies


@cases((1, 4), (3, 6))
@example("KV-INSIDE-14", "KV-MGR-18")
def a_hit_inside_a_block_takes_a_block_more_of_each_group(
    bench: Bench, new: int, needed: int
) -> None:
    """Of a free hit of 6 tokens two blocks are revived and two copied. 9 tokens end in a third."""
    manager = made(bench)
    manager.free(seven(manager))
    b = manager.request("b", [*A[:6], 50, 51, 52])
    free = manager.num_free_blocks
    revived = 1  # the first block of full attention
    equal(manager.admit(b, new, reserved_blocks=free - needed - revived + 1), None)
    manager.admit(b, new, reserved_blocks=free - needed - revived)
    equal(free - manager.num_free_blocks, needed + revived)


@cases((0, 1, 2), (1, 2, 3))
@example("KV-INSIDE-14", "KV-INSIDE-16")
def keys_that_move_take_a_block(bench: Bench, drafts: int, first: int, then: int) -> None:
    """After 6 tokens of 7: the seventh takes one block, for the copy."""
    manager = made(bench, states(drafts=drafts))
    request = manager.request("a", A[:7])
    free = manager.num_free_blocks
    manager.run(request, 6)
    equal(free - manager.num_free_blocks, 2 + first)
    manager.new_step_starts()
    equal(manager.need(request, 7, computed=6), 1)
    manager.run(request)
    equal(free - manager.num_free_blocks, 2 + then)


@example("KV-INSIDE-15", "KV-INSIDE-4", level=Level.IDENTITY)
def a_copy_takes_the_place_of_the_block_that_the_hit_ends_in(bench: Bench) -> None:
    manager = made(bench)
    manager.free(seven(manager))
    b = manager.request("b", [*A[:6], 50, 51])
    queue = manager.queue()
    hit = manager.get_computed_blocks(b).blocks.to_lists()
    taken = [block for block in queue if block not in (*hit[0], *hit[1])][:2]
    granted = manager.admit(b)
    equal(granted, KVCacheBlocks(((taken[0],), (taken[1],))))
    equal(manager.lists(b), [[hit[0][0], taken[0]], [0, taken[1]]])
    pairs = ((hit[0][1], taken[0]), (hit[1][1], taken[1]))
    shown = manager.snapshot()
    equal(shown.pending_copies, ((pairs[0],), (pairs[1],)))
    equal([shown.ref_counts[block] for pair in pairs for block in pair], [1, 2, 1, 2])
    copies = manager.take_block_copies()
    equal(copies, BlockCopies(pairs, tuple(block for pair in pairs for block in pair)))
    equal(manager.take_block_copies(), BlockCopies())
    manager.free(b)
    equal(manager.references(), dict.fromkeys(sorted(copies.retained), 1))
    manager.free_blocks(copies.retained)
    equal(manager.references(), {})


@example("KV-INSIDE-16", "KV-INSIDE-3", level=Level.IDENTITY)
def keys_move_away_from_a_state_that_goes_on(bench: Bench) -> None:
    manager = made(bench, enable_events=True)
    request = manager.request("a", A[:7])
    manager.admit(request, 6)
    next_step(manager)
    own, fresh = manager.blocks(request, 1)[1], manager.queue()[0]
    keys = manager.snapshot().block_keys[own]
    manager.take_events()
    equal(manager.run(request), [[], []])
    shown = manager.snapshot()
    equal((shown.block_keys[own], shown.block_keys[fresh]), ((), keys))
    equal((shown.covered_tokens[fresh], shown.ref_counts[own], shown.ref_counts[fresh]), (6, 2, 1))
    equal(manager.take_block_copies().pairs, ((own, fresh),))
    equal([e for e in manager.take_events() if isinstance(e, BlockRemoved)], [])
    equal(manager.admit(manager.request("b", A[:7])), None, "in the step of the copy")


@example("KV-INSIDE-16", "KV-POOL-13")
def a_copy_comes_behind_other_blocks_with_its_key(bench: Bench) -> None:
    manager = made(bench)
    a, b = (manager.request(name, A[:7]) for name in "ab")
    for request in (a, b):
        manager.run(request, 6)
    next_step(manager)
    manager.run(a)
    hit = manager.get_computed_blocks(manager.request("c", A[:7]))
    equal(hit.blocks.groups[1][1], manager.blocks(b, 1)[1])


@example("KV-INSIDE-16", "KV-POOL-13", level=Level.IDENTITY)
def copies_come_one_behind_the_other(bench: Bench) -> None:
    """Three requests leave the state after 6 tokens, and two of them go on."""
    manager = made(bench)
    requests = [manager.request(name, A[:7]) for name in "abc"]
    for request in requests:
        manager.run(request, 6)
    next_step(manager)
    for request in requests[:2]:
        manager.run(request)
    third = manager.blocks(requests[2], 1)[1]
    shown = manager.snapshot()
    (key,) = shown.block_keys[third]
    copies = [fresh for _, fresh in manager.take_block_copies().pairs]
    equal(shown.lookup_order[key], (third, *copies))


@example("KV-INSIDE-17", "KV-INSIDE-6")
def what_this_step_writes_is_not_copied(bench: Bench) -> None:
    """Of b full attention has 8 tokens, but only the state after 6 is kept, which is older."""
    manager = made(bench, retention_interval_tokens=0)
    seven(manager)
    b, c = manager.request("b", A[:13]), manager.request("c", [*A[:8], 50, 51])
    manager.admit(b, 2)
    hit = manager.get_computed_blocks(c)
    equal((hit.hit_length_tokens, hit.blocks.groups[0][1]), (6, manager.blocks(b)[1]))
    equal(manager.admit(c), None)
    next_step(manager)
    manager.admit(c)
    equal(manager.take_block_copies().pairs[0][0], manager.blocks(b)[1])


@example("KV-INSIDE-17")
def what_stands_before_the_written_tokens_is_copied(bench: Bench) -> None:
    """Request a goes on behind the 6 tokens of the hit, in the same step."""
    manager = made(bench)
    request = seven(manager)
    manager.append(request, (8,))
    manager.run(request)
    equal(manager.snapshot().written_from.get(manager.blocks(request)[1]), 7)
    b = manager.request("b", [*A[:6], 50])
    equal(manager.admit(b) is not None, True)
    manager.new_step_starts()
    equal(dict(manager.snapshot().written_from), {})


@example("KV-INSIDE-18", "KV-MGR-8", "KV-ERR-2")
def hits_inside_blocks_are_checked(bench: Bench) -> None:
    manager = made(bench)
    a = seven(manager)
    b = manager.request("b", A[:9])
    hit = manager.get_computed_blocks(b)
    one, other = (list(blocks) for blocks in hit.blocks.groups)

    def allocate(lists: list[list[int]], length: int = 6, **load: Any) -> Any:
        blocks = KVCacheBlocks(tuple(map(tuple, lists)))
        given = {"num_new_computed_tokens": length, "new_computed_blocks": blocks, **load}
        return manager.allocate_slots(b, 2, **given)

    before = manager.snapshot()
    with raises(InvalidArgumentError, field="num_new_computed_tokens"):
        allocate([one, other], num_external_computed_tokens=1)
    with raises(InvalidArgumentError, field="new_computed_blocks[0]"):
        allocate([one[:1], other])
    with raises(StaleHitError, group=0, index=1):
        allocate([[one[0], manager.queue()[0]], other])
    with raises(StaleHitError, group=1, index=1):
        allocate([one, [0, manager.blocks(a, 1)[1]]])
    with raises(StaleHitError, group=0, index=1):
        allocate([one, other], 5)
    with raises(InvalidArgumentError, field="group"):
        manager.cache_partial_block(a, 1, 6)
    equal(manager.snapshot(), before)
    equal(allocate([one, other]) is not None, True)
