"""KV-FULL: hits, caching and common prefixes of full-attention groups."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvspec.errors import ConfigError
from kvspec.events import BlockStored
from kvspec.specs import (
    HiddenStateCacheSpec,
    MLAAttentionSpec,
    SinkFullAttentionSpec,
    TQFullAttentionSpec,
)
from tests.rules.builders import (
    MakeManager,
    MakeRequest,
    Story,
    admit,
    blocks_of,
    cached_blocks,
    full,
    hit_of,
    queue_of,
)


@pytest.mark.rule("KV-FULL-1")
def test_the_list_of_a_long_request_has_no_null(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """After 1,000 computed tokens with B = 16 the list still holds 63 blocks."""
    manager = make_manager(80, 16)
    request = make_request(manager, "r", range(1000))
    admit(manager, request)
    manager.remove_skipped_blocks(request, 1000)
    blocks = blocks_of(manager, request)
    assert len(blocks) == 63
    assert 0 not in blocks


@pytest.mark.rule("KV-FULL-2")
def test_a_run_ends_at_the_first_gap(make_manager: MakeManager, make_request: MakeRequest) -> None:
    """Of 14 tokens positions 0, 1 and 2 may hit; without the key of 1 the hit is one block."""
    manager = make_manager(6, 4)
    admit(manager, make_request(manager, "first", range(14)))
    request = make_request(manager, "r", range(14))
    assert hit_of(manager, request) == [1, 2, 3]
    manager.evict_blocks([2])
    hit = manager.get_computed_blocks(request)
    assert hit.blocks.to_lists() == [[1]]
    assert hit.hit_length_tokens == 4


@pytest.mark.rule("KV-FULL-2")
def test_a_run_ends_with_the_request(make_manager: MakeManager, make_request: MakeRequest) -> None:
    """Blocks cached beyond the asker's own tokens are no hits."""
    manager = make_manager(6, 4)
    admit(manager, make_request(manager, "first", range(16)))
    assert hit_of(manager, make_request(manager, "r", range(9))) == [1, 2]
    assert hit_of(manager, make_request(manager, "s", range(8))) == [1]


