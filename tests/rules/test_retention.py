"""KV-RET: which blocks of windowed and Mamba groups are worth caching."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvspec.events import BlockStored
from kvspec.interface import Implementation
from kvspec.specs import LayerSpec
from tests.rules.builders import MakeManager, MakeRequest, admit, full, run_on
from tests.rules.specs import cached_positions, chunked, counts_of, mamba, sliding


def cached_after(
    make_manager: MakeManager,
    make_request: MakeRequest,
    specs: Sequence[LayerSpec],
    num_tokens: int,
    *,
    group: int = 0,
    **config: Any,
) -> list[int]:
    """Which positions of a prompt of so many tokens are cached in `group`."""
    manager = make_manager(80, specs=specs, **config)
    request = make_request(manager, "r", range(num_tokens))
    assert admit(manager, request) is not None
    return cached_positions(manager, request, group)


@pytest.mark.rule("KV-RET-1")
@pytest.mark.parametrize(
    ("window", "positions"),
    [
        (1, []),
        (5, [3, 7]),
        (9, [2, 3, 6, 7]),
        (13, [1, 2, 3, 5, 6, 7]),
        (14, list(range(8))),
        (100, list(range(8))),
    ],
)
def test_the_tail_before_a_multiple_of_the_alignment_is_cached(
    make_manager: MakeManager, make_request: MakeRequest, window: int, positions: list[int]
) -> None:
    """B = 4, A = 16, 40 tokens: with W = 5 (need 1) blocks 3 and 7; with need 4 = A / B all."""
    specs = [full(16), sliding(4, window)]
    assert cached_after(make_manager, make_request, specs, 40, group=1) == positions


@pytest.mark.rule("KV-RET-1", "KV-COORD-13")
@pytest.mark.parametrize(
    ("window", "positions"),
    [(1, [4, 8]), (5, [3, 4, 7, 8]), (9, [2, 3, 4, 6, 7, 8]), (10, list(range(9)))],
)
def test_an_eagle_tail_lies_one_block_later(
    make_manager: MakeManager, make_request: MakeRequest, window: int, positions: list[int]
) -> None:
    """B = 4, A = 16, 40 tokens, W = 5: need 2, shifted by 1: blocks 3, 4 and 7, 8."""
    specs = [full(16), sliding(4, window)]
    cached = cached_after(make_manager, make_request, specs, 40, group=1, eagle_groups=[1])
    assert cached == positions


@pytest.mark.rule("KV-RET-1")
def test_the_shift_belongs_to_all_groups_of_a_spec(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """Groups 1 and 2 are equal and 2 is flagged: 1 keeps the same blocks as 2."""
    specs = [full(16), sliding(4, 5), sliding(4, 5)]
    for group in (1, 2):
        cached = cached_after(make_manager, make_request, specs, 40, group=group, eagle_groups=[2])
        assert cached == [3, 4, 7, 8]


@pytest.mark.rule("KV-RET-1")
@given(
    block_size=st.sampled_from([1, 2, 4]),
    full_size=st.sampled_from([4, 8, 12]),
    window=st.integers(1, 40),
    num_tokens=st.integers(1, 50),
    eagle=st.booleans(),
)
@settings(max_examples=200)
def test_what_some_aligned_hit_could_use_is_cached_and_nothing_else(
    make_manager: MakeManager,
    make_request: MakeRequest,
    block_size: int,
    full_size: int,
    window: int,
    num_tokens: int,
    eagle: bool,
) -> None:
    """Per boundary: the blocks its window reads, and with eagle the one behind it."""
    cached = cached_after(
        make_manager,
        make_request,
        [full(full_size), sliding(block_size, window)],
        num_tokens,
        group=1,
        eagle_groups=[1] if eagle else [],
    )
    last = num_tokens // full_size * full_size
    useful: set[int] = set()
    for boundary in range(full_size, last + 1, full_size):
        # Token `boundary` is computed next and sees the tokens since boundary - window + 1.
        read = range(max(0, boundary - window + 1), boundary)
        useful |= {token // block_size for token in read}
        if eagle:
            useful.add(boundary // block_size)
    limit = min(num_tokens, last + block_size) if eagle and last else last
    useful = {index for index in useful if (index + 1) * block_size <= limit}
    need = -(-(window - 1) // block_size) + eagle
    if need >= full_size // block_size:
        assert set(cached) == set(range(limit // block_size))
        assert useful <= set(cached)
    else:
        assert set(cached) == useful


@pytest.mark.rule("KV-RET-2", "KV-RET-4")
@pytest.mark.parametrize(
    ("num_tokens", "positions"), [(4, []), (5, [0]), (12, [1]), (13, [2]), (16, [2]), (17, [3])]
)
def test_interval_0_keeps_only_the_replay_boundary(
    make_manager: MakeManager, make_request: MakeRequest, num_tokens: int, positions: list[int]
) -> None:
    """B = A = 4, W = 5: a prompt of 14 would be replayed from 12, so block 2 is kept."""
    specs = [sliding(4, 5)]
    cached = cached_after(
        make_manager, make_request, specs, num_tokens, retention_interval_tokens=0
    )
    assert cached == positions


@pytest.mark.rule("KV-RET-3", "KV-RET-4")
@pytest.mark.parametrize(
    ("interval", "positions"),
    [(4, [0, 1, 2, 3, 4, 5, 6]), (8, [1, 3, 5, 6]), (12, [2, 5, 6]), (16, [3, 6]), (64, [6])],
)
def test_interval_k_keeps_one_tail_per_k_tokens(
    make_manager: MakeManager, make_request: MakeRequest, interval: int, positions: list[int]
) -> None:
    """B = A = 4, W = 5, 30 tokens: every k tokens one block, and block 6 before 28."""
    cached = cached_after(
        make_manager, make_request, [sliding(4, 5)], 30, retention_interval_tokens=interval
    )
    assert cached == positions


@pytest.mark.rule("KV-RET-3", "KV-RET-4")
def test_retained_tails_are_shifted_with_eagle(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """k = 16, W = 5, eagle: need 2, shift 1: 3, 4 before 16 + 4, and 6, 7 for the replay of 28."""
    cached = cached_after(
        make_manager,
        make_request,
        [sliding(4, 5)],
        32,
        use_eagle=True,
        retention_interval_tokens=16,
    )
    assert cached == [3, 4, 6, 7]


@pytest.mark.rule("KV-RET-3")
def test_a_window_as_long_as_the_interval_keeps_everything(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """k = 8, B = 4, W = 6 needs 2 blocks = k / B."""
    cached = cached_after(
        make_manager, make_request, [sliding(4, 6)], 30, retention_interval_tokens=8
    )
    assert cached == [0, 1, 2, 3, 4, 5, 6]


@pytest.mark.rule("KV-RET-4")
@pytest.mark.parametrize(("prompt", "positions"), [(18, [2, 3]), (17, [2, 3]), (16, [0, 1])])
def test_the_replay_boundary_is_aligned_and_leaves_a_token(
    make_manager: MakeManager, make_request: MakeRequest, prompt: int, positions: list[int]
) -> None:
    """A = 8, B = 4, W = 8 (need 2): a prompt of 17 is replayed from 16, one of 16 from 8."""
    cached = cached_after(
        make_manager,
        make_request,
        [full(8), sliding(4, 8)],
        prompt,
        group=1,
        retention_interval_tokens=0,
    )
    assert cached == positions


@pytest.mark.rule("KV-RET-4")
def test_generated_tokens_do_not_move_the_replay_boundary(
    implementation: Implementation, make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """Prompt 9, 12 tokens more: block 1 before 8 stays the only one."""
    manager = make_manager(20, specs=[sliding(4, 5)], retention_interval_tokens=0)
    request = make_request(manager, "r", range(9))
    admit(manager, request)
    for token in range(12):
        implementation.append_tokens(manager, request, [token])
        run_on(manager, request)
    manager.remove_skipped_blocks(request, 8)
    assert cached_positions(manager, request) == []  # block 1 is out of the window of token 21
    assert [i for i, keys in enumerate(manager.snapshot().block_keys) if keys] == [2]
    assert counts_of(manager, request) == (5,)


@pytest.mark.rule("KV-RET-4", "KV-MGR-17")
def test_a_resumed_request_is_kept_by_its_prompt_alone(
    implementation: Implementation, make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """Prompt 9, 12 tokens generated, then computed again in one step: block 1 before 8, not 4."""
    manager = make_manager(20, specs=[sliding(4, 5)], retention_interval_tokens=0)
    request = make_request(manager, "r", range(9))
    implementation.append_tokens(manager, request, range(12))
    assert admit(manager, request) is not None
    assert cached_positions(manager, request) == [1]


@pytest.mark.rule("KV-RET-5")
@pytest.mark.parametrize(
    ("interval", "positions"),
    [
        (None, [0, 1, 2, 3, 4, 5, 6]),
        (4, [0, 1, 2, 3, 4, 5, 6]),
        (8, [1, 3, 5, 6]),
        (12, [2, 5, 6]),
        (0, [6]),
    ],
)
def test_mamba_keeps_the_states_at_multiples_of_the_interval(
    make_manager: MakeManager,
    make_request: MakeRequest,
    interval: int | None,
    positions: list[int],
) -> None:
    """B = 4, 30 tokens: with k = 8 the states after 8, 16 and 24, and after 28, the replay's."""
    cached = cached_after(
        make_manager, make_request, [mamba(4)], 30, retention_interval_tokens=interval
    )
    assert cached == positions


