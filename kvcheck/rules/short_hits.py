"""Lists of hits that are shorter than others, and the load that fills them up (KV-MGR-22)."""

from __future__ import annotations

from kvcheck.play.verdicts import Level
from kvcheck.rules.bench import Bench
from kvcheck.rules.example import example
from kvcheck.rules.judging import equal, holds
from kvcheck.rules.managed import Managed
from kvcheck.rules.specs import full, mamba, sliding
from kvspec.blocks import KVCacheBlocks
from kvspec.errors import InvalidArgumentError, StaleHitError
from kvspec.interface import Feature
from kvspec.request import Request
from kvspec.specs import LayerSpec, MLAAttentionSpec

LATENT = MLAAttentionSpec(4, 1, 8, "float16")
Lists = list[list[int]]


def two_lists(bench: Bench, other: LayerSpec = LATENT) -> tuple[Managed, Request, Lists]:
    """Of 17 tokens the first group has cached three blocks, 1 … 3, the other only block 4."""
    bench.need(Feature.UNEQUAL_HITS)
    manager = bench.manager(20, full(4), other)
    first = manager.started("first", range(12))
    manager.keep_cached(first, {0}, group=1)
    manager.free(first)
    request = manager.request("r", range(17))
    own = manager.find_longest_cache_hit_per_group(request, 16)
    equal(tuple(own.hit_lengths_tokens), (12, 4))
    manager.same(own.blocks, [[1, 2, 3], [4]])
    return manager, request, own.blocks.to_lists()


def load(
    manager: Managed,
    request: Request,
    hits: Lists,
    local: int,
    external: int = 4,
    reserved: int = 0,
) -> KVCacheBlocks | None:
    """Start a load behind these hits: nothing is computed or registered yet."""
    granted: KVCacheBlocks | None = manager.allocate_slots(
        request,
        0 if external else 1,
        num_new_computed_tokens=local,
        new_computed_blocks=KVCacheBlocks(tuple(map(tuple, hits))),
        num_external_computed_tokens=external,
        delay_cache_blocks=True,
        reserved_blocks=reserved,
    )
    return granted


@example("KV-MGR-22", "KV-MGR-8", "KV-COORD-9", "KV-GRP-5", "KV-GRP-6", "KV-GRP-11", "KV-MGR-11")
def a_load_fills_up_a_short_list(bench: Bench) -> None:
    """A load fills up a short list: one block more and three."""
    manager, request, own = two_lists(bench)
    free = manager.num_free_blocks
    equal(load(manager, request, own, 12), KVCacheBlocks(((), ())))
    lists = manager.lists(request)
    equal([len(blocks) for blocks in lists], [4, 4])
    equal([lists[0][:3], lists[1][:1]], own, "the hits in them")
    equal(len({*lists[0], *lists[1]}), 8)
    equal(free - manager.num_free_blocks, 8)
    for tokens in (12, 16):
        manager.cache_blocks(request, tokens)
    again = manager.get_computed_blocks(manager.request("again", range(17)))
    equal(again.blocks.to_lists(), lists)


@example("KV-MGR-22", "KV-MGR-8", "KV-GRP-11", "KV-MGR-11")
def what_a_load_brings_is_counted_when_it_is_there(bench: Bench) -> None:
    manager, request, own = two_lists(bench)
    load(manager, request, own, 12)
    for tokens, counts in ((0, (3, 1)), (12, (3, 3)), (16, (4, 4))):
        if tokens:
            manager.cache_blocks(request, tokens)
        equal(manager.counts(request), counts, f"counts at {tokens} tokens")
    keys = manager.snapshot().block_keys
    found = [len(keys[block]) for blocks in manager.lists(request) for block in blocks]
    equal(found, [1] * 8, "keys of the blocks")


