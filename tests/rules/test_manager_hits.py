"""KV-MGR-8: hits are checked when they are used."""

from __future__ import annotations

import pytest

from kvspec.blocks import KVCacheBlocks
from kvspec.errors import InvalidArgumentError, StaleHitError, UnknownBlockError
from kvspec.interface import KVCacheManager
from kvspec.request import Request
from tests.rules.builders import (
    MakeManager,
    MakeRequest,
    Story,
    admit,
    everything,
    hit_of,
)


def offer(manager: KVCacheManager, request: Request, blocks: object, tokens: object) -> None:
    """Allocate one token with these hit blocks and hit tokens."""
    manager.allocate_slots(
        request,
        1,
        num_new_computed_tokens=tokens,  # type: ignore[arg-type]  # whatever the test says
        new_computed_blocks=blocks,  # type: ignore[arg-type]  # the same
    )


@pytest.mark.rule("KV-MGR-8", "KV-MGR-2")
def test_a_stale_hit_is_found_out(make_manager: MakeManager, make_request: MakeRequest) -> None:
    """Block 2 of the answer was given to another request: group 0, index 1, block 2."""
    manager = make_manager(3, 4)
    first = make_request(manager, "first", range(8))
    admit(manager, first)
    manager.free(first)
    request = make_request(manager, "a", range(9))
    hit = manager.get_computed_blocks(request)
    assert hit.blocks.to_lists() == [[1, 2]]
    admit(manager, make_request(manager, "taker", [50]))
    before = everything(manager)
    with pytest.raises(StaleHitError) as caught:
        offer(manager, request, hit.blocks, 8)
    assert (caught.value.group, caught.value.index, caught.value.block_id) == (0, 1, 2)
    assert everything(manager) == before
    assert hit_of(manager, request) == [1]


@pytest.mark.rule("KV-MGR-8")
@pytest.mark.parametrize(
    ("blocks", "tokens"),
    [
        (KVCacheBlocks(((1, 2),)), 4),
        (None, 4),
        (KVCacheBlocks(((),)), 4),
        (KVCacheBlocks(((1,),)), 5),
        (KVCacheBlocks(((1,),)), 0),
        (KVCacheBlocks(()), 0),
        (KVCacheBlocks(((1,), (1,))), 4),
    ],
)
def test_hits_cover_exactly_their_tokens(
    story: Story, make_request: MakeRequest, blocks: KVCacheBlocks | None, tokens: int
) -> None:
    """A wrong number of lists or of blocks is an InvalidArgumentError, no StaleHitError."""
    request = make_request(story.manager, "c", range(1, 10))
    before = story.manager.snapshot()
    with pytest.raises(InvalidArgumentError) as caught:
        offer(story.manager, request, blocks, tokens)
    assert not isinstance(caught.value, StaleHitError)
    assert story.manager.snapshot() == before


@pytest.mark.rule("KV-MGR-8")
@pytest.mark.parametrize("blocks", [(2, 1), (1, 1), (1, 3), (1, 5), (1, 0), (0, 2), (4, 2)])
def test_hits_carry_the_key_of_their_place(
    story: Story, make_request: MakeRequest, blocks: tuple[int, ...]
) -> None:
    """Wrong order, uncached blocks, and null where it is needed are stale hits."""
    request = make_request(story.manager, "c", range(1, 10))
    before = story.manager.snapshot()
    with pytest.raises(StaleHitError):
        offer(story.manager, request, KVCacheBlocks((blocks,)), 8)
    assert story.manager.snapshot() == before


@pytest.mark.rule("KV-MGR-8")
def test_hits_end_with_the_hashes_of_the_request(story: Story, make_request: MakeRequest) -> None:
    """A request of 7 tokens has one hash: its second block cannot be a hit."""
    request = make_request(story.manager, "c", range(1, 8))
    with pytest.raises(StaleHitError) as caught:
        offer(story.manager, request, KVCacheBlocks(((1, 2),)), 8)
    assert caught.value.index == 1


@pytest.mark.rule("KV-MGR-8", "KV-ERR-3")
@pytest.mark.parametrize("bad", [-1, 6, True, 1.0, None, "1"])
def test_hits_are_blocks_of_the_pool(story: Story, make_request: MakeRequest, bad: int) -> None:
    """What is no block id is an UnknownBlockError."""
    request = make_request(story.manager, "c", range(1, 10))
    before = story.manager.snapshot()
    with pytest.raises(UnknownBlockError):
        offer(story.manager, request, KVCacheBlocks(((1, bad),)), 8)
    assert story.manager.snapshot() == before


@pytest.mark.rule("KV-MGR-8", "KV-ERR-2")
@pytest.mark.parametrize("bad", [None, 7, True])
def test_blocks_are_one_sequence_per_group(bad: tuple[tuple[int, ...], ...]) -> None:
    """What cannot be a list of lists is refused when the value is made."""
    with pytest.raises(InvalidArgumentError):
        KVCacheBlocks(bad)
