"""KV-SW: what a sliding window skips, hits and holds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvspec.events import BlockStored
from kvspec.specs import SlidingWindowSpec
from tests.rules.builders import (
    MakeManager,
    MakeRequest,
    admit,
    cached_blocks,
    full,
    hit_of,
    queue_of,
    run_on,
)
from tests.rules.specs import (
    cached_positions,
    counts_of,
    keep_cached,
    lists_of,
    need_of,
    null_positions,
    sliding,
    sliding_mla,
)


@pytest.mark.rule("KV-SW-1", "KV-GRP-2")
@pytest.mark.parametrize(("computed", "nulls"), [(6, []), (7, [0]), (10, [0]), (11, [0, 1])])
def test_a_block_is_skipped_once_its_last_token_left_the_window(
    make_manager: MakeManager, make_request: MakeRequest, computed: int, nulls: list[int]
) -> None:
    """B = 4, W = 4. At 7 computed tokens token 7 sees 4 … 7: block 0 goes; at 6 it stays."""
    manager = make_manager(10, specs=[sliding(4, 4)])
    request = make_request(manager, "r", range(16))
    admit(manager, request)
    manager.remove_skipped_blocks(request, computed)
    assert null_positions(manager, request) == nulls


@pytest.mark.rule("KV-SW-1")
@given(
    block_size=st.integers(1, 5),
    window=st.integers(1, 14),
    num_tokens=st.integers(1, 24),
    data=st.data(),
)
def test_exactly_the_blocks_that_no_later_token_sees_turn_null(
    make_manager: MakeManager,
    make_request: MakeRequest,
    block_size: int,
    window: int,
    num_tokens: int,
    data: st.DataObject,
) -> None:
    """Token t sees t - W + 1 … t; a block stays while one of its tokens is seen by c or later."""
    computed = data.draw(st.integers(0, num_tokens))
    manager = make_manager(30, specs=[sliding(block_size, window)], enable_caching=False)
    request = make_request(manager, "r", range(num_tokens))
    admit(manager, request)
    manager.remove_skipped_blocks(request, computed)
    num_blocks = len(lists_of(manager, request)[0])
    later = range(computed, num_blocks * block_size + 1)
    seen = {token for at in later for token in range(max(0, at - window + 1), at + 1)}
    unseen = [
        index
        for index in range(num_blocks)
        if not seen & set(range(index * block_size, (index + 1) * block_size))
    ]
    assert null_positions(manager, request) == unseen


@pytest.mark.rule("KV-SW-1", "KV-MGR-6")
def test_blocks_out_of_the_window_are_released_while_the_request_runs(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """B = 4, W = 4, a pool of 3 usable blocks carries a request of 20 tokens, 4 a step."""
    manager = make_manager(4, specs=[sliding(4, 4)], enable_caching=False)
    request = make_request(manager, "r", range(20))
    admit(manager, request, 4)
    for _ in range(4):
        run_on(manager, request, 4)
    assert null_positions(manager, request) == [0, 1, 2]
    assert manager.num_free_blocks == 1


@pytest.mark.rule("KV-SW-2", "KV-SW-3")
def test_a_hit_is_the_rightmost_run_that_fills_a_window(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """B = 4, W = 8 needs cdiv(7, 4) = 2 blocks: of 2, 3 and 5 the run 2, 3; 0 and 1 are null."""
    manager = make_manager(10, specs=[sliding(4, 8)])
    first = make_request(manager, "first", range(28))
    admit(manager, first)
    blocks = keep_cached(manager, first, {2, 3, 5})
    hit = manager.get_computed_blocks(make_request(manager, "r", range(28)))
    assert hit.blocks.to_lists() == [[0, 0, blocks[2], blocks[3]]]
    assert hit.hit_length_tokens == 16


@pytest.mark.rule("KV-SW-2", "KV-SW-3")
@pytest.mark.parametrize(
    ("window", "need"), [(2, 1), (5, 1), (6, 2), (9, 2), (10, 3), (13, 3), (14, 4)]
)
def test_a_window_needs_the_blocks_of_its_earlier_tokens(
    make_manager: MakeManager, make_request: MakeRequest, window: int, need: int
) -> None:
    """B = 4: the next token sees W - 1 tokens of the hit, so cdiv(W - 1, 4) blocks of it."""
    manager = make_manager(10, specs=[sliding(4, window)])
    first = make_request(manager, "first", range(24))
    admit(manager, first)
    blocks = lists_of(manager, first)[0]
    assert hit_of(manager, first) == [0] * (5 - need) + blocks[5 - need : 5]


@pytest.mark.rule("KV-SW-2", "KV-SW-5")
def test_with_a_drop_the_run_is_one_block_longer(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """B = 4, W = 8, eagle: three blocks 1, 2, 3; the last is dropped. 2, 3 alone are no hit."""
    manager = make_manager(10, specs=[sliding(4, 8)], use_eagle=True)
    first = make_request(manager, "first", range(24))
    admit(manager, first)
    blocks = keep_cached(manager, first, {1, 2, 3})
    assert hit_of(manager, first) == [0, blocks[1], blocks[2]]
    manager.evict_blocks([blocks[1]])
    assert hit_of(manager, first) == []


@pytest.mark.rule("KV-SW-2")
def test_a_run_ends_where_hits_may_end(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """B = 4 beside full blocks of 8, W = 14: the four blocks 1 … 4 end at 20, 0 … 3 at 16."""
    manager = make_manager(30, specs=[full(8), sliding(4, 14)])
    first = make_request(manager, "first", range(25))
    admit(manager, first)
    blocks = keep_cached(manager, first, {0, 1, 2, 3, 4}, group=1)
    hit = manager.get_computed_blocks(make_request(manager, "r", range(24)))
    assert hit.blocks.to_lists()[1] == blocks[:4]
    assert hit.hit_length_tokens == 16
    manager.evict_blocks([blocks[0]])
    assert manager.get_computed_blocks(first).hit_length_tokens == 0


@pytest.mark.rule("KV-SW-2", "KV-COORD-9")
def test_with_a_drop_the_run_ends_one_block_beyond_the_boundary(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """A = 8, B = 4, W = 5, eagle: 1 and 2 are the run for a hit of 8; block 1 is what is left."""
    manager = make_manager(30, specs=[full(8), sliding(4, 5)], eagle_groups=[1])
    first = make_request(manager, "first", range(24))
    admit(manager, first)
    blocks = keep_cached(manager, first, {1, 2, 3}, group=1)
    assert manager.find_longest_cache_hit_per_group(first, 23).blocks.to_lists()[1] == [
        0,
        blocks[1],
    ]


@pytest.mark.rule("KV-SW-4")
@pytest.mark.parametrize(
    ("cached", "length"),
    [({0}, 1), ({0, 1}, 2), ({0, 1, 3, 4}, 2), ({1}, 0), ({1, 2}, 0), ({0, 1, 2}, 3)],
)
def test_a_run_from_the_start_counts_however_short(
    make_manager: MakeManager, make_request: MakeRequest, cached: set[int], length: int
) -> None:
    """B = 4, W = 13 needs 3 blocks; fewer count only if they begin with block 0."""
    manager = make_manager(10, specs=[sliding(4, 13)])
    first = make_request(manager, "first", range(24))
    admit(manager, first)
    blocks = keep_cached(manager, first, cached)
    assert hit_of(manager, first) == blocks[:length]


@pytest.mark.rule("KV-SW-4")
def test_a_full_run_goes_before_a_run_from_the_start(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """Need 2: the run 3, 4 is longer than the run 0, 1, and the run 0 alone is none beside it."""
    manager = make_manager(10, specs=[sliding(4, 9)])
    first = make_request(manager, "first", range(24))
    admit(manager, first)
    blocks = keep_cached(manager, first, {0, 3, 4})
    assert hit_of(manager, first) == [0, 0, 0, blocks[3], blocks[4]]
    manager.evict_blocks([blocks[4]])
    assert hit_of(manager, first) == [blocks[0]]


@pytest.mark.rule("KV-SW-4")
@pytest.mark.parametrize(("num_cached", "length"), [(1, 0), (2, 8), (3, 8), (4, 16)])
def test_a_run_from_the_start_is_cut_to_alignment(
    make_manager: MakeManager, make_request: MakeRequest, num_cached: int, length: int
) -> None:
    """A = 8, B = 4, W = 33 needs 8 blocks: of three cached ones two count."""
    manager = make_manager(30, specs=[full(8), sliding(4, 33)])
    first = make_request(manager, "first", range(24))
    admit(manager, first)
    keep_cached(manager, first, set(range(num_cached)), group=1)
    assert manager.get_computed_blocks(first).hit_length_tokens == length


@pytest.mark.rule("KV-SW-5")
@pytest.mark.parametrize(("cached", "length"), [({0}, 0), ({0, 1}, 1), ({0, 1, 2}, 2)])
def test_a_run_from_the_start_drops_its_last_block(
    make_manager: MakeManager, make_request: MakeRequest, cached: set[int], length: int
) -> None:
    """B = 4, W = 13, eagle: need 4; two cached blocks from the start give a hit of one."""
    manager = make_manager(10, specs=[sliding(4, 13)], use_eagle=True)
    first = make_request(manager, "first", range(24))
    admit(manager, first)
    blocks = keep_cached(manager, first, cached)
    assert hit_of(manager, first) == blocks[:length]


@pytest.mark.rule("KV-SW-5", "KV-COORD-9")
@pytest.mark.parametrize(("num_cached", "length"), [(2, 0), (3, 0), (4, 0), (5, 8)])
def test_after_the_drop_a_run_from_the_start_is_cut_again(
    make_manager: MakeManager, make_request: MakeRequest, num_cached: int, length: int
) -> None:
    """A = 8, B = 4, W = 33, eagle: three blocks are cut to two, one is dropped, none is left."""
    manager = make_manager(30, specs=[full(8), sliding(4, 33)], eagle_groups=[1])
    first = make_request(manager, "first", range(28))
    admit(manager, first)
    keep_cached(manager, first, set(range(num_cached)), group=1)
    assert manager.find_longest_cache_hit_per_group(first, 27).hit_lengths_tokens[1] == length


@pytest.mark.rule("KV-SW-6")
def test_window_1_caches_and_hits_nothing(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """A token that sees only itself: no block of 12 tokens is cached, the count goes on to 3."""
    manager = make_manager(10, specs=[sliding(4, 1)])
    first = make_request(manager, "first", range(12))
    admit(manager, first)
    assert cached_blocks(manager) == set()
    assert counts_of(manager, first) == (3,)
    assert hit_of(manager, make_request(manager, "r", range(16))) == []


@pytest.mark.rule("KV-SW-6")
def test_window_1_with_a_drop_hits_nulls(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """Flagged, one block is worth caching: of five cached ones the fourth is hit and dropped."""
    manager = make_manager(10, specs=[sliding(4, 1)], use_eagle=True)
    first = make_request(manager, "first", range(20))
    admit(manager, first)
    assert cached_positions(manager, first) == [0, 1, 2, 3, 4]
    assert hit_of(manager, make_request(manager, "r", range(20))) == [0, 0, 0]


@pytest.mark.rule("KV-SW-7")
@pytest.mark.parametrize(
    ("max_batched", "max_len", "num_tokens", "need"),
    [(8, 100, 80, 5), (8, 100, 16, 4), (8, 12, 12, 3), (3, 100, 80, 3), (7, 10, 80, 4)],
)
def test_admission_counts_a_window_a_step_and_one_block(
    make_manager: MakeManager,
    make_request: MakeRequest,
    max_batched: int,
    max_len: int,
    num_tokens: int,
    need: int,
) -> None:
    """B = 4, W = 6, 8 tokens a step: at most cdiv(5 + 8, 4) + 1 = 5 blocks, whatever is asked."""
    manager = make_manager(
        40, specs=[sliding(4, 6)], max_num_batched_tokens=max_batched, max_model_len_tokens=max_len
    )
    request = make_request(manager, "r", range(4))
    assert need_of(manager, request, num_tokens, capped=True) == need
    assert need_of(manager, request, num_tokens) == -(-num_tokens // 4)


@pytest.mark.rule("KV-SW-7", "KV-MGR-5")
@pytest.mark.parametrize(("num_blocks", "fits"), [(6, True), (5, False)])
def test_a_long_request_is_admitted_with_what_its_window_needs(
    make_manager: MakeManager, make_request: MakeRequest, num_blocks: int, fits: bool
) -> None:
    """80 tokens, 8 a step, W = 6: admitted with 5 free blocks, and then runs to its end in them."""
    manager = make_manager(num_blocks, specs=[sliding(4, 6)], max_num_batched_tokens=8)
    request = make_request(manager, "r", range(80))
    answer = manager.allocate_slots(request, 8, full_sequence_must_fit=True)
    assert (answer is not None) == fits
    if fits:
        request.num_computed_tokens = 8
        for _ in range(9):
            run_on(manager, request, 8)


@pytest.mark.rule("KV-SW-7")
@given(
    block_size=st.integers(1, 5),
    window=st.integers(1, 12),
    max_batched=st.integers(1, 12),
    steps=st.lists(st.integers(1, 12), min_size=1, max_size=12),
)
def test_a_request_never_holds_more_than_admission_counts(
    make_manager: MakeManager,
    make_request: MakeRequest,
    block_size: int,
    window: int,
    max_batched: int,
    steps: list[int],
) -> None:
    """However the tokens are cut into steps, the blocks held stay within the cap."""
    manager = make_manager(
        200, specs=[sliding(block_size, window)], max_num_batched_tokens=max_batched
    )
    request = make_request(manager, "r", range(200))
    cap = need_of(manager, request, 200, capped=True)
    for step in steps:
        run_on(manager, request, min(step, max_batched))
        assert sum(1 for block in lists_of(manager, request)[0] if block) <= cap


@pytest.mark.rule("KV-SW-8", "KV-MGR-15")
def test_a_window_has_no_common_prefix(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """One request that shares with nobody: full attention would answer 3."""
    manager = make_manager(10, specs=[sliding(4, 8)])
    request = make_request(manager, "r", range(12))
    admit(manager, request)
    assert manager.get_num_common_prefix_blocks(request) == (0,)


@pytest.mark.rule("KV-SW-8", "KV-GRP-10", "KV-EVT-2")
@pytest.mark.parametrize(
    ("spec", "kind"),
    [(sliding(4, 8), "sliding_window"), (sliding_mla(4, 8), "sliding_window_mla")],
    ids=["plain", "mla"],
)
def test_sliding_mla_behaves_as_a_sliding_window(
    make_manager: MakeManager, make_request: MakeRequest, spec: SlidingWindowSpec, kind: str
) -> None:
    """The same blocks, hits and queue; nothing is queued for zeroing; events name kind and W."""
    manager = make_manager(8, specs=[spec], enable_events=True)
    first = make_request(manager, "first", range(16))
    admit(manager, first)
    manager.remove_skipped_blocks(first, 16)
    assert lists_of(manager, first) == [[0, 0, 3, 4]]
    assert queue_of(manager) == [5, 6, 7, 2, 1]
    assert cached_positions(manager, first) == [2, 3]
    assert hit_of(manager, make_request(manager, "r", range(20))) == [0, 0, 3, 4]
    assert manager.take_new_block_ids() == ()
    (stored,) = manager.take_events()
    assert isinstance(stored, BlockStored)
    assert (stored.spec_kind, stored.sliding_window_tokens) == (kind, 8)