@example("KV-MGR-22", "KV-MGR-8", "KV-ERR-2", level=Level.SAFETY)
def hits_of_other_lengths_or_blocks_are_refused(bench: Bench) -> None:
    """The longest list is as long as they say, and short ones need a load."""
    manager, request, own = two_lists(bench)
    first, second = own
    none: list[int] = []
    for hits, local, external, field in (
        (own, 12, 0, "new_computed_blocks[1]"),
        ([first, none], 12, 0, "new_computed_blocks[1]"),
        (own, 4, 4, "new_computed_blocks[0]"),
        (own, 0, 4, "new_computed_blocks[0]"),
        (own, 16, 4, "num_new_computed_tokens"),
        (own, 13, 4, "num_new_computed_tokens"),
        ([none, none], 4, 4, "num_new_computed_tokens"),
        ([none, none], 1, 4, "num_new_computed_tokens"),
    ):
        with manager.refuses(InvalidArgumentError, field=field) as error:
            load(manager, request, hits, local, external)
        holds(not isinstance(error.value, StaleHitError))
    other = next(b for b in range(1, 20) if b not in (*first, *second))
    for hits, group, index, block in (
        ([first, [other]], 1, 0, other),
        ([first, [0]], 1, 0, 0),
        ([first, [*second, other]], 1, 1, other),
        ([[*first[:2], *second], second], 0, 2, second[0]),
    ):
        with manager.refuses(StaleHitError, group=group, index=index, block_id=block):
            load(manager, request, hits, 12)


@example("KV-MGR-22", "KV-MGR-8", "KV-GRP-4", "KV-MGR-7")
def what_a_short_list_lacks_is_counted(bench: Bench) -> None:
    """What a short list lacks is counted: four blocks revived and four new, 8 of 19."""
    for reserved in (12, 11):
        manager, request, own = two_lists(bench)
        before = manager.visible()
        granted = load(manager, request, own, 12, reserved=reserved) is not None
        equal(granted, reserved == 11, f"granted beside {reserved}")
        if granted:
            equal(manager.num_free_blocks, 11)
        else:
            equal(manager.visible(), before)


@example("KV-MGR-22", "KV-MGR-8", "KV-GRP-5", "KV-GRP-6", "KV-SW-1")
def a_short_list_of_a_window_keeps_what_is_read_behind_the_load(bench: Bench) -> None:
    """A short list of a window keeps what is read behind the load: of W = 14 token 3 on."""
    for tokens, nulls, count in ((30, [], 1), (14, [], 1), (6, [0, 1], 2)):
        manager, request, own = two_lists(bench, sliding(4, tokens))
        equal(load(manager, request, own, 12) is not None, True)
        behind = manager.lists(request)[1]
        equal(behind[:1] == own[1], not nulls, f"the hit is kept, W = {tokens}")
        equal(manager.null_positions(request, 1), nulls)
        equal(len(behind), 4)
        if bench.has(Feature.SNAPSHOT):
            equal(manager.counts(request), (3, count))


@example("KV-MGR-22", "KV-MGR-8", "KV-MAMBA-7", "KV-MAMBA-8", "KV-MAMBA-9")
def states_with_shorter_hits_than_attention_take_one_block_each(
    bench: Bench,
) -> None:
    """Three groups of states with shorter hits than attention take one block each, or none."""
    bench.need(Feature.UNEQUAL_HITS)
    usual = bench.policy.unhashed_freed_to == "front"  # else another request takes a hit
    for num_blocks in (10, 17) if usual else (17,):
        manager = bench.manager(num_blocks, full(2), *[mamba(2, "align")] * 3)
        first = manager.request("first", range(4))
        for _ in range(2):
            manager.run(first, 2)
        manager.new_step_starts()
        attention, *rest = manager.lists(first)
        manager.evict_blocks([blocks[1] for blocks in rest])
        manager.free(first)
        request = manager.request("r", range(9))
        own = manager.find_longest_cache_hit_per_group(request, 8)
        equal(tuple(own.hit_lengths_tokens), (4, 2, 2, 2))
        if num_blocks == 10:  # nothing is free but the hits
            manager.allocate_slots(manager.request("other", [99]), 1)
            equal(manager.num_free_blocks, 5)
        granted = load(manager, request, own.blocks.to_lists(), 4, 2) is not None
        equal(granted, num_blocks == 17, f"granted in {num_blocks} blocks")
        if granted:
            lists = manager.lists(request)
            expected = [attention[:2], [0, 0], [0, 0], [0, 0]]  # what is skipped turns null
            equal([blocks[:2] for blocks in lists], expected)
            equal([len(blocks) for blocks in lists], [3] * 4)
            if bench.has(Feature.SNAPSHOT):
                equal(manager.counts(request), (2, 2, 2, 2))
