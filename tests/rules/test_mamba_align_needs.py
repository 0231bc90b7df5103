"""KV-MAMBA in mode align: how long a list gets, and how many blocks that takes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvspec.errors import InvalidArgumentError
from tests.rules.builders import MakeManager, MakeRequest, admit, queue_of
from tests.rules.specs import has_taken_blocks, lists_of, mamba, need_of, step


@pytest.mark.rule("KV-MAMBA-6")
def test_the_list_ends_with_the_running_and_the_drafted_states(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """B = 4, S = 1: for 5 tokens cdiv(5, 4) + 1 = 3 entries, 7 tokens of lookahead or not."""
    for lookahead in (0, 7):
        manager = make_manager(10, specs=[mamba(4, "align", speculative=1)])
        request = make_request(manager, "r", range(5))
        assert manager.allocate_slots(request, 5, num_lookahead_tokens=lookahead) is not None
        assert lists_of(manager, request) == [[0, 1, 2]]


@pytest.mark.rule("KV-MAMBA-6", "KV-MGR-4")
def test_the_main_tokens_end_at_the_longest_sequence(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """Longest 8, S = 0: after 6 computed there are 2 more, 2 entries in all; 3 are illegal."""
    manager = make_manager(10, specs=[mamba(4, "align")], max_model_len_tokens=8)
    request = make_request(manager, "r", range(6))
    step(manager, request, 6)
    for new in (3, 2**20, 2**40, 2**53 - 1):
        with pytest.raises(InvalidArgumentError):
            manager.allocate_slots(request, new)
    assert step(manager, request, 2) == []
    assert lists_of(manager, request) == [[0, 1]]


@pytest.mark.rule("KV-MAMBA-7", "KV-MGR-18")
def test_the_need_is_one_state_and_the_drafted_ones_at_first(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """B = 4, S = 2, 13 tokens: 3 blocks, not 6. Later 0 within the same block, else 1."""
    manager = make_manager(10, specs=[mamba(4, "align", speculative=2)])
    request = make_request(manager, "r", range(100))
    assert need_of(manager, request, 13) == 3
    step(manager, request, 13)
    assert manager.num_free_blocks == 6
    assert need_of(manager, request, 16, computed=13) == 0
    assert need_of(manager, request, 17, computed=13) == 1
    assert need_of(manager, request, 90, computed=13) == 1
    step(manager, request, 77)
    assert manager.num_free_blocks == 5


@pytest.mark.rule("KV-MAMBA-7", "KV-MGR-18")
@pytest.mark.parametrize("speculative", [0, 1, 2])
@pytest.mark.parametrize("new", [0, 1, 3])
def test_after_a_load_the_need_is_what_is_taken(
    make_manager: MakeManager, make_request: MakeRequest, speculative: int, new: int
) -> None:
    """B = 4, longest 8: a first allocation with a load, then one more from any length on."""
    for external in range(1, 21):
        if new > max(8 - external, 0):
            continue
        for computed in range(8):
            specs = [mamba(4, "align", speculative=speculative)]
            manager = make_manager(30, specs=specs, max_model_len_tokens=8)
            request = make_request(manager, "r", range(60))
            answer = manager.allocate_slots(request, new, num_external_computed_tokens=external)
            assert answer is not None
            request.num_computed_tokens = min(computed, external + new)
            more = 8 - request.num_computed_tokens
            manager.remove_skipped_blocks(request, request.num_computed_tokens)
            need = need_of(manager, request, 8, computed=request.num_computed_tokens)
            before = manager.num_free_blocks
            assert manager.allocate_slots(request, more) is not None
            assert before - manager.num_free_blocks == need


@pytest.mark.rule("KV-MAMBA-7", "KV-GRP-4")
def test_a_hit_state_that_is_free_counts_in_the_need(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """S = 0, hit of 4: the state has to be revived, and one more taken: 2 free blocks or none."""
    for num_blocks, fits in ((3, True), (2, False)):
        manager = make_manager(num_blocks, specs=[mamba(4, "align")])
        first = make_request(manager, "first", range(4))
        admit(manager, first)
        manager.free(first)
        manager.new_step_starts()
        second = make_request(manager, "second", range(8))
        assert (admit(manager, second) is not None) == fits
        if fits:
            assert lists_of(manager, second) == [[1, 2]]


@pytest.mark.rule("KV-MAMBA-8")
def test_the_need_with_external_tokens_is_what_is_taken(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """B = 4, S = 1, 10 external and 3 new tokens: 1 for the external ones, then 2; 3 in all.

    s(10) = 9 skips two blocks, the state after 10 tokens comes to index 2, the list gets 5 long.
    """
    manager = make_manager(10, specs=[mamba(4, "align", speculative=1)])
    request = make_request(manager, "r", range(14))
    answer = manager.allocate_slots(request, 3, num_external_computed_tokens=10)
    assert answer is not None
    assert answer.to_lists() == [[2, 3]]
    assert lists_of(manager, request) == [[0, 0, 1, 2, 3]]
    for num_blocks, fits in ((4, True), (3, False)):
        manager = make_manager(num_blocks, specs=[mamba(4, "align", speculative=1)])
        request = make_request(manager, "r", range(14))
        before = manager.snapshot()
        answer = manager.allocate_slots(request, 3, num_external_computed_tokens=10)
        assert (answer is not None) == fits
        if not fits:
            assert manager.snapshot() == before


@pytest.mark.rule("KV-MAMBA-8")
def test_external_tokens_behind_a_hit_skip_it(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """Hit of 4, 6 external, 3 new: the hit lies before s(10) = 9, so it is not even touched."""
    manager = make_manager(10, specs=[mamba(4, "align")])
    admit(manager, make_request(manager, "first", range(4)))
    manager.new_step_starts()
    second = make_request(manager, "second", range(14))
    hit = manager.get_computed_blocks(second)
    assert hit.blocks.to_lists() == [[1]]
    answer = manager.allocate_slots(
        second,
        3,
        num_new_computed_tokens=4,
        new_computed_blocks=hit.blocks,
        num_external_computed_tokens=6,
    )
    assert answer is not None
    assert lists_of(manager, second) == [[0, 0, 2, 3]]
    assert manager.snapshot().ref_counts[1] == 1
    assert has_taken_blocks(manager, second)


@pytest.mark.rule("KV-MAMBA-8")
@pytest.mark.parametrize(("reserved", "fits"), [(1, True), (2, False)])
def test_a_skipped_hit_is_not_needed(
    make_manager: MakeManager, make_request: MakeRequest, reserved: int, fits: bool
) -> None:
    """S = 1, a free hit of 8, 8 external and 4 new tokens: 3 blocks, and the hit stays free."""
    manager = make_manager(5, specs=[mamba(4, "align", speculative=1)])
    first = make_request(manager, "first", range(8))
    admit(manager, first)
    manager.free(first)
    manager.new_step_starts()
    assert queue_of(manager) == [2, 3, 4, 1]
    second = make_request(manager, "second", range(20))
    hit = manager.get_computed_blocks(second)
    assert hit.blocks.to_lists() == [[0, 1]]
    answer = manager.allocate_slots(
        second,
        4,
        num_new_computed_tokens=8,
        new_computed_blocks=hit.blocks,
        num_external_computed_tokens=8,
        reserved_blocks=reserved,
    )
    assert (answer is not None) == fits
    if fits:
        assert lists_of(manager, second) == [[0, 0, 0, 2, 3, 4]]
        assert queue_of(manager) == [1]


@pytest.mark.rule("KV-MAMBA-8", "KV-MGR-7")
@given(
    block_size=st.integers(1, 4),
    speculative=st.integers(0, 3),
    hit_blocks=st.integers(0, 3),
    external=st.integers(0, 12),
    new=st.integers(0, 8),
    free_hit=st.booleans(),
)
def test_the_need_is_exact_whatever_comes_from_outside(
    make_manager: MakeManager,
    make_request: MakeRequest,
    block_size: int,
    speculative: int,
    hit_blocks: int,
    external: int,
    new: int,
    free_hit: bool,
) -> None:
    """What an allocation uses up is enough free blocks for it; with one less it is refused."""
    new = max(new, 1 - external)
    hit_tokens = hit_blocks * block_size

    def allocate(reserved: int) -> tuple[int, bool, bool]:
        """Free blocks used up, whether it was done, and whether anything changed."""
        manager = make_manager(60, specs=[mamba(block_size, "align", speculative=speculative)])
        if hit_blocks:
            first = make_request(manager, "first", range(hit_tokens))
            admit(manager, first)
            if free_hit:
                manager.free(first)
        manager.new_step_starts()
        second = make_request(manager, "second", range(hit_tokens + external + new + 1))
        hit = manager.get_computed_blocks(second)
        assert hit.hit_length_tokens == hit_tokens
        before = manager.snapshot()
        answer = manager.allocate_slots(
            second,
            new,
            num_new_computed_tokens=hit_tokens,
            new_computed_blocks=hit.blocks,
            num_external_computed_tokens=external,
            reserved_blocks=reserved and len(before.free_queue) - reserved + 1,
        )
        after = manager.snapshot()
        used = len(before.free_queue) - len(after.free_queue)
        return used, answer is not None, before != after

    used, done, _ = allocate(0)
    assert done
    assert allocate(used + 1) == (used, True, True)
    if used:
        assert allocate(used) == (0, False, False)