@pytest.mark.rule("KV-FULL-2", "KV-MGR-1")
@given(
    cached=st.lists(st.booleans(), min_size=1, max_size=6),
    num_tokens=st.integers(1, 30),
)
@settings(max_examples=60)
def test_the_hit_is_the_longest_run_within_the_limit(
    make_manager: MakeManager, make_request: MakeRequest, cached: list[bool], num_tokens: int
) -> None:
    """Whichever blocks are cached, the hit is the run of cached ones from block 0 on, cut to L."""
    manager = make_manager(20, 4)
    first = make_request(manager, "first", range(4 * len(cached)))
    admit(manager, first)
    blocks = blocks_of(manager, first)
    manager.evict_blocks([block for block, kept in zip(blocks, cached, strict=True) if not kept])
    run = [*cached, False].index(False)
    length = min(run, (num_tokens - 1) // 4)
    assert hit_of(manager, make_request(manager, "r", range(num_tokens))) == blocks[:length]


@pytest.mark.rule("KV-FULL-3", "KV-CFG-8")
@pytest.mark.parametrize(("num_tokens", "hit"), [(13, [1, 2]), (5, []), (4, [])])
def test_an_eagle_group_gives_up_its_last_hit(
    make_manager: MakeManager, make_request: MakeRequest, num_tokens: int, hit: list[int]
) -> None:
    """A run of three blocks becomes two, a run of one becomes none, an empty run stays empty."""
    manager = make_manager(6, 4, use_eagle=True)
    admit(manager, make_request(manager, "first", range(16)))
    answer = manager.get_computed_blocks(make_request(manager, "r", range(num_tokens)))
    assert answer.blocks.to_lists() == [hit]
    assert answer.hit_length_tokens == 4 * len(hit)


@pytest.mark.rule("KV-FULL-4", "KV-COORD-2")
@given(num_tokens=st.integers(1, 25), eagle=st.booleans(), ranks=st.sampled_from([1, 2, 3]))
@settings(max_examples=40)
def test_with_one_group_every_run_is_aligned(
    make_manager: MakeManager, make_request: MakeRequest, num_tokens: int, eagle: bool, ranks: int
) -> None:
    """The alignment is the span: nothing but the eagle drop shortens a run."""
    manager = make_manager(20, 2, use_eagle=eagle, dcp_world_size=ranks)
    span = 2 * ranks
    assert manager.config.scheduler_block_size_tokens == span
    admit(manager, make_request(manager, "first", range(24)))
    hit = manager.get_computed_blocks(make_request(manager, "r", range(num_tokens)))
    run = (num_tokens - 1) // span
    assert hit.hit_length_tokens == (max(run - 1, 0) if eagle else run) * span


@pytest.mark.rule("KV-FULL-4", "KV-FULL-3", "KV-CFG-4")
@pytest.mark.parametrize("eagle_groups", [(), (0,)])
def test_a_hit_is_cut_to_a_multiple_of_the_alignment(
    make_manager: MakeManager, make_request: MakeRequest, eagle_groups: tuple[int, ...]
) -> None:
    """S = 4, A = 8 and five blocks: cut to 16 tokens; with eagle, 5 - 1 = 4 blocks stay."""
    manager = make_manager(30, 4, specs=[full(4), full(8)], eagle_groups=eagle_groups)
    admit(manager, make_request(manager, "first", range(24)))
    hit = manager.get_computed_blocks(make_request(manager, "r", range(23)))
    assert hit.hit_length_tokens == 16
    assert [len(blocks) for blocks in hit.blocks.to_lists()] == [4, 2]
    own = manager.find_longest_cache_hit_per_group(make_request(manager, "s", range(23)), 22)
    assert own.hit_lengths_tokens == (16, 16)


@pytest.mark.rule("KV-FULL-5", "KV-EVT-2")
def test_under_context_parallelism_a_block_spans_more_tokens(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """B = 2 on 4 ranks: 20 tokens need 3 blocks and have 2 hashes; events give 8 as block size."""
    manager = make_manager(6, 2, dcp_world_size=4, enable_events=True)
    request = make_request(manager, "r", range(20))
    assert len(request.block_hashes) == 2
    admit(manager, request)
    assert blocks_of(manager, request) == [1, 2, 3]
    assert cached_blocks(manager) == {1, 2}
    (stored,) = manager.take_events()
    assert isinstance(stored, BlockStored)
    assert stored.block_size_tokens == 8


@pytest.mark.rule("KV-FULL-6", "KV-GRP-11")
def test_every_full_block_is_cached(make_manager: MakeManager, make_request: MakeRequest) -> None:
    """14 computed tokens with S = 4: blocks 0, 1 and 2 are cached, the fourth is not."""
    manager = make_manager(6, 4)
    admit(manager, make_request(manager, "r", range(14)))
    assert cached_blocks(manager) == {1, 2, 3}


@pytest.mark.rule("KV-FULL-7", "KV-MGR-15")
def test_the_common_prefix_is_what_all_requests_hold(
    story: Story, make_request: MakeRequest
) -> None:
    """2 for [1, 2, 3] and [1, 2, 4]; 1 once [1, 5] joins; 0 for a request without blocks."""
    manager = story.manager
    assert manager.get_num_common_prefix_blocks(story.a) == (2,)
    assert manager.get_num_common_prefix_blocks(story.b) == (2,)
    third = make_request(manager, "c", [1, 2, 3, 4, 30])
    assert manager.get_num_common_prefix_blocks(third) == (0,)
    admit(manager, third)
    assert blocks_of(manager, third) == [1, 5]
    for request in (story.a, story.b, third):
        assert manager.get_num_common_prefix_blocks(request) == (1,)


@pytest.mark.rule("KV-FULL-7")
def test_a_popped_reference_spoils_the_common_prefix(story: Story) -> None:
    """When a is popped, b is the only request but blocks 1 and 2 have two references: 0."""
    story.manager.pop_blocks_for_free(story.a)
    assert story.manager.get_num_common_prefix_blocks(story.b) == (0,)
    story.manager.free_blocks([3, 2, 1])
    assert story.manager.get_num_common_prefix_blocks(story.b) == (3,)


SAME_AS_FULL = (
    MLAAttentionSpec(4, 1, 8, "float16"),
    HiddenStateCacheSpec(4, 1, 8, "float16"),
    TQFullAttentionSpec(4, 1, 8, "float16", tq_slot_size=3),
    SinkFullAttentionSpec(4, 1, 8, "float16", sink_len=0),
)


@pytest.mark.rule("KV-FULL-8", "KV-EVT-2")
@pytest.mark.parametrize("spec", SAME_AS_FULL, ids=lambda spec: type(spec).__name__)
def test_other_layers_behave_as_full_attention(
    make_manager: MakeManager, make_request: MakeRequest, spec: MLAAttentionSpec
) -> None:
    """The states after a small scenario are equal; only the kind that events name differs."""
    states, kinds = [], []
    for listed in (spec, full(4)):
        manager = make_manager(6, 4, specs=[listed], enable_events=True)
        first, second = (make_request(manager, name, range(10)) for name in "ab")
        admit(manager, first)
        admit(manager, second)
        if not isinstance(spec, SinkFullAttentionSpec):
            assert manager.take_new_block_ids() == (1, 2, 3, 4)
        manager.take_new_block_ids()
        manager.free(first)
        states.append(manager.snapshot())
        kinds.append([e.spec_kind for e in manager.take_events() if isinstance(e, BlockStored)])
    assert states[0] == states[1]
    assert kinds == [[spec.kind], ["full_attention"]]


@pytest.mark.rule("KV-FULL-8")
def test_the_kinds_that_events_name() -> None:
    """MLA and hidden-state groups name `mla_attention`, TQ groups `full_attention`."""
    kinds = [spec.kind for spec in SAME_AS_FULL[:3]]
    assert kinds == ["mla_attention", "mla_attention", "full_attention"]


def sink(sink_len: int) -> SinkFullAttentionSpec:
    """Full attention with this many sink tokens, block size 4."""
    return SinkFullAttentionSpec(4, 1, 8, "float16", sink_len=sink_len)


@pytest.mark.rule("KV-FULL-8", "KV-POOL-2", "KV-POOL-15", "KV-POOL-16", "KV-GRP-10")
def test_sink_blocks_are_set_aside_at_start(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """8 blocks, B = 4, sink_len = 8: blocks 1 and 2 are set aside, the queue starts at 3."""
    manager = make_manager(8, 4, specs=[sink(8)])
    snapshot = manager.snapshot()
    assert snapshot.free_queue == (3, 4, 5, 6, 7)
    assert snapshot.reserved_blocks == (1, 2)
    assert snapshot.ref_counts == (0, 1, 1, 0, 0, 0, 0, 0)
    assert len(snapshot.free_queue) + 0 + len(snapshot.reserved_blocks) == 8 - 1
    request = make_request(manager, "r", range(5))
    admit(manager, request)
    assert blocks_of(manager, request) == [3, 4]
    assert manager.take_new_block_ids() == ()
    manager.free(request)
    assert queue_of(manager) == [4, 5, 6, 7, 3]


@pytest.mark.rule("KV-FULL-8", "KV-POOL-11")
def test_sink_blocks_do_not_hinder_a_reset(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """Blocks set aside are not in use, and stay set aside when the cache is reset."""
    manager = make_manager(8, 4, specs=[sink(8)])
    request = make_request(manager, "r", range(5))
    admit(manager, request)
    assert manager.reset_prefix_cache() is False
    manager.free(request)
    assert manager.reset_prefix_cache() is True
    assert manager.snapshot().reserved_blocks == (1, 2)


@pytest.mark.rule("KV-FULL-8", "KV-ERR-5")
def test_a_pool_too_small_for_the_sinks_is_refused(make_manager: MakeManager) -> None:
    """Two blocks of sinks fit into a pool of 3 and not into one of 2."""
    assert make_manager(3, 4, specs=[sink(8)]).num_free_blocks == 0
    with pytest.raises(ConfigError) as caught:
        make_manager(2, 4, specs=[sink(8)])
    assert caught.value.field == "sink_len"
