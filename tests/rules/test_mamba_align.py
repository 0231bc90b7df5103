"""KV-MAMBA in mode align: the lists, and what is remembered and released."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.rules.builders import MakeManager, MakeRequest, admit, queue_of
from tests.rules.specs import (
    cached_positions,
    has_taken_blocks,
    lists_of,
    mamba,
    need_of,
    null_positions,
    step,
)


@pytest.mark.rule("KV-MAMBA-9")
def test_a_first_allocation_pads_with_null(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """B = 4, S = 2, 13 tokens: null up to index 3, then the running state and two drafted ones."""
    manager = make_manager(10, specs=[mamba(4, "align", speculative=2)])
    request = make_request(manager, "r", range(100))
    assert step(manager, request, 13) == [0, 0, 0, 1, 2, 3]
    assert has_taken_blocks(manager, request)


@pytest.mark.rule("KV-MAMBA-9")
def test_the_next_state_is_the_first_drafted_one(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """One block further, the drafted block at index 4 is where the running state belongs."""
    manager = make_manager(10, specs=[mamba(4, "align", speculative=2)])
    request = make_request(manager, "r", range(100))
    step(manager, request, 13)
    assert step(manager, request, 3) == []
    assert step(manager, request, 1) == [4]
    assert lists_of(manager, request) == [[0, 0, 0, 1, 2, 3, 4]]


@pytest.mark.rule("KV-MAMBA-9")
def test_drafted_states_move_along(make_manager: MakeManager, make_request: MakeRequest) -> None:
    """From 6 to 9 entries: 2 and 3 before index 6 move to the end, in order, and 4 is taken."""
    manager = make_manager(10, specs=[mamba(4, "align", speculative=2)])
    request = make_request(manager, "r", range(100))
    step(manager, request, 13)
    assert step(manager, request, 12) == [2, 3, 4]
    assert lists_of(manager, request) == [[0, 0, 0, 1, 0, 0, 2, 3, 4]]


@pytest.mark.rule("KV-MAMBA-9")
def test_drafted_states_move_only_from_before_the_running_one(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """From 6 to 8 entries the running state is at 5: 2 at index 4 moves, 3 at index 5 stays."""
    manager = make_manager(10, specs=[mamba(4, "align", speculative=2)])
    request = make_request(manager, "r", range(100))
    step(manager, request, 13)
    assert step(manager, request, 8) == [2, 4]
    assert lists_of(manager, request) == [[0, 0, 0, 1, 0, 3, 2, 4]]


@pytest.mark.rule("KV-MAMBA-9")
def test_a_hit_stays_where_it_is(make_manager: MakeManager, make_request: MakeRequest) -> None:
    """Hit of 8 with S = 1: the hit is entry 1, 13 tokens end in entry 3."""
    manager = make_manager(10, specs=[mamba(4, "align", speculative=1)])
    first = make_request(manager, "first", range(8))
    admit(manager, first)
    manager.new_step_starts()
    second = make_request(manager, "second", range(13))
    admit(manager, second)
    assert lists_of(manager, second) == [[0, 1, 0, 3, 4]]
    assert has_taken_blocks(manager, second)


@pytest.mark.rule("KV-MAMBA-9")
def test_an_allocation_that_needs_nothing_takes_nothing(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """S = 0, 8 external tokens: the list is long enough, so the request has not allocated."""
    manager = make_manager(10, specs=[mamba(4, "align")])
    request = make_request(manager, "r", range(20))
    assert manager.allocate_slots(request, 0, num_external_computed_tokens=8) is not None
    assert lists_of(manager, request) == [[0, 1]]
    assert not has_taken_blocks(manager, request)
    request.num_computed_tokens = 8
    step(manager, request, 1)
    assert has_taken_blocks(manager, request)


@pytest.mark.rule("KV-MAMBA-1", "KV-GRP-2")
@pytest.mark.parametrize(
    ("computed", "nulls"), [(13, [0, 1, 2]), (16, [0, 1, 2]), (17, [0, 1, 2, 3])]
)
def test_the_state_of_the_last_step_goes_when_the_next_boundary_is_behind(
    make_manager: MakeManager, make_request: MakeRequest, computed: int, nulls: list[int]
) -> None:
    """S = 0: the state at index 3 is read until 17 tokens are computed; then it is released."""
    manager = make_manager(10, specs=[mamba(4, "align")], enable_caching=False)
    request = make_request(manager, "r", range(100))
    step(manager, request, 13)
    step(manager, request, 7)
    assert lists_of(manager, request) == [[0, 0, 0, 1, 2]]
    manager.remove_skipped_blocks(request, computed)
    assert null_positions(manager, request) == nulls
    assert queue_of(manager)[0] == (1 if 3 in nulls else 3)


@pytest.mark.rule("KV-MAMBA-11")
def test_a_state_before_a_gap_is_released(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """S = 0: after 5 and 20 tokens the states stand at 1 and 4; at 20 computed the first goes."""
    manager = make_manager(10, specs=[mamba(4, "align")], enable_caching=False)
    request = make_request(manager, "r", range(100))
    step(manager, request, 5)
    step(manager, request, 15)
    assert lists_of(manager, request) == [[0, 1, 0, 0, 2]]
    manager.remove_skipped_blocks(request, 20)
    assert lists_of(manager, request) == [[0, 0, 0, 0, 2]]
    assert queue_of(manager)[0] == 1


@pytest.mark.rule("KV-MAMBA-11")
def test_the_removal_goes_on_past_nulls(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """B = 2, S = 2: 1 and 2 stand before a gap; both go, 2 first, and none is leaked."""
    manager = make_manager(10, specs=[mamba(2, "align", speculative=2)], enable_caching=False)
    request = make_request(manager, "r", range(100))
    step(manager, request, 1)
    step(manager, request, 2, rejected=1)
    step(manager, request, 9)
    assert lists_of(manager, request) == [[1, 2, 0, 0, 0, 3, 4, 5]]
    manager.remove_skipped_blocks(request, 11)
    assert lists_of(manager, request) == [[0, 0, 0, 0, 0, 3, 4, 5]]
    assert queue_of(manager)[:3] == [2, 1, 6]


@pytest.mark.rule("KV-MAMBA-11")
@given(
    block_size=st.integers(1, 4),
    speculative=st.integers(0, 3),
    steps=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 3)), min_size=1, max_size=12),
)
def test_a_running_request_holds_a_bounded_number_of_states(
    make_manager: MakeManager,
    make_request: MakeRequest,
    block_size: int,
    speculative: int,
    steps: list[tuple[int, int]],
) -> None:
    """Nothing before s(c') is held; what the last step left is still there in the next."""
    manager = make_manager(
        300, specs=[mamba(block_size, "align", speculative=speculative)], enable_caching=False
    )
    request = make_request(manager, "r", range(200))
    for chunk, rejected in steps:
        states = set(lists_of(manager, request)[0][-1 - speculative :])
        computed = request.num_computed_tokens
        step(manager, request, chunk, min(rejected, speculative, chunk - 1))
        (blocks,) = lists_of(manager, request)
        skipped = max(0, max(0, computed - speculative) - 1) // block_size
        assert not any(blocks[:skipped])
        assert states <= set(blocks)
        assert all(blocks[-1 - speculative :])


@pytest.mark.rule("KV-MAMBA-12", "KV-MGR-17")
@pytest.mark.parametrize("popped", [False, True])
def test_freeing_forgets_what_was_remembered(
    make_manager: MakeManager, make_request: MakeRequest, popped: bool
) -> None:
    """Resumed, the request starts like a new one: it takes 1 + S blocks again."""
    manager = make_manager(10, specs=[mamba(4, "align", speculative=1)], enable_caching=False)
    request = make_request(manager, "r", range(100))
    step(manager, request, 13)
    step(manager, request, 12)
    assert has_taken_blocks(manager, request)
    if popped:
        manager.free_blocks(manager.pop_blocks_for_free(request)[::-1])
    else:
        manager.free(request)
    request.num_computed_tokens = 0
    assert need_of(manager, request, 9) == 2
    step(manager, request, 9)
    assert len(lists_of(manager, request)[0]) == 4
    assert cached_positions(manager, request) == []
