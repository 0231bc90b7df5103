"""The chapter on full attention (KV-FULL): hits, caching and common prefixes."""

from __future__ import annotations

from kvcheck.play.verdicts import Level
from kvcheck.rules.bench import Bench
from kvcheck.rules.example import cases, example
from kvcheck.rules.judging import equal, holds, raises
from kvcheck.rules.specs import full
from kvspec.errors import ConfigError
from kvspec.events import BlockStored
from kvspec.interface import Feature
from kvspec.specs import (
    FullAttentionSpec,
    HiddenStateCacheSpec,
    MLAAttentionSpec,
    SinkFullAttentionSpec,
    TQFullAttentionSpec,
)


@example("KV-FULL-1")
def the_list_of_a_long_request_has_no_null(bench: Bench) -> None:
    """The list of a long request has no null: 1,000 tokens are 63 blocks of 16."""
    manager = bench.manager(80, full(16))
    request = manager.started("r", range(1000))
    manager.remove_skipped_blocks(request, 1000)
    found = (len(manager.lists(request)[0]), manager.null_positions(request))
    equal(found, (63, []), "blocks and nulls")


@example("KV-FULL-2")
def a_run_ends_at_the_first_gap(bench: Bench) -> None:
    manager = bench.manager(6)
    first = manager.started("first", range(14))
    request = manager.request("r", range(14))
    manager.same(manager.get_computed_blocks(request).blocks, [[1, 2, 3]])
    manager.keep_cached(first, {0, 2})
    hit = manager.get_computed_blocks(request)
    manager.same(hit.blocks, [[1]])
    equal(hit.hit_length_tokens, 4)


@example("KV-FULL-2", "KV-MGR-1")
def a_run_ends_with_the_request(bench: Bench) -> None:
    """Blocks cached beyond the asker's own tokens, or with its last one, are no hits."""
    manager = bench.manager(6)
    manager.started("first", range(16))
    for tokens, hits in ((9, [1, 2]), (8, [1])):
        hit = manager.get_computed_blocks(manager.request(str(tokens), range(tokens)))
        manager.same(hit.blocks, [hits], f"the hit of {tokens} tokens")


@example("KV-FULL-3", "KV-CFG-8")
def an_eagle_group_gives_up_its_last_hit(bench: Bench) -> None:
    """An eagle group gives up its last hit, if it has one."""
    manager = bench.manager(6, use_eagle=True)
    manager.started("first", range(16))
    for tokens, hits in ((13, [1, 2]), (5, []), (4, []), (30, [1, 2, 3])):
        hit = manager.get_computed_blocks(manager.request(str(tokens), range(tokens)))
        manager.same(hit.blocks, [hits], f"the hit of {tokens} tokens")
        equal(hit.hit_length_tokens, 4 * len(hits))


@example("KV-FULL-4", "KV-FULL-3", "KV-CFG-4")
def a_hit_is_cut_to_a_multiple_of_the_alignment(bench: Bench) -> None:
    """Five blocks of 4 beside blocks of 8 are cut to 16 tokens; a drop leaves four, too."""
    for flagged in ((), (0,)):
        manager = bench.manager(30, full(4), full(8), eagle_groups=flagged)
        manager.started("first", range(24))
        request = manager.request("r", range(23))
        hit = manager.get_computed_blocks(request)
        equal(hit.hit_length_tokens, 16, f"the hit, flags {flagged}")
        equal([len(blocks) for blocks in hit.blocks.groups], [4, 2])
        if bench.has(Feature.HITS_PER_GROUP):
            own = manager.find_longest_cache_hit_per_group(request, 22)
            equal(tuple(own.hit_lengths_tokens), (16, 16))


@cases((4, 1), (1, 4), (2, 2))
@example("KV-FULL-5")
def under_context_parallelism_a_block_spans_more_tokens(
    bench: Bench, dcp_world_size: int, pcp_world_size: int
) -> None:
    """A block of 2 on 4 ranks, of decode or of prefill, spans 8 tokens."""
    manager = bench.manager(
        6,
        full(2),
        dcp_world_size=dcp_world_size,
        pcp_world_size=pcp_world_size,
        enable_events=True,
    )
    request = manager.started("r", range(20))
    equal(len(request.block_hashes), 2)
    manager.same(manager.lists(request), [[1, 2, 3]])
    equal(manager.cached_positions(request), [0, 1])
    (stored,) = manager.take_events()
    equal(getattr(stored, "block_size_tokens", None), 8, rule="KV-EVT-2")


@example("KV-FULL-7", "KV-MGR-15", choices=("counts_common_prefix",))
def the_common_prefix_is_what_all_requests_hold(bench: Bench) -> None:
    """The common prefix is what all requests hold, and none for one without blocks."""
    manager, a, b = bench.story()
    third = manager.request("c", [1, 2, 3, 4, 30])
    for expected in ([2, 2, 0], [1, 1, 1]):
        found = [manager.get_num_common_prefix_blocks(r)[0] for r in (a, b, third)]
        equal(found, expected, "blocks of a, b and c")
        if not expected[2]:
            manager.admit(third)


