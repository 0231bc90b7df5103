"""KV-POL: the choices of an implementation, where several groups and windows meet them.

What a profile is, and every choice on its own, is tested beside `kvspec golden` and in tests/kvref.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvspec.events import BlockRemoved
from kvspec.policy import Policy
from tests.rules.builders import MakeManager, MakeRequest, admit, full, queue_of, run_on
from tests.rules.specs import chunked, lists_of, mamba, null_positions, sliding


@pytest.mark.rule("KV-POL-2", "KV-POOL-6")
@pytest.mark.parametrize(
    ("where", "queue"), [("front", [3, 4, 5, 2, 1]), ("back", [4, 5, 3, 2, 1])]
)
def test_unhashed_blocks_go_to_the_front_or_to_the_back(
    make_manager: MakeManager, make_request: MakeRequest, where: str, queue: list[int]
) -> None:
    """Queue 4, 5; released are 3, 2, 1, of which 3 is not cached."""
    manager = make_manager(6, policy=Policy(unhashed_freed_to=where))
    request = make_request(manager, "a", range(10))
    admit(manager, request)
    manager.free(request)
    assert queue_of(manager) == queue


@pytest.mark.rule("KV-POL-2", "KV-GRP-2", "KV-POOL-7")
@pytest.mark.parametrize(
    ("where", "queue"), [("front", [4, 3, 2, 6, 7]), ("back", [6, 7, 4, 3, 2])]
)
def test_blocks_out_of_the_window_go_there_too(
    make_manager: MakeManager, make_request: MakeRequest, where: str, queue: list[int]
) -> None:
    """A = 16, B = 4, window 5: only the last of four blocks is cached, the others fall out."""
    policy = Policy(unhashed_freed_to=where)
    manager = make_manager(8, specs=[full(16), sliding(4, 5)], policy=policy)
    request = make_request(manager, "b", range(16))
    admit(manager, request)
    assert lists_of(manager, request) == [[1], [2, 3, 4, 5]]
    manager.remove_skipped_blocks(request, 16)
    assert null_positions(manager, request, 1) == [0, 1, 2]
    assert queue_of(manager) == queue


@pytest.mark.rule("KV-POL-3", "KV-EVT-4", "KV-PART-5")
@pytest.mark.parametrize(("per", "told"), [("copy", [3, 2]), ("last_copy", [1, 2])])
def test_each_key_of_a_block_has_copies_of_its_own(
    make_manager: MakeManager, make_request: MakeRequest, per: str, told: list[int]
) -> None:
    """Two blocks with the keys of 12 and 8 tokens, one with that of 4: each goes by itself."""
    manager = make_manager(
        40,
        specs=[full(4), sliding(16, 32)],
        policy=Policy(removed_event_per=per),
        enable_events=True,
    )
    requests = [make_request(manager, name, range(30)) for name in "ab"]
    for request in requests:
        assert manager.allocate_slots(request, 14) is not None
    for request, lengths in zip(requests, ((12, 8, 4), (12, 8)), strict=True):
        for num_tokens in lengths:
            manager.cache_partial_block(request, 1, num_tokens)
    first, second = (lists_of(manager, request)[1][0] for request in requests)
    manager.take_events()
    counts = []
    for block in (first, second):
        manager.evict_blocks([block])
        events = manager.take_events()
        assert all(isinstance(event, BlockRemoved) for event in events)
        counts.append(len(events))
    assert counts == told


@pytest.mark.rule("KV-POL-4", "KV-CHUNK-2")
@pytest.mark.parametrize(
    ("is_hit", "fresh", "cached"), [(True, (8, 32), (9, 36)), (False, (0, 0), (9, 36))]
)
def test_null_chunks_are_a_hit_by_themselves_or_only_before_one(
    make_manager: MakeManager,
    make_request: MakeRequest,
    is_hit: bool,
    fresh: tuple[int, int],
    cached: tuple[int, int],
) -> None:
    """Chunks of 16, 42 tokens: eight nulls or nothing; with block 8 cached, both answer nine."""
    policy = Policy(chunked_null_prefix_is_hit=is_hit)
    manager = make_manager(30, specs=[chunked(4, 16)], policy=policy)
    request = make_request(manager, "r", range(42))
    hit = manager.get_computed_blocks(request)
    assert (len(hit.blocks.groups[0]), hit.hit_length_tokens) == fresh
    other = make_request(manager, "other", range(36))
    assert manager.allocate_slots(other, 36) is not None
    hit = manager.get_computed_blocks(request)
    assert (len(hit.blocks.groups[0]), hit.hit_length_tokens) == cached


@pytest.mark.rule("KV-POL-4", "KV-COORD-5")
@pytest.mark.parametrize(("is_hit", "length"), [(True, 8), (False, 0)])
def test_a_null_chunk_is_no_hit_beside_full_attention_either(
    make_manager: MakeManager, make_request: MakeRequest, is_hit: bool, length: int
) -> None:
    """Full has 8 of 9 tokens; the chunk of token 8 begins there, so only nulls are before it."""
    policy = Policy(chunked_null_prefix_is_hit=is_hit)
    manager = make_manager(30, specs=[full(4), chunked(4, 8)], policy=policy)
    assert manager.allocate_slots(make_request(manager, "a", range(8)), 8) is not None
    hit = manager.get_computed_blocks(make_request(manager, "r", range(9)))
    assert hit.hit_length_tokens == length


@pytest.mark.rule("KV-POL-9", "KV-POOL-15")
@given(
    where=st.sampled_from(("front", "back")),
    per=st.sampled_from(("copy", "last_copy")),
    is_hit=st.booleans(),
    steps=st.lists(st.integers(1, 9), min_size=1, max_size=6),
)
def test_no_policy_touches_conservation(
    make_manager: MakeManager,
    make_request: MakeRequest,
    where: str,
    per: str,
    is_hit: bool,
    steps: list[int],
) -> None:
    """Free blocks and those in use make num_blocks - 1 after every step, in a mixture of groups."""
    policy = Policy(
        unhashed_freed_to=where, removed_event_per=per, chunked_null_prefix_is_hit=is_hit
    )
    specs = [full(4), sliding(4, 6), chunked(4, 8), mamba(4)]
    manager = make_manager(80, specs=specs, policy=policy)
    request = make_request(manager, "r", range(60))
    for number in steps:
        manager.new_step_starts()
        run_on(manager, request, number)
        in_use = {block for blocks in lists_of(manager, request) for block in blocks if block}
        assert manager.num_free_blocks + len(in_use) == 79
    manager.free(request)
    assert manager.num_free_blocks == 79