@pytest.mark.rule("KV-RET-5")
def test_mamba_states_are_not_shifted_with_eagle(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """k = 8, eagle: still the states after 8, 16, 24 and 28."""
    cached = cached_after(
        make_manager,
        make_request,
        [mamba(4)],
        30,
        use_eagle=True,
        retention_interval_tokens=8,
    )
    assert cached == [1, 3, 5, 6]


@pytest.mark.rule("KV-RET-5")
def test_a_state_longer_than_the_alignment_is_kept_at_every_block(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """Blocks of 8 and k = 8 = A: every state; the full group of 4 is not thinned out."""
    specs = [full(4), mamba(8)]
    config: dict[str, Any] = {"retention_interval_tokens": 8}
    assert cached_after(make_manager, make_request, specs, 33, group=1, **config) == [0, 1, 2, 3]
    assert cached_after(make_manager, make_request, specs, 33, group=0, **config) == list(range(8))


@pytest.mark.rule("KV-RET-6", "KV-GRP-11", "KV-EVT-2")
def test_the_count_and_the_event_go_over_masked_blocks(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """k = 8, 14 tokens: block 0 is masked; the count is 3; the event has 2 hashes, 12 tokens."""
    manager = make_manager(
        20, specs=[sliding(4, 5)], retention_interval_tokens=8, enable_events=True
    )
    request = make_request(manager, "r", range(14))
    admit(manager, request)
    assert counts_of(manager, request) == (3,)
    (stored,) = manager.take_events()
    assert isinstance(stored, BlockStored)
    assert stored.block_hashes == (request.block_hashes[1], request.block_hashes[2])
    assert stored.token_ids == tuple(range(12))
    before = manager.snapshot()
    manager.cache_blocks(request, 14)
    assert manager.snapshot() == before
    assert manager.take_events() == ()


@pytest.mark.rule("KV-RET-6", "KV-EVT-2")
def test_a_call_over_masked_blocks_only_tells_an_event_without_hashes(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """Interval 0, the first 8 of 14 tokens: nothing is cached, the count is 2, the event is out."""
    manager = make_manager(
        20, specs=[sliding(4, 5)], retention_interval_tokens=0, enable_events=True
    )
    request = make_request(manager, "r", range(14))
    admit(manager, request, 8)
    assert cached_positions(manager, request) == []
    assert counts_of(manager, request) == (2,)
    (stored,) = manager.take_events()
    assert isinstance(stored, BlockStored)
    assert (stored.block_hashes, stored.extra_keys) == ((), None)
    assert stored.token_ids == tuple(range(8))


@pytest.mark.rule("KV-FULL-6", "KV-CHUNK-4", "KV-RET-1")
def test_full_and_chunked_groups_are_never_thinned_out(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """Beside a window with interval 0, full and chunked attention cache all 7 blocks."""
    specs = [full(4), chunked(4, 8), sliding(4, 5)]
    for group, positions in ((0, list(range(7))), (1, list(range(7))), (2, [6])):
        cached = cached_after(
            make_manager, make_request, specs, 30, group=group, retention_interval_tokens=0
        )
        assert cached == positions