@example("KV-FULL-7", choices=("counts_common_prefix",))
def a_popped_reference_spoils_the_common_prefix_until_it_is_returned(bench: Bench) -> None:
    manager, a, b = bench.story()
    popped = manager.pop_blocks_for_free(a)
    equal(tuple(manager.get_num_common_prefix_blocks(b)), (0,))
    manager.free_blocks(popped[::-1])
    equal(tuple(manager.get_num_common_prefix_blocks(b)), (3,))


KINDS: tuple[tuple[FullAttentionSpec, str], ...] = (
    (MLAAttentionSpec(4, 1, 8, "float16"), "mla_attention"),
    (HiddenStateCacheSpec(4, 1, 8, "float16"), "mla_attention"),
    (TQFullAttentionSpec(4, 1, 8, "float16", tq_slot_size=3), "full_attention"),
    (SinkFullAttentionSpec(4, 1, 8, "float16"), "sink_full_attention"),
)


@cases(*KINDS)
@example("KV-FULL-8", "KV-EVT-2", "KV-GRP-10")
def other_layers_behave_as_full_attention(bench: Bench, spec: FullAttentionSpec, kind: str) -> None:
    """Only the kind that events name differs."""
    manager = bench.manager(6, spec, enable_events=True)
    first, second = (manager.started(name, range(10)) for name in "ab")
    lists = [manager.lists(request) for request in (first, second)]
    manager.same(lists, [[[1, 2, 3]], [[1, 2, 4]]], f"lists of {spec.kind}")
    if bench.zeroes_full_attention:
        queued = () if isinstance(spec, SinkFullAttentionSpec) else (1, 2, 3, 4)
        manager.same(tuple(manager.take_new_block_ids()), queued)
    manager.free(first)
    manager.queues([3, 5])
    told = [e.spec_kind for e in manager.take_events() if isinstance(e, BlockStored)]
    equal(told, [kind], "the kind in events")


def sink(sink_len: int) -> SinkFullAttentionSpec:
    """Full attention with so many sink tokens in blocks of 4."""
    return SinkFullAttentionSpec(4, 1, 8, "float16", sink_len=sink_len)


@example("KV-FULL-8", "KV-POOL-2", "KV-POOL-15", "KV-POOL-16")
def sink_blocks_are_set_aside_at_start(bench: Bench) -> None:
    """Sink blocks are set aside at start, and hinder no reset."""
    manager = bench.manager(8, sink(8))
    manager.queues([3, 4, 5, 6, 7])
    request = manager.started("r", range(5))
    manager.same(manager.lists(request), [[3, 4]])
    equal(manager.num_free_blocks, 3)
    equal(manager.reset_prefix_cache(), False, rule="KV-POOL-11")
    manager.free(request)
    manager.queues([4, 5, 6, 7, 3])
    equal(manager.reset_prefix_cache(), True, rule="KV-POOL-11")
    shown = manager.snapshot()
    found = (shown.reserved_blocks, shown.ref_counts)
    equal(found, ((1, 2), (0, 1, 1, 0, 0, 0, 0, 0)), "set aside, and referenced")


@example("KV-FULL-8", "KV-ERR-5", level=Level.SAFETY)
def a_pool_too_small_for_the_sinks_is_refused(bench: Bench) -> None:
    equal(bench.manager(3, sink(8)).num_free_blocks, 0)
    with raises(ConfigError, field="sink_len") as caught:
        bench.manager(2, sink(8))
    holds(bench.is_remote or caught.value.value == 2)  # blocks


# With the base alone: no call and no type beyond it.


@example("KV-FULL-1")
def a_growing_request_keeps_all_its_blocks(bench: Bench) -> None:
    manager = bench.manager(80, full(16))
    request = manager.started("r", range(990))
    before = manager.blocks(request)
    manager.append(request, [1])
    manager.run(request)
    equal(manager.blocks(request)[: len(before)], before)


@example("KV-FULL-6", "KV-MGR-10")
def a_full_block_can_be_hit_once_it_is_allocated(bench: Bench) -> None:
    """8 of 9 tokens are computed in this step: another request has both blocks at once."""
    manager = bench.manager(6)
    request = manager.request("r", range(9))
    manager.admit(request, 8)
    other = manager.request("other", range(9))
    equal(manager.get_computed_blocks(other).hit_length_tokens, 8)


@example("KV-MGR-6")
def a_refusal_without_windows_does_nothing(bench: Bench) -> None:
    """Of 5 blocks a held 4, three of them full; b needs 8."""
    manager = bench.manager(6)
    manager.free(manager.started("a", range(13)))
    equal(manager.allocate_slots(manager.request("b", range(100, 130)), 30), None)
    equal(manager.num_free_blocks, 5)
    again = manager.request("again", range(13))
    equal(manager.get_computed_blocks(again).hit_length_tokens, 12)
