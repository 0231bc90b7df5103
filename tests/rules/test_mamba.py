"""KV-MAMBA: states instead of tokens, in the modes none and all, and what all modes share."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.rules.builders import (
    MakeManager,
    MakeRequest,
    admit,
    full,
    hit_of,
    queue_of,
)
from tests.rules.specs import (
    cached_positions,
    keep_cached,
    lists_of,
    mamba,
    need_of,
    null_positions,
)

MODES = pytest.mark.parametrize("mode", ["none", "all", "align"])


@pytest.mark.rule("KV-MAMBA-1", "KV-GRP-2")
@pytest.mark.parametrize("mode", ["none", "all"])
@pytest.mark.parametrize(("computed", "nulls"), [(0, []), (4, []), (5, [0]), (8, [0]), (9, [0, 1])])
def test_only_the_state_after_the_last_token_stays(
    make_manager: MakeManager,
    make_request: MakeRequest,
    mode: str,
    computed: int,
    nulls: list[int],
) -> None:
    """B = 4: after 8 tokens the next step reads the state in block 1; after 9 that in block 2."""
    manager = make_manager(10, specs=[mamba(4, mode)])
    request = make_request(manager, "r", range(14))
    admit(manager, request)
    manager.remove_skipped_blocks(request, computed)
    assert null_positions(manager, request) == nulls


@pytest.mark.rule("KV-MAMBA-2", "KV-MGR-19")
@MODES
def test_a_state_of_this_step_is_used_in_the_next(
    make_manager: MakeManager, make_request: MakeRequest, mode: str
) -> None:
    """The look-up answers it, the allocation is refused whatever is free, until a step begins."""
    manager = make_manager(100, specs=[mamba(4, mode)])
    admit(manager, make_request(manager, "first", range(8)))
    second = make_request(manager, "second", range(12))
    state = 1 if mode == "align" else 2  # align mode keeps no state after 4 tokens
    assert hit_of(manager, second) == [0, state]
    before = manager.snapshot()
    assert admit(manager, second) is None
    assert manager.snapshot() == before
    assert admit(manager, second, full_sequence_must_fit=True) is None
    assert manager.snapshot() == before
    manager.new_step_starts()
    assert admit(manager, second) is not None
    assert lists_of(manager, second)[0][:2] == [0, state]


@pytest.mark.rule("KV-MAMBA-2")
def test_an_older_state_may_be_used_at_once(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """What counts is the last hit: the state after 4 is old, the one after 8 new in this step."""
    manager = make_manager(20, specs=[mamba(4)])
    first = make_request(manager, "first", range(12))
    admit(manager, first, 4)
    manager.new_step_starts()
    assert manager.allocate_slots(first, 4) is not None
    assert admit(manager, make_request(manager, "long", range(9))) is None
    assert admit(manager, make_request(manager, "short", range(8))) is not None


@pytest.mark.rule("KV-MAMBA-2", "KV-POOL-14")
def test_a_copy_registered_in_this_step_holds_back_the_old_one(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """The key decides, not the block: a second request registers it again, a third must wait."""
    manager = make_manager(20, specs=[mamba(4)])
    admit(manager, make_request(manager, "first", range(4)))
    manager.new_step_starts()
    second = make_request(manager, "second", range(4))
    assert manager.allocate_slots(second, 4) is not None
    third = make_request(manager, "third", range(6))
    assert hit_of(manager, third) == [1]
    assert admit(manager, third) is None
    manager.new_step_starts()
    assert admit(manager, third) is not None


@pytest.mark.rule("KV-MAMBA-2")
def test_only_the_group_that_registered_it_waits(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """A key of the full group alone, registered now, holds nobody back."""
    manager = make_manager(40, specs=[full(4), mamba(4)])
    admit(manager, make_request(manager, "first", range(8)))
    manager.new_step_starts()
    again = make_request(manager, "again", range(8))
    assert manager.allocate_slots(again, 8) is not None  # without the hit: registers both anew
    refused = make_request(manager, "r", range(9))
    assert admit(manager, refused) is None
    keep_cached(manager, again, set(), group=1)
    manager.new_step_starts()
    manager.free(again)
    assert admit(manager, refused) is not None


@pytest.mark.rule("KV-MAMBA-3")
@pytest.mark.parametrize(
    ("cached", "hit_length"),
    [({0, 1, 2, 3}, 4), ({0, 2}, 3), ({0}, 1), (set(), 0), ({5}, 0), ({3, 5}, 4)],
)
def test_a_hit_is_the_rightmost_state(
    make_manager: MakeManager, make_request: MakeRequest, cached: set[int], hit_length: int
) -> None:
    """B = 4, 20 tokens: of the states after 4, 8, 12, 16 the last; null before it."""
    manager = make_manager(10, specs=[mamba(4)])
    first = make_request(manager, "first", range(24))
    admit(manager, first)
    blocks = keep_cached(manager, first, cached)
    hit = manager.get_computed_blocks(make_request(manager, "r", range(20)))
    expected = [0] * (hit_length - 1) + blocks[hit_length - 1 : hit_length] if hit_length else []
    assert hit.blocks.to_lists() == [expected]
    assert hit.hit_length_tokens == 4 * hit_length


@pytest.mark.rule("KV-MAMBA-3")
def test_a_state_that_is_not_aligned_is_passed_over(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """B = 4 beside full blocks of 8: the state after 12 is no hit, the one after 8 is."""
    manager = make_manager(30, specs=[full(8), mamba(4)])
    first = make_request(manager, "first", range(17))
    admit(manager, first)
    blocks = keep_cached(manager, first, {0, 1, 2}, group=1)
    assert manager.get_computed_blocks(first).blocks.to_lists()[1] == [0, blocks[1]]
    manager.evict_blocks([blocks[1]])
    assert manager.get_computed_blocks(first).hit_length_tokens == 0


@pytest.mark.rule("KV-MAMBA-3", "KV-CFG-8")
def test_eagle_drops_no_state(make_manager: MakeManager, make_request: MakeRequest) -> None:
    """A state is a whole prefix: its last block cannot be dropped. Full attention drops one."""
    for spec, length in ((mamba(4), 12), (full(4), 8)):
        manager = make_manager(10, specs=[spec], use_eagle=True)
        admit(manager, make_request(manager, "first", range(12)))
        hit = manager.get_computed_blocks(make_request(manager, "r", range(15)))
        assert hit.hit_length_tokens == length


@pytest.mark.rule("KV-MAMBA-4")
@pytest.mark.parametrize("mode", ["none", "all"])
def test_drafted_states_have_blocks_of_their_own(
    make_manager: MakeManager, make_request: MakeRequest, mode: str
) -> None:
    """B = 4, S = 2: 5 tokens take 2 + 2 blocks, 8 no more, 9 one more."""
    manager = make_manager(10, specs=[mamba(4, mode, speculative=2)], enable_caching=False)
    request = make_request(manager, "r", range(20))
    assert need_of(manager, request, 5) == 4
    admit(manager, request, 5)
    assert lists_of(manager, request) == [[1, 2, 3, 4]]
    assert need_of(manager, request, 8, computed=5) == 0
    assert need_of(manager, request, 9, computed=8) == 1


@pytest.mark.rule("KV-MAMBA-4")
def test_lookahead_comes_before_drafted_states(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """Mode all: 4 tokens and 2 of lookahead are 2 blocks, and S = 1 more."""
    manager = make_manager(10, specs=[mamba(4, "all", speculative=1)])
    request = make_request(manager, "r", range(4))
    assert manager.allocate_slots(request, 4, num_lookahead_tokens=2) is not None
    assert lists_of(manager, request) == [[1, 2, 3]]


@pytest.mark.rule("KV-MAMBA-5")
@pytest.mark.parametrize(("computed", "nulls"), [(6, []), (7, [0]), (10, [0]), (11, [0, 1])])
def test_drafts_may_be_rejected_so_their_states_stay(
    make_manager: MakeManager, make_request: MakeRequest, computed: int, nulls: list[int]
) -> None:
    """B = 4, S = 2: at 6 computed tokens only 4 are sure, and the state after 4 is read."""
    manager = make_manager(10, specs=[mamba(4, "all", speculative=2)])
    request = make_request(manager, "r", range(16))
    admit(manager, request)
    manager.remove_skipped_blocks(request, computed)
    assert null_positions(manager, request) == nulls


@pytest.mark.rule("KV-MAMBA-5", "KV-GRP-4")
def test_the_drafts_count_for_the_removal_only(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """S = 6, hit of 8 tokens: taking hits skips by s(8) = 7 all the same: null, then the state."""
    manager = make_manager(20, specs=[mamba(4, "all", speculative=6)])
    admit(manager, make_request(manager, "first", range(8)))
    manager.new_step_starts()
    second = make_request(manager, "second", range(12))
    admit(manager, second)
    assert lists_of(manager, second)[0][:2] == [0, 2]
    free = manager.num_free_blocks
    manager.remove_skipped_blocks(second, 12)
    assert manager.num_free_blocks == free
    manager.remove_skipped_blocks(second, 15)
    assert null_positions(manager, second) == [0, 1]


@pytest.mark.rule("KV-MAMBA-5", "KV-GRP-5", "KV-GRP-6")
def test_the_drafts_do_not_count_for_external_tokens(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """S = 4, 16 external tokens: s(16) = 15 skips 3 blocks, where s(12) = 11 would skip 2."""
    manager = make_manager(20, specs=[mamba(4, "all", speculative=4)])
    request = make_request(manager, "r", range(18))
    answer = manager.allocate_slots(request, 1, num_external_computed_tokens=16)
    assert answer is not None
    assert lists_of(manager, request) == [[0, 0, 0, 1, 2, 3, 4, 5, 6]]
    assert answer.to_lists() == [[2, 3, 4, 5, 6]]


@pytest.mark.rule("KV-MAMBA-13", "KV-MGR-15")
@MODES
def test_states_have_no_common_prefix(
    make_manager: MakeManager, make_request: MakeRequest, mode: str
) -> None:
    """One request alone: its full group answers 2, its Mamba group 0."""
    manager = make_manager(20, specs=[full(4), mamba(4, mode)])
    request = make_request(manager, "r", range(7))
    admit(manager, request)
    assert manager.get_num_common_prefix_blocks(request) == (2, 0)


@pytest.mark.rule("KV-MAMBA-1", "KV-MAMBA-3", "KV-POOL-7")
def test_a_hit_state_is_touched_and_released_when_the_next_is_there(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """Block 2 is hit, kept while token 8 is computed, and released once 9 tokens are."""
    manager = make_manager(8, specs=[mamba(4)])
    first = make_request(manager, "first", range(8))
    admit(manager, first)
    manager.free(first)
    manager.new_step_starts()
    second = make_request(manager, "second", range(13))
    admit(manager, second, 1)
    assert lists_of(manager, second) == [[0, 2, 3]]
    assert queue_of(manager) == [4, 5, 6, 7, 1]
    assert manager.allocate_slots(second, 1) is not None
    assert lists_of(manager, second) == [[0, 0, 3]]
    assert queue_of(manager) == [4, 5, 6, 7, 1, 2]
    assert cached_positions(manager, second) == []


@pytest.mark.rule("KV-MAMBA-1", "KV-MAMBA-5")
@given(
    block_size=st.integers(1, 4),
    speculative=st.integers(0, 3),
    steps=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 3)), min_size=1, max_size=10),
    mode=st.sampled_from(["none", "all"]),
)
def test_the_state_that_a_step_reads_is_never_null(
    make_manager: MakeManager,
    make_request: MakeRequest,
    block_size: int,
    speculative: int,
    steps: list[tuple[int, int]],
    mode: str,
) -> None:
    """Chunks that end with up to S drafts, of which any may be rejected."""
    manager = make_manager(
        200, specs=[mamba(block_size, mode, speculative=speculative)], enable_caching=False
    )
    request = make_request(manager, "r", range(200))
    for chunk, rejected in steps:
        assert manager.allocate_slots(request, chunk) is not None
        (blocks,) = lists_of(manager, request)
        computed = request.num_computed_tokens
        assert computed == 0 or blocks[(computed - 1) // block_size] != 0
        request.num_computed_tokens += chunk - min(rejected, speculative, chunk - 1)
