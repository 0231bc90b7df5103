"""The chapter on chunked local attention (KV-CHUNK)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvcheck.play.verdicts import Level
from kvcheck.rules.bench import Bench
from kvcheck.rules.example import cases, example
from kvcheck.rules.judging import equal, raises
from kvcheck.rules.placed import needs_capped
from kvcheck.rules.specs import chunked, full
from kvspec.errors import ConfigError
from kvspec.specs import LayerSpec


@example("KV-CHUNK-1", "KV-GRP-2")
def earlier_chunks_are_skipped(bench: Bench) -> None:
    """Earlier chunks are skipped; at 8 tokens the second chunk of 8 begins."""
    manager = bench.manager(10, chunked(4, 8))
    request = manager.request("r", range(20))
    manager.allocate_slots(request, 20)
    for computed, nulls in ((7, []), (8, [0, 1]), (13, [0, 1]), (15, [0, 1]), (16, [0, 1, 2, 3])):
        manager.remove_skipped_blocks(request, computed)
        equal(manager.null_positions(request), nulls, f"nulls at {computed} tokens")


HITS: tuple[tuple[int, tuple[int, ...], int, int], ...] = (
    # tokens, positions cached, nulls, hits behind them
    (16, (2, 3), 2, 1),  # L = 15: chunk 8 … 15, position 2 may hit
    (17, (2, 3), 4, 0),  # L = 16: chunk 16 … 23, nothing of it is cached
    (20, (2, 3, 4), 4, 0),  # L = 19: position 4 would end at 20
    (21, (2, 3, 4), 4, 1),
    (24, (5,), 4, 0),  # position 4 is missing
    (8, (0,), 0, 1),
    (8, (1,), 0, 0),
    (9, (), 2, 0),
)


@example("KV-CHUNK-2", "KV-POL-4")
def earlier_chunks_count_as_computed(bench: Bench) -> None:
    """Earlier chunks count as computed, then consecutive hits of the chunk of token L."""
    for tokens, kept, nulls, found in HITS:
        manager = bench.manager(10, chunked(4, 8))
        first = manager.request("first", range(24))
        manager.allocate_slots(first, 24)
        blocks = manager.keep_cached(first, kept)
        hit = manager.get_computed_blocks(manager.request("r", range(tokens)))
        expected = [0] * nulls + blocks[nulls : nulls + found]
        if not found and not bench.policy.chunked_null_prefix_is_hit:
            expected = []
        what = f"the hit of {tokens} tokens, {kept} cached"
        manager.same(hit.blocks, [expected], what)
        equal(hit.hit_length_tokens, 4 * len(expected), f"length of {what}")


@example("KV-CHUNK-2", "KV-GRP-5", choices=("chunked_null_prefix_is_hit",))
def a_fresh_prompt_starts_at_its_last_chunk(bench: Bench) -> None:
    """A fresh prompt starts at its last chunk: 8 of 14 tokens count as computed."""
    manager = bench.manager(10, chunked(4, 8))
    request = manager.started("r", range(14))
    manager.same(manager.lists(request), [[0, 0, 1, 2]])
    equal(manager.cached_positions(request), [2])


@example("KV-CHUNK-2", "KV-COORD-5")
def null_chunks_do_not_reach_beyond_the_other_groups(bench: Bench) -> None:
    """Null chunks do not reach beyond the other groups: the chunk is that of the agreed length."""
    manager = bench.manager(30, full(4), chunked(4, 8))
    first = manager.started("first", range(20))
    if bench.policy.chunked_null_prefix_is_hit:
        hit = manager.get_computed_blocks(first)
        manager.same(hit.blocks, [[1, 2, 3, 4], [0, 0, 0, 0]])
    kept = manager.keep_cached(first, {0})[:1]
    chunk = manager.lists(first)[1][:1]
    manager.same(manager.get_computed_blocks(first).blocks, [kept, chunk])


@cases(
    ((chunked(4, 8),), {"use_eagle": True}, "is_eagle_group"),
    ((chunked(4, 8),), {"eagle_groups": [0]}, "is_eagle_group"),
    ((full(8), chunked(4, 8)), {}, "block_size"),
    ((chunked(4, 6),), {}, "attention_chunk_size"),
    ((chunked(4, 6),), {"enable_caching": False}, "attention_chunk_size"),
    ((chunked(4, 8), chunked(4, 6)), {"enable_caching": False}, "attention_chunk_size"),
    ((full(4), chunked(4, 2)), {}, "attention_chunk_size"),
)
@example("KV-CHUNK-3", "KV-ERR-5", level=Level.SAFETY)
def what_chunks_cannot_do_is_refused(
    bench: Bench, specs: tuple[LayerSpec, ...], options: dict[str, Any], field: str
) -> None:
    """Eagle, another alignment than the block size, and a chunk of no whole blocks."""
    if field == "attention_chunk_size":
        bench.need_usual("chunk_must_align")
    with raises(ConfigError, field=field):
        bench.manager(20, *specs, **options)


@example("KV-CHUNK-3")
def what_chunks_can_do_is_accepted(bench: Bench) -> None:
    """Equal block sizes, eagle on another group, and without caching other sizes are accepted."""
    bench.manager(20, full(4), chunked(4, 8))
    bench.manager(20, full(4), chunked(4, 8), eagle_groups=[0])
    bench.manager(20, full(8), chunked(4, 8), enable_caching=False, use_eagle=True)


@example("KV-CHUNK-7", "KV-POL-6", "KV-MGR-8", since="0.3")
def a_chunk_inside_a_block_that_is_not_cached_ends_the_hit_before(bench: Bench) -> None:
    """Nulls that end before the start of L's chunk are no hit; whatever is answered is taken."""
    policy = replace(bench.policy, chunk_must_align=False)
    manager = bench.manager(10, chunked(4, 5), policy=policy)
    early = manager.request("early", range(11))
    manager.same(manager.get_computed_blocks(early).blocks, [[]])
    manager.admit(early)
    blocks = manager.lists(early)[0]
    again = manager.request("again", range(11))
    manager.same(manager.get_computed_blocks(again).blocks, [[0, blocks[1]]])
    manager.evict_blocks([blocks[1]])
    manager.same(manager.get_computed_blocks(again).blocks, [[blocks[0]]])
    manager.admit(again)
    manager.same(manager.lists(again)[0][:1], blocks[:1])


@example("KV-CHUNK-5")
def admission_counts_a_chunk_and_a_step(bench: Bench) -> None:
    """Admission counts a chunk and a step: cdiv(8 + 6, 4) = 4 blocks."""
    needs_capped(
        bench, chunked(4, 8), (6, 100, 80, 4), (6, 100, 12, 3), (4, 100, 80, 3), (6, 10, 80, 3)
    )


@example("KV-CHUNK-6", "KV-MGR-15")
def chunks_have_no_common_prefix(bench: Bench) -> None:
    manager = bench.manager(10, full(4), chunked(4, 8))
    request = manager.started("r", range(7))
    told = 2 if bench.policy.counts_common_prefix else 0
    equal(tuple(manager.get_num_common_prefix_blocks(request)), (told, 0))
