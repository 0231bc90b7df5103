"""KV-MGR-8: lists of hits that are shorter than others, and the load that fills them up."""

from __future__ import annotations

import pytest

from kvspec.blocks import KVCacheBlocks
from kvspec.errors import InvalidArgumentError, StaleHitError
from kvspec.interface import KVCacheManager
from kvspec.request import Request
from kvspec.specs import LayerSpec, MLAAttentionSpec
from tests.rules.builders import MakeManager, MakeRequest, admit, everything, full, queue_of
from tests.rules.specs import lists_of, mamba, sliding

LATENT = MLAAttentionSpec(4, 1, 8, "float16")


def two_lists(
    make_manager: MakeManager, make_request: MakeRequest, other: LayerSpec = LATENT
) -> tuple[KVCacheManager, Request]:
    """Of a prompt of 17 tokens group 0 has cached three blocks, 1 … 3, the other only block 4."""
    manager = make_manager(20, specs=[full(4), other])
    first = make_request(manager, "first", range(12))
    admit(manager, first)
    manager.evict_blocks(lists_of(manager, first)[1][1:])
    manager.free(first)
    return manager, make_request(manager, "r", range(17))


def load(
    manager: KVCacheManager, request: Request, hits: list[list[int]], local: int, external: int = 4
) -> KVCacheBlocks | None:
    """Start a load behind these hits: nothing is computed or registered yet."""
    return manager.allocate_slots(
        request,
        0 if external else 1,
        num_new_computed_tokens=local,
        new_computed_blocks=KVCacheBlocks(tuple(map(tuple, hits))),
        num_external_computed_tokens=external,
        delay_cache_blocks=True,
    )


def counts_of(manager: KVCacheManager, request: Request) -> tuple[int | None, ...]:
    """The cached counts of the request."""
    return tuple(manager.snapshot().requests[request.request_id].num_cached_blocks)


@pytest.mark.rule("KV-MGR-8", "KV-COORD-9", "KV-GRP-5", "KV-GRP-6", "KV-GRP-11", "KV-MGR-11")
def test_a_load_fills_up_a_short_list(make_manager: MakeManager, make_request: MakeRequest) -> None:
    """Own hits of 12 and 4 tokens, 4 external ones: one block more and three, none registered."""
    manager, request = two_lists(make_manager, make_request)
    own = manager.find_longest_cache_hit_per_group(request, 16)
    assert own.hit_lengths_tokens == (12, 4)
    assert own.blocks.to_lists() == [[1, 2, 3], [4]]
    free = queue_of(manager)
    answer = load(manager, request, own.blocks.to_lists(), 12)
    assert answer == KVCacheBlocks(((), ()))
    attention, latents = lists_of(manager, request)
    assert (attention[:3], latents[:1]) == ([1, 2, 3], [4])
    taken = [block for block in free if block not in (1, 2, 3, 4)][:4]
    assert [*attention[3:], *latents[1:]] == taken
    assert counts_of(manager, request) == (3, 1)
    manager.cache_blocks(request, 12)
    assert counts_of(manager, request) == (3, 3)
    manager.cache_blocks(request, 16)
    keys = manager.snapshot().block_keys
    assert counts_of(manager, request) == (4, 4)
    assert all(len(keys[block]) == 1 for block in [*attention, *latents])
    again = make_request(manager, "again", range(17))
    assert manager.get_computed_blocks(again).blocks.to_lists() == [attention, latents]


@pytest.mark.rule("KV-MGR-8", "KV-ERR-2")
@pytest.mark.parametrize(
    ("hits", "local", "external", "field"),
    [
        ([[1, 2, 3], [4]], 12, 0, "new_computed_blocks[1]"),
        ([[1, 2, 3], []], 12, 0, "new_computed_blocks[1]"),
        ([[1, 2, 3], [4]], 4, 4, "new_computed_blocks[0]"),
        ([[1, 2, 3], [4]], 0, 4, "new_computed_blocks[0]"),
        ([[1, 2, 3], [4]], 16, 4, "num_new_computed_tokens"),
        ([[1, 2, 3], [4]], 13, 4, "num_new_computed_tokens"),
        ([[], []], 4, 4, "num_new_computed_tokens"),
    ],
)
def test_the_longest_list_is_as_long_as_they_say_and_short_ones_need_a_load(
    make_manager: MakeManager,
    make_request: MakeRequest,
    hits: list[list[int]],
    local: int,
    external: int,
    field: str,
) -> None:
    """Anything else is an InvalidArgumentError that names the list or the count."""
    manager, request = two_lists(make_manager, make_request)
    before = everything(manager)
    with pytest.raises(InvalidArgumentError) as caught:
        load(manager, request, hits, local, external)
    assert not isinstance(caught.value, StaleHitError)
    assert caught.value.field == field
    assert everything(manager) == before


