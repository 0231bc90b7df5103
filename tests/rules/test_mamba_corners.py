"""KV-MAMBA at the edges: alignments of three blocks, partial entries, loads of one token."""

from __future__ import annotations

import pytest

from tests.rules.builders import MakeManager, MakeRequest, admit, full
from tests.rules.hybrids import Cache, first
from tests.rules.specs import lists_of, mamba, need_of, step


@pytest.mark.rule("KV-MAMBA-3")
def test_a_state_ends_on_the_alignment(cache: Cache) -> None:
    """A = 12: of the states 0 … 10 the last that counts is 8, after 36 tokens."""
    cached = cache([full(12), mamba(4)], [first(4), first(11)])
    assert cached.hit() == cached.expected(36, [first(3), {8}])


@pytest.mark.rule("KV-MAMBA-2")
def test_a_call_that_registers_no_state_has_nobody_wait(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """A partial entry of the last step stands in a block of 8, of which 6 tokens are computed."""
    manager = make_manager(20, specs=[full(4), mamba(8)])
    request = make_request(manager, "r", range(14))
    admit(manager, request, 6)
    assert manager.cache_partial_block(request, 1, 4)
    manager.new_step_starts()
    manager.cache_blocks(request, 6)
    assert not any(manager.snapshot().step_keys)
    assert manager.snapshot().requests["r"].num_cached_blocks == (None, None)


@pytest.mark.rule("KV-MAMBA-2", "KV-PART-5")
def test_a_partial_entry_has_nobody_wait_for_an_older_state(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """Retention 0 keeps the states after 8 of q's 12 tokens and after 24 of r's 30.

    q's block and block 0 of r, which retention passes over, both have the partial entry of their
    first 4 tokens. s takes q's state, though r was cached in this step.
    """
    manager = make_manager(20, specs=[full(4), mamba(8)], retention_interval_tokens=0)
    q = make_request(manager, "q", range(12))
    r = make_request(manager, "r", [*range(4), *range(100, 126)])
    for request, num_tokens in ((q, 12), (r, 6)):
        admit(manager, request, num_tokens)
        assert manager.cache_partial_block(request, 1, 4)
    manager.new_step_starts()
    assert manager.allocate_slots(r, 4) is not None
    assert not any(manager.snapshot().step_keys)
    s = make_request(manager, "s", range(12))
    hit = manager.get_computed_blocks(s)
    assert hit.hit_length_tokens == 8
    answer = manager.allocate_slots(s, 4, num_new_computed_tokens=8, new_computed_blocks=hit.blocks)
    assert answer is not None


@pytest.mark.rule("KV-MAMBA-7", "KV-GRP-9")
@pytest.mark.parametrize(("left", "fits"), [(1, True), (0, False)])
def test_a_load_of_a_running_request_takes_one_state(
    make_manager: MakeManager, make_request: MakeRequest, left: int, fits: bool
) -> None:
    """S = 2, list [0, 1, 2, 3], 4 external tokens and a new one: the running state is in entry 3.

    It is drafted block 3, which stays there; 2 moves, one is taken. Before that block 1 goes:
    c' = 12 - 2, s = 9.
    """
    manager = make_manager(10, specs=[mamba(4, "align", speculative=2)])
    request = make_request(manager, "r", range(30))
    step(manager, request, 8)
    assert lists_of(manager, request) == [[0, 1, 2, 3]]
    answer = manager.allocate_slots(
        request,
        1,
        num_external_computed_tokens=4,
        reserved_blocks=manager.num_free_blocks + 1 - left,
    )
    assert (answer is not None) is fits
    if fits:
        assert lists_of(manager, request) == [[0, 0, 0, 3, 2, 4]]


@pytest.mark.rule("KV-MAMBA-7", "KV-MGR-18")
@pytest.mark.parametrize("speculative", [0, 1])
def test_a_list_that_is_long_enough_needs_nothing_without_an_entry(
    make_manager: MakeManager, make_request: MakeRequest, speculative: int
) -> None:
    """Caching off, 13 tokens computed: 16 end in the same entry, 17 in the next."""
    spec = mamba(4, "align", speculative=speculative)
    manager = make_manager(10, specs=[spec], enable_caching=False)
    request = make_request(manager, "r", range(30))
    step(manager, request, 13)
    assert manager.snapshot().requests["r"].num_cached_blocks == (None,)
    assert need_of(manager, request, 16, computed=13) == 0
    assert need_of(manager, request, 17, computed=13) == 1


@pytest.mark.rule("KV-MAMBA-7")
@pytest.mark.parametrize(("speculative", "need"), [(0, 0), (1, 2), (2, 3)])
def test_a_list_without_tokens_needs_the_drafted_states(
    make_manager: MakeManager, make_request: MakeRequest, speculative: int, need: int
) -> None:
    """R = cdiv(0, 4) + S: with S = 0 nothing is missing; else a newcomer takes 1 + S."""
    manager = make_manager(10, specs=[mamba(4, "align", speculative=speculative)])
    assert need_of(manager, make_request(manager, "r", range(9)), 0) == need


@pytest.mark.rule("KV-MAMBA-8")
@pytest.mark.parametrize(("left", "fits"), [(2, True), (1, False)])
def test_one_external_token_is_counted(
    make_manager: MakeManager, make_request: MakeRequest, left: int, fits: bool
) -> None:
    """B = 1, S = 0: a state for the external token, another for the new one."""
    manager = make_manager(10, specs=[mamba(1, "align")])
    request = make_request(manager, "r", range(5))
    answer = manager.allocate_slots(
        request, 1, num_external_computed_tokens=1, reserved_blocks=9 - left
    )
    assert (answer is not None) is fits
    if fits:
        assert lists_of(manager, request) == [[1, 2]]


@pytest.mark.rule("KV-MAMBA-8", "KV-MGR-4")
@pytest.mark.parametrize(
    ("speculative", "new", "behind"),
    [(1, 1, [2, 3]), (0, 0, [2]), (1, 8, [2, 0, 3, 4])],
)
@pytest.mark.parametrize("short_of", [0, 1])
def test_a_hit_stays_if_the_token_behind_it_is_the_last(
    make_manager: MakeManager,
    make_request: MakeRequest,
    speculative: int,
    new: int,
    behind: list[int],
    short_of: int,
) -> None:
    """A free hit of 8, 1 external token, 9 in all: s is taken at 8, so s = 7 and t = 1.

    The need: the hit, e = 3 - 2 for the external token, and y. S = 1 and one new token: R = 4 and
    y = 4 - 3. Eight: R = 6, y = 6 - 4. S = 0 and none: R = 3, y = 0.
    """
    manager = make_manager(8, specs=[mamba(4, "align", speculative=speculative)])
    source = make_request(manager, "source", range(8))
    admit(manager, source)
    manager.free(source)
    manager.new_step_starts()
    request = make_request(manager, "r", range(9))
    hit = manager.get_computed_blocks(request)
    assert hit.blocks.to_lists() == [[0, 1]]
    need = 1 + len([block for block in behind if block])
    before = manager.snapshot()
    answer = manager.allocate_slots(
        request,
        new,
        num_new_computed_tokens=8,
        new_computed_blocks=hit.blocks,
        num_external_computed_tokens=1,
        reserved_blocks=7 - need + short_of,
    )
    assert (answer is None) is bool(short_of)
    if short_of:
        assert manager.snapshot() == before
    else:
        assert lists_of(manager, request) == [[0, 1, *behind]]
