"""KV-CHUNK: chunked local attention."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvspec.errors import ConfigError, StaleHitError
from kvspec.policy import Policy
from tests.rules.builders import (
    MakeManager,
    MakeRequest,
    admit,
    full,
    hit_of,
    run_on,
)
from tests.rules.specs import (
    cached_positions,
    chunked,
    keep_cached,
    lists_of,
    need_of,
    null_positions,
)


@pytest.mark.rule("KV-CHUNK-1", "KV-GRP-2")
@pytest.mark.parametrize(
    ("computed", "nulls"), [(7, []), (8, [0, 1]), (13, [0, 1]), (15, [0, 1]), (16, [0, 1, 2, 3])]
)
def test_earlier_chunks_are_skipped(
    make_manager: MakeManager, make_request: MakeRequest, computed: int, nulls: list[int]
) -> None:
    """B = 4, chunk 8: with 13 computed tokens, s = 8; with 7, s = 0; at 8 a chunk begins."""
    manager = make_manager(10, specs=[chunked(4, 8)])
    request = make_request(manager, "r", range(20))
    assert manager.allocate_slots(request, 20) is not None
    manager.remove_skipped_blocks(request, computed)
    assert null_positions(manager, request) == nulls


@pytest.mark.rule("KV-CHUNK-1")
@given(
    block_size=st.integers(1, 4),
    blocks_per_chunk=st.integers(1, 4),
    num_tokens=st.integers(1, 24),
    data=st.data(),
)
def test_exactly_the_blocks_before_the_chunk_of_the_next_token_turn_null(
    make_manager: MakeManager,
    make_request: MakeRequest,
    block_size: int,
    blocks_per_chunk: int,
    num_tokens: int,
    data: st.DataObject,
) -> None:
    """Token t sees the tokens of its chunk up to itself; a block stays while one is seen later."""
    computed = data.draw(st.integers(0, num_tokens))
    chunk = block_size * blocks_per_chunk
    manager = make_manager(30, specs=[chunked(block_size, chunk)], enable_caching=False)
    request = make_request(manager, "r", range(num_tokens))
    admit(manager, request)
    manager.remove_skipped_blocks(request, computed)
    num_blocks = len(lists_of(manager, request)[0])
    later = range(computed, num_blocks * block_size + 1)
    unseen = [
        index
        for index in range(num_blocks)
        if not any(
            t // chunk == at // chunk
            for t in range(index * block_size, (index + 1) * block_size)
            for at in later
        )
    ]
    assert null_positions(manager, request) == unseen


@pytest.mark.rule("KV-CHUNK-2")
@pytest.mark.parametrize(
    ("num_tokens", "cached", "nulls", "hits"),
    [
        (16, {2, 3}, 2, 1),  # L = 15: chunk 8 … 15, position 2 may hit
        (17, {2, 3}, 4, 0),  # L = 16: chunk 16 … 23, nothing of it is cached
        (20, {2, 3, 4}, 4, 0),  # L = 19: position 4 would end at 20
        (21, {2, 3, 4}, 4, 1),
        (24, {5}, 4, 0),  # position 4 is missing
        (8, {0}, 0, 1),
        (8, {1}, 0, 0),
        (9, set(), 2, 0),
    ],
)
def test_earlier_chunks_count_as_computed(
    make_manager: MakeManager,
    make_request: MakeRequest,
    num_tokens: int,
    cached: set[int],
    nulls: int,
    hits: int,
) -> None:
    """B = 4, chunk 8: null for the chunks before that of token L, then consecutive hits."""
    manager = make_manager(10, specs=[chunked(4, 8)])
    first = make_request(manager, "first", range(24))
    assert manager.allocate_slots(first, 24) is not None
    blocks = keep_cached(manager, first, cached)
    hit = manager.get_computed_blocks(make_request(manager, "r", range(num_tokens)))
    assert hit.blocks.to_lists() == [[0] * nulls + blocks[nulls : nulls + hits]]
    assert hit.hit_length_tokens == 4 * (nulls + hits)


@pytest.mark.rule("KV-CHUNK-2", "KV-GRP-5")
def test_a_fresh_prompt_starts_at_its_last_chunk(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """14 tokens in an empty cache: 8 count as computed, the list is null, null, 1, 2."""
    manager = make_manager(10, specs=[chunked(4, 8)])
    request = make_request(manager, "r", range(14))
    assert hit_of(manager, request) == [0, 0]
    admit(manager, request)
    assert lists_of(manager, request) == [[0, 0, 1, 2]]
    assert cached_positions(manager, request) == [2]


@pytest.mark.rule("KV-CHUNK-2", "KV-COORD-5")
def test_null_chunks_do_not_reach_beyond_the_other_groups(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """Beside full attention the chunk is that of the length agreed on: 4 of 8 cached, hit 4."""
    manager = make_manager(30, specs=[full(4), chunked(4, 8)])
    first = make_request(manager, "first", range(20))
    admit(manager, first)
    assert manager.get_computed_blocks(first).blocks.to_lists() == [[1, 2, 3, 4], [0, 0, 0, 0]]
    full_blocks = keep_cached(manager, first, {0})
    chunk_blocks = lists_of(manager, first)[1]
    hit = manager.get_computed_blocks(first)
    assert hit.blocks.to_lists() == [full_blocks[:1], chunk_blocks[:1]]


@pytest.mark.rule("KV-CHUNK-3", "KV-ERR-5")
@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({"specs": [chunked(4, 8)], "use_eagle": True}, "is_eagle_group"),
        ({"specs": [chunked(4, 8)], "eagle_groups": [0]}, "is_eagle_group"),
        ({"specs": [full(8), chunked(4, 8)]}, "block_size"),
        ({"specs": [chunked(4, 6)]}, "attention_chunk_size"),
        ({"specs": [chunked(4, 6)], "enable_caching": False}, "attention_chunk_size"),
        ({"specs": [full(4), chunked(4, 2)]}, "attention_chunk_size"),
    ],
)
def test_what_chunks_cannot_do_is_refused(
    make_manager: MakeManager, config: dict[str, Any], field: str
) -> None:
    """Eagle, another alignment than B, and a chunk that is no multiple of B."""
    with pytest.raises(ConfigError) as caught:
        make_manager(20, **config)
    assert caught.value.field == field


@pytest.mark.rule("KV-CHUNK-3")
def test_what_chunks_can_do_is_accepted(make_manager: MakeManager) -> None:
    """Equal block sizes; eagle on another group; with caching off, eagle and other sizes too."""
    make_manager(20, specs=[full(4), chunked(4, 8)])
    make_manager(20, specs=[full(4), chunked(4, 8)], eagle_groups=[0])
    make_manager(20, specs=[full(8), chunked(4, 8)], enable_caching=False, use_eagle=True)


@pytest.mark.rule("KV-CHUNK-3")
def test_the_profile_of_0_24_accepts_a_chunk_inside_a_block(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """B = 4, chunk 6, L = 13: the chunk starts at 12, so 3 blocks count as computed."""
    manager = make_manager(10, specs=[chunked(4, 6)], policy=Policy.vllm_0_24())
    request = make_request(manager, "r", range(14))
    assert hit_of(manager, request) == [0, 0, 0]
    admit(manager, request)
    assert lists_of(manager, request) == [[0, 0, 0, 1]]


@pytest.mark.rule("KV-CHUNK-3", "KV-MGR-8")
def test_a_hit_before_the_start_of_a_chunk_is_not_taken(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """B = 4, chunk 6, L = 10: null for block 0, yet token 4 would read it."""
    manager = make_manager(10, specs=[chunked(4, 6)], policy=Policy.vllm_0_24())
    request = make_request(manager, "r", range(11))
    assert hit_of(manager, request) == [0]
    before = manager.snapshot()
    with pytest.raises(StaleHitError):
        admit(manager, request)
    assert manager.snapshot() == before


@pytest.mark.rule("KV-CHUNK-4")
def test_every_full_block_is_cached(make_manager: MakeManager, make_request: MakeRequest) -> None:
    """Beside full attention, blocks of earlier chunks as well: all 4 of 18 tokens."""
    manager = make_manager(20, specs=[full(4), chunked(4, 8)])
    request = make_request(manager, "r", range(18))
    admit(manager, request)
    assert cached_positions(manager, request, 1) == [0, 1, 2, 3]


@pytest.mark.rule("KV-CHUNK-5")
@pytest.mark.parametrize(
    ("max_batched", "max_len", "num_tokens", "need"),
    [(6, 100, 80, 4), (6, 100, 12, 3), (4, 100, 80, 3), (6, 10, 80, 3)],
)
def test_admission_counts_a_chunk_and_a_step(
    make_manager: MakeManager,
    make_request: MakeRequest,
    max_batched: int,
    max_len: int,
    num_tokens: int,
    need: int,
) -> None:
    """B = 4, chunk 8, 6 tokens a step: at most cdiv(14, 4) = 4 blocks."""
    manager = make_manager(
        40,
        specs=[chunked(4, 8)],
        max_num_batched_tokens=max_batched,
        max_model_len_tokens=max_len,
    )
    request = make_request(manager, "r", range(4))
    assert need_of(manager, request, num_tokens, capped=True) == need
    assert need_of(manager, request, num_tokens) == -(-num_tokens // 4)


@pytest.mark.rule("KV-CHUNK-5")
@given(
    block_size=st.integers(1, 4),
    blocks_per_chunk=st.integers(1, 4),
    max_batched=st.integers(1, 12),
    steps=st.lists(st.integers(1, 12), min_size=1, max_size=12),
)
def test_a_request_never_holds_more_than_admission_counts(
    make_manager: MakeManager,
    make_request: MakeRequest,
    block_size: int,
    blocks_per_chunk: int,
    max_batched: int,
    steps: list[int],
) -> None:
    """However the tokens are cut into steps, the blocks held stay within the cap."""
    manager = make_manager(
        200,
        specs=[chunked(block_size, block_size * blocks_per_chunk)],
        max_num_batched_tokens=max_batched,
    )
    request = make_request(manager, "r", range(200))
    cap = need_of(manager, request, 200, capped=True)
    for step in steps:
        run_on(manager, request, min(step, max_batched))
        assert sum(1 for block in lists_of(manager, request)[0] if block) <= cap


@pytest.mark.rule("KV-CHUNK-6", "KV-MGR-15")
def test_chunks_have_no_common_prefix(make_manager: MakeManager, make_request: MakeRequest) -> None:
    """One request that shares with nobody: full attention answers 2, its chunks 0."""
    manager = make_manager(10, specs=[full(4), chunked(4, 8)])
    request = make_request(manager, "r", range(7))
    admit(manager, request)
    assert manager.get_num_common_prefix_blocks(request) == (2, 0)
