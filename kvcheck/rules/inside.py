"""The chapter on hits inside a block (KV-INSIDE): B = 4, h = 2, unless it is said otherwise."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvcheck.rules.bench import Bench
from kvcheck.rules.example import cases, example
from kvcheck.rules.judging import equal
from kvcheck.rules.managed import Managed
from kvcheck.rules.specs import full, mamba
from kvspec.events import BlockRemoved, BlockStored
from kvspec.inside import BlockCopies
from kvspec.specs import MambaSpec

A = range(1, 31)


def states(alignment: int | None = None, drafts: int = 0) -> MambaSpec:
    """Mode align; with an alignment steps also leave states inside their chunks."""
    checkpoints = {
        "num_prefill_checkpoint_blocks": 1,
        "prefill_checkpoint_alignment": alignment,
    }
    spec = mamba(4, "align", speculative=drafts)
    return spec if alignment is None else replace(spec, **checkpoints)  # type: ignore[arg-type]  # its members


def made(bench: Bench, spec: MambaSpec | None = None, **options: Any) -> Managed:
    """Full attention beside states."""
    policy = replace(bench.policy, hits_inside_blocks=options.pop("chosen", True))
    layers = options.pop("layers", (full(4), spec or states()))
    return bench.manager(60, *layers, hash_block_size_tokens=2, policy=policy, **options)


def next_step(manager: Managed) -> BlockCopies:
    """The copies of a step, which is over."""
    copies: BlockCopies = manager.take_block_copies()
    manager.free_blocks(copies.retained)
    manager.new_step_starts()
    return copies


def seven(manager: Managed) -> Any:
    """A request of 7 tokens, computed in steps of 6 and 1: the state after 6 is kept."""
    request = manager.request("a", A[:7])
    manager.admit(request, 6)
    next_step(manager)
    manager.run(request)
    next_step(manager)
    return request


def covered(manager: Managed, request: Any, group: int = 1) -> list[int]:
    """What the primary key of each block of the list covers."""
    shown = manager.snapshot().covered_tokens
    return [shown[block] for block in manager.blocks(request, group)]


@cases((True, 6), (False, 0))
@example("KV-POL-24", "KV-INSIDE-1")
def hits_end_inside_a_block_where_it_is_chosen(bench: Bench, chosen: bool, length: int) -> None:
    manager = made(bench, chosen=chosen)
    seven(manager)
    hit = manager.get_computed_blocks(manager.request("b", A[:8]))
    equal(hit.hit_length_tokens, length)


@cases((False, 7, 6, 2), (False, 5, 4, 1), (False, 3, 0, 0), (True, 7, 4, 1))
@example("KV-INSIDE-7", "KV-INSIDE-9")
def full_attention_hits_up_to_a_boundary_inside_the_next_block(
    bench: Bench, drops: bool, limit: int, length: int, num_blocks: int
) -> None:
    manager = made(bench, eagle_groups=[0] if drops else [])
    seven(manager)
    hits = manager.find_longest_cache_hit_per_group(manager.request("b", A[:8]), limit)
    equal(hits.hit_lengths_tokens[0], length)
    equal(len(hits.blocks.groups[0]), num_blocks)


@cases((7, 6), (5, 2))
@example("KV-INSIDE-7")
def the_longest_boundary_in_a_block_is_hit(bench: Bench, limit: int, length: int) -> None:
    """B = 8: prompts of 3 and 7 tokens left the boundaries 2 and 6."""
    manager = made(bench, layers=(full(8), mamba(8, "align")))
    for name, num_tokens in (("a", 3), ("b", 7)):
        manager.started(name, A[:num_tokens])
        next_step(manager)
    hits = manager.find_longest_cache_hit_per_group(manager.request("c", A[:9]), limit)
    equal(hits.hit_lengths_tokens[0], length)


@cases((7, 6, [0]), (5, 0, []), (10, 10, [0, 1]), (9, 6, [0]))
@example("KV-INSIDE-8", "KV-INSIDE-9")
def states_hit_at_the_last_boundary_that_has_one(
    bench: Bench, limit: int, length: int, nulls: list[int]
) -> None:
    """There is a state after 6 tokens, and one after 10."""
    manager = made(bench)
    seven(manager)
    b = manager.request("b", A[:11])
    manager.admit(b, 2)
    next_step(manager)
    manager.run(b, 2)
    hits = manager.find_longest_cache_hit_per_group(manager.request("c", A[:12]), limit)
    equal(hits.hit_lengths_tokens[1], 8 if limit in (8, 9) else length)
    found = hits.blocks.groups[1]
    equal([index for index, block in enumerate(found) if block == 0], nulls)


@example("KV-INSIDE-9", "KV-COORD-12")
def full_attention_is_cut_where_the_state_ends(bench: Bench) -> None:
    """It has 8 tokens, retention keeps the state after 6 alone."""
    manager = made(bench, retention_interval_tokens=0)
    request = seven(manager)
    manager.append(request, (8, 9))
    manager.run(request)
    next_step(manager)
    hit = manager.get_computed_blocks(manager.request("b", A[:12]))
    equal((hit.hit_length_tokens, hit.uncached_common_prefix_tokens), (6, 2))
    equal([len(blocks) for blocks in hit.blocks.groups], [2, 2])


@example("KV-INSIDE-9", "KV-COORD-5")
def full_attention_keeps_to_the_current_length_in_later_rounds(bench: Bench) -> None:
    """States of B = 4 after 6 and 10 tokens, of B = 8 after 6 alone."""
    manager = made(bench, layers=(full(4), states(), mamba(8, "align")))
    seven(manager)
    b = manager.request("b", A[:11])
    manager.admit(b, 2)
    next_step(manager)
    manager.run(b, 2)
    next_step(manager)
    manager.evict_blocks(manager.blocks(b, 2))
    hit = manager.get_computed_blocks(manager.request("c", A[:12]))
    equal(hit.hit_length_tokens, 6)
    equal([len(blocks) for blocks in hit.blocks.groups], [2, 2, 1])


@example("KV-INSIDE-10")
def full_attention_registers_the_end_of_the_prompt_beside_full_blocks(bench: Bench) -> None:
    manager = made(bench)
    request = manager.started("a", A[:8])
    shown = manager.snapshot().block_keys
    equal([len(shown[block]) for block in manager.blocks(request)], [1, 2])
    next_step(manager)
    hits = manager.find_longest_cache_hit_per_group(manager.request("b", A[:8]), 7)
    equal(hits.hit_lengths_tokens, (6, 0))


@cases(
    (7, [7], [0, 0]),
    (7, [6, 1], [0, 0]),
    (7, [6], [0, 6]),
    (8, [6], [0, 6]),
    (9, [6], [0, 0]),
    (7, [4], [4]),
    (7, [5], [0, 0]),
)
@example("KV-INSIDE-11", "KV-INSIDE-10")
def a_state_is_registered_where_a_step_ends(
    bench: Bench, prompt: int, chunks: list[int], expected: list[int]
) -> None:
    """Of a prompt of 7 or 8 tokens: u = 6. After [6, 1] the key of 6 has moved to a copy."""
    manager = made(bench)
    request = manager.request("a", A[:prompt])
    for chunk in chunks:
        manager.run(request, chunk)
        manager.new_step_starts()
    equal(covered(manager, request), expected)


@cases((0, [0, 8, 10]), (4, [4, 8, 10]), (8, [0, 8, 10]), (None, [4, 8, 10]))
@example("KV-INSIDE-11", "KV-RET-5")
def retention_keeps_the_last_states_before_the_end_of_the_prompt(
    bench: Bench, interval: int | None, expected: list[int]
) -> None:
    """A prompt of 11 tokens, T = 10, computed in steps of 4, 4 and 2."""
    manager = made(bench, retention_interval_tokens=interval)
    request = manager.request("a", A[:11])
    found = []
    for chunk in (4, 4, 2):
        manager.run(request, chunk)
        found.append(covered(manager, request)[-1])
        manager.new_step_starts()
    equal(found, expected)


@example("KV-INSIDE-11", "KV-MAMBA-2", "KV-INSIDE-6")
def a_state_inside_a_block_waits_for_the_next_step(bench: Bench) -> None:
    """The keys and values are those of an older request, whose state is gone."""
    manager = made(bench)
    manager.free(seven(manager))
    b, c = (manager.request(name, A[:7]) for name in "bc")
    manager.evict_blocks(manager.get_computed_blocks(b).blocks.groups[1])
    manager.admit(b, 6)
    equal(manager.get_computed_blocks(c).hit_length_tokens, 6)
    equal(manager.admit(c), None)
    next_step(manager)
    equal(manager.admit(c) is not None, True)


@cases((15, [4, 0, 14, 0], 14), (30, [4, 0, 0, 0], 4))
@example("KV-INSIDE-12", "KV-INSIDE-5")
def a_chunk_leaves_a_state_inside_and_only_the_prompts_own_is_kept(
    bench: Bench, prompt: int, expected: list[int], again: int
) -> None:
    """A hit of 4 and a chunk to 15: the state after 14 is left in entry 2, which ends at 12.

    For a prompt of 30 it is of no use, and the entry has no key.
    """
    manager = made(bench, states(alignment=1), retention_interval_tokens=4)
    first = manager.request("a", A[:5])
    manager.admit(first, 4)
    next_step(manager)
    b = manager.request("b", A[:prompt])
    manager.admit(b, 11)
    equal(manager.null_positions(b, 1), [1])
    equal(covered(manager, b), expected)
    next_step(manager)
    hit = manager.get_computed_blocks(manager.request("c", A[:prompt]))
    equal(hit.hit_length_tokens, again)


@cases((0, 11, 0), (0, 12, 1), (4, 11, 1))
@example("KV-INSIDE-12", "KV-INSIDE-14")
def under_retention_zero_only_the_last_chunk_leaves_a_state_inside(
    bench: Bench, interval: int, chunk: int, num_more: int
) -> None:
    """A prompt of 12 tokens, in a first chunk up to 11 or 12."""
    manager = made(bench, states(alignment=1), retention_interval_tokens=interval)
    request = manager.request("a", A[:12])
    free = manager.num_free_blocks
    manager.run(request, chunk)
    equal(free - manager.num_free_blocks, 3 + 1 + num_more)


@example("KV-INSIDE-12", "KV-PART-4")
def of_a_state_inside_a_chunk_only_its_own_key_is_told(bench: Bench) -> None:
    manager = made(bench, states(alignment=1), enable_events=True)
    request = manager.request("a", A[:15])
    manager.run(request, 15)
    told = [event for event in manager.take_events() if getattr(event, "group", 1) == 1]
    equal([type(event) for event in told if isinstance(event, BlockRemoved)], [])
    stored = [event for event in told if isinstance(event, BlockStored) and event.block_hashes]
    equal([(each.block_size_tokens, list(each.token_ids)) for each in stored], [(2, [13, 14])])


@example("KV-INSIDE-12", "KV-INSIDE-2", since="0.3")
def a_state_inside_that_ends_another_block_leaves_no_key(bench: Bench) -> None:
    """B = 2, h = 1, E = 3: the state after 14 of 17 tokens is left in entry 7, which ends at 16."""
    spec = replace(states(alignment=1), block_size=2)
    policy = replace(bench.policy, hits_inside_blocks=True)
    options = {"hash_block_size_tokens": 1, "hash_lookahead_tokens": 3, "policy": policy}
    manager = bench.manager(60, full(2), spec, **options)
    request = manager.request("a", A[:17])
    manager.run(request, 17)
    equal(covered(manager, request)[7], 0)
    next_step(manager)
    for token in (18, 19):
        request.num_in_flight_tokens = token - 1  # so that nothing is removed
        manager.append(request, [token])
        manager.run(request)
    equal(covered(manager, request)[7], 0)


def whole(bench: Bench, h: int = 4, **options: Any) -> Managed:
    """With h = B = 4 no hit ends inside a block; chunks leave states inside."""
    policy = replace(bench.policy, hits_inside_blocks=True, **options)
    layers = (full(4), states(alignment=1))
    asked = {"hash_block_size_tokens": h, "retention_interval_tokens": 0}
    return bench.manager(60, *layers, policy=policy, **asked)


@cases((15, 12), (16, 12), (17, 16))
@example("KV-INSIDE-19", "KV-INSIDE-12", "KV-INSIDE-14")
def a_chunk_leaves_a_state_inside_where_hashes_are_no_finer(
    bench: Bench, prompt: int, kept: int
) -> None:
    """A prompt in one step, and the same again, from the last whole block before its end."""
    manager = whole(bench)
    request = manager.request("a", A[:prompt])
    free = manager.num_free_blocks
    manager.run(request, prompt)
    equal(free - manager.num_free_blocks, -(-prompt // 4) + 2)
    equal(covered(manager, request)[kept // 4 - 1], kept)
    next_step(manager)
    hit = manager.get_computed_blocks(manager.request("b", A[:prompt]))
    equal(hit.hit_length_tokens, kept)


@cases((4, True, 12), (4, False, 0), (2, True, 0))
@example("KV-INSIDE-19", "KV-INSIDE-11", "KV-POL-23")
def a_state_at_the_prompts_end_returns_where_hashes_are_no_finer(
    bench: Bench, h: int, returns: bool, kept: int
) -> None:
    """A prompt of 14 in steps of 12 and 2; between them the state after 12 loses its key.

    With finer hashes a call that is no allocation's does not know which state there is.
    """
    manager = whole(bench, h, checkpoints_return=returns)
    request = manager.request("a", A[:14])
    manager.run(request, 12)
    next_step(manager)
    block = manager.blocks(request, 1)[2]
    manager.evict_blocks([block])
    manager.run(request) if h == 4 else manager.cache_blocks(request, 12)
    equal(covered(manager, request)[2], kept)


@example("KV-EVT-2", "KV-EVT-3", "KV-INSIDE-13", since="0.3")
def tokens_of_entries_that_are_passed_over_are_told(bench: Bench) -> None:
    """A hit of 6 and a chunk to 15. Entry 1 gets no key; entry 2 that of 14 alone."""
    manager = made(bench, states(alignment=8), enable_events=True)
    first = seven(manager)
    manager.take_events()
    manager.started("b", A[:15])
    events = manager.take_events()
    stored = [each for each in events if isinstance(each, BlockStored) and each.group == 1]
    told = [(list(each.block_hashes) == [], list(each.token_ids)) for each in stored]
    equal(told, [(True, list(A[4:12])), (False, list(A[12:14]))])
    equal(stored[0].parent_block_hash, first.block_hashes[1])


@cases((15, 8, [0, 0, 14, 0]), (13, 6, [0, 0, 12, 0]))
@example("KV-INSIDE-13", "KV-INSIDE-2")
def an_entry_that_a_chunk_begins_inside_of_gets_no_key_of_its_block(
    bench: Bench, prompt: int, alignment: int, expected: list[int]
) -> None:
    """A hit of 6, and all the rest at once. Entry 1 holds the state after 6."""
    manager = made(bench, states(alignment))
    seven(manager)
    b = manager.started("b", A[:prompt])
    equal(covered(manager, b), expected)
    equal(manager.counts(b)[1], 3)
    next_step(manager)
    hit = manager.get_computed_blocks(manager.request("c", [*A[:8], 50, 51]))
    equal(hit.hit_length_tokens, 6)