@pytest.mark.rule("KV-MGR-8")
@pytest.mark.parametrize(
    ("hits", "place"),
    [
        ([[1, 2, 3], [5]], (1, 0, 5)),
        ([[1, 2, 3], [0]], (1, 0, 0)),
        ([[1, 2, 3], [4, 5]], (1, 1, 5)),
        ([[1, 2, 4], [4]], (0, 2, 4)),
    ],
)
def test_a_short_list_is_a_prefix_of_what_it_claims(
    make_manager: MakeManager,
    make_request: MakeRequest,
    hits: list[list[int]],
    place: tuple[int, int, int],
) -> None:
    """Block i carries the key of place i, in a short list as in a long one."""
    manager, request = two_lists(make_manager, make_request)
    before = everything(manager)
    with pytest.raises(StaleHitError) as caught:
        load(manager, request, hits, 12)
    assert (caught.value.group, caught.value.index, caught.value.block_id) == place
    assert everything(manager) == before


@pytest.mark.rule("KV-MGR-8", "KV-GRP-4", "KV-MGR-7")
@pytest.mark.parametrize("reserved", [11, 12])
def test_what_a_short_list_lacks_is_counted(
    make_manager: MakeManager, make_request: MakeRequest, reserved: int
) -> None:
    """Four blocks are revived and four are new: 8 of the 19 that are free."""
    manager, request = two_lists(make_manager, make_request)
    before = everything(manager)
    answer = manager.allocate_slots(
        request,
        0,
        num_new_computed_tokens=12,
        new_computed_blocks=KVCacheBlocks(((1, 2, 3), (4,))),
        num_external_computed_tokens=4,
        reserved_blocks=reserved,
    )
    assert (answer is None) is (reserved > 11)
    if answer is None:
        assert everything(manager) == before
    else:
        assert manager.num_free_blocks == 11


@pytest.mark.rule("KV-MGR-8", "KV-GRP-5", "KV-GRP-6", "KV-SW-1")
@pytest.mark.parametrize(
    ("window", "own", "begun"),
    [(30, [4], [4]), (14, [4], [4]), (6, [4], [0, 0])],
)
def test_a_short_list_of_a_window_keeps_what_is_read_behind_the_load(
    make_manager: MakeManager,
    make_request: MakeRequest,
    window: int,
    own: list[int],
    begun: list[int],
) -> None:
    """16 tokens are computed then: a window of 14 reads from token 3 on, one of 6 from 11 on."""
    manager, request = two_lists(make_manager, make_request, sliding(4, window))
    hits = manager.find_longest_cache_hit_per_group(request, 16).blocks.to_lists()
    assert hits[1] == own
    assert load(manager, request, hits, 12) is not None
    behind = lists_of(manager, request)[1]
    assert behind[: len(begun)] == begun
    assert len(behind) == 4
    assert 0 not in behind[len(begun) :]
    assert counts_of(manager, request) == (3, len(begun))


@pytest.mark.rule("KV-MGR-8", "KV-MAMBA-7", "KV-MAMBA-8", "KV-MAMBA-9")
@pytest.mark.parametrize("num_blocks", [5, 12])
def test_three_groups_of_states_with_shorter_hits_than_attention(
    make_manager: MakeManager, make_request: MakeRequest, num_blocks: int
) -> None:
    """Hits of 4, 2, 2 and 2 tokens and 2 external ones: one block for each group, or None.

    What is skipped of the states turns null, hits included.
    """
    states = [mamba(2, "align")] * 3
    manager = make_manager(num_blocks + 5, specs=[full(2), *states])
    first = make_request(manager, "first", range(4))
    for _ in range(2):
        manager.allocate_slots(first, 2)
        first.num_computed_tokens += 2
    manager.new_step_starts()
    attention, *rest = lists_of(manager, first)
    manager.evict_blocks([blocks[1] for blocks in rest])
    manager.free(first)
    other = make_request(manager, "other", [99])
    request = make_request(manager, "r", range(9))
    own = manager.find_longest_cache_hit_per_group(request, 8)
    assert own.hit_lengths_tokens == (4, 2, 2, 2)
    if num_blocks == 5:  # nothing is free but the hits
        manager.allocate_slots(other, 1)
        assert manager.num_free_blocks == 5
        assert load(manager, request, own.blocks.to_lists(), 4, 2) is None
        return
    assert load(manager, request, own.blocks.to_lists(), 4, 2) is not None
    lists = lists_of(manager, request)
    assert lists[0][:2] == attention
    assert [len(blocks) for blocks in lists] == [3, 3, 3, 3]
    assert [blocks[:2] for blocks in lists[1:]] == [[0, 0]] * 3
    assert counts_of(manager, request) == (2, 2, 2, 2)
