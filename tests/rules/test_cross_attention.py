"""KV-CROSS: groups that hold no tokens of the request."""

from __future__ import annotations

import pytest

from kvspec.blocks import KVCacheBlocks, PrefixHit
from kvspec.errors import ConfigError
from kvspec.interface import KVCacheManager
from kvspec.specs import LayerSpec
from tests.rules.builders import MakeManager, MakeRequest, admit, full, queue_of
from tests.rules.specs import counts_of, cross, encoder_only, lists_of, need_of


def encoder_decoder(make_manager: MakeManager, num_blocks: int = 20) -> KVCacheManager:
    """Full attention with block size 4, then cross attention with block size 8; caching off."""
    return make_manager(num_blocks, specs=[full(4), cross(8)], enable_caching=False)


@pytest.mark.rule("KV-CROSS-1")
def test_the_need_follows_the_encoder_tokens(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """5 tokens and 20 encoder tokens: 2 + 3 blocks; then 0 for none, 1 for 30."""
    manager = encoder_decoder(make_manager)
    request = make_request(manager, "r", range(40))
    assert need_of(manager, request, 5, encoder=20) == 5
    assert need_of(manager, request, 5, encoder=20, capped=True) == 5
    assert manager.allocate_slots(request, 5, num_encoder_tokens=20) is not None
    request.num_computed_tokens = 5
    assert need_of(manager, request, 8, computed=5) == 0
    assert need_of(manager, request, 8, computed=5, encoder=30) == 1


@pytest.mark.rule("KV-CROSS-1", "KV-MGR-7")
@pytest.mark.parametrize(("num_blocks", "fits"), [(6, True), (5, False)])
def test_an_encoder_that_does_not_fit_is_refused(
    make_manager: MakeManager, make_request: MakeRequest, num_blocks: int, fits: bool
) -> None:
    """5 free blocks are enough for 2 + 3, and 4 are not: then nothing is taken."""
    manager = encoder_decoder(make_manager, num_blocks)
    request = make_request(manager, "r", range(5))
    before = manager.snapshot()
    assert (manager.allocate_slots(request, 5, num_encoder_tokens=20) is not None) == fits
    assert (manager.snapshot() == before) != fits


@pytest.mark.rule("KV-CROSS-2", "KV-GRP-1", "KV-POOL-7", "KV-POOL-8", "KV-GRP-10")
def test_the_encoder_is_allocated_once(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """[[1, 2], [3, 4, 5]], then [[6], []]; freed as [6, 2, 1] and [5, 4, 3]."""
    manager = encoder_decoder(make_manager, 8)
    request = make_request(manager, "r", range(9))
    answer = manager.allocate_slots(request, 5, num_encoder_tokens=20)
    assert answer == KVCacheBlocks(((1, 2), (3, 4, 5)))
    request.num_computed_tokens = 5
    assert manager.allocate_slots(request, 4) == KVCacheBlocks(((6,), ()))
    assert manager.take_new_block_ids() == (1, 2, 6)
    manager.remove_skipped_blocks(request, 9)
    assert lists_of(manager, request) == [[1, 2, 6], [3, 4, 5]]
    assert counts_of(manager, request) == (None, None)
    manager.free(request)
    assert queue_of(manager) == [5, 4, 3, 6, 2, 1, 7]


@pytest.mark.rule("KV-CROSS-2", "KV-GRP-5", "KV-GRP-6")
def test_external_tokens_leave_the_encoder_alone(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """8 external tokens and 1 new: two external blocks in group 0, none in group 1."""
    manager = encoder_decoder(make_manager)
    request = make_request(manager, "r", range(12))
    answer = manager.allocate_slots(
        request, 1, num_external_computed_tokens=8, num_encoder_tokens=20
    )
    assert answer == KVCacheBlocks(((3,), (4, 5, 6)))
    assert lists_of(manager, request) == [[1, 2, 3], [4, 5, 6]]
    assert counts_of(manager, request) == (0, None)


@pytest.mark.rule("KV-CROSS-2", "KV-REQ-3", "KV-MGR-11")
def test_the_encoder_limits_no_computed_tokens(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """8 encoder tokens have one block; 12 computed tokens are legal all the same."""
    manager = encoder_decoder(make_manager)
    request = make_request(manager, "r", range(20))
    assert manager.allocate_slots(request, 12, num_encoder_tokens=8) is not None
    request.num_computed_tokens = 12
    manager.cache_blocks(request, 12)
    assert manager.allocate_slots(request, 8) == KVCacheBlocks(((5, 6), ()))


@pytest.mark.rule("KV-CROSS-3", "KV-COORD-1")
def test_a_second_request_computes_everything_again(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """The same text and the same audio: no hit, and blocks of its own."""
    manager = encoder_decoder(make_manager)
    for name, blocks in (("a", [[1, 2], [3]]), ("b", [[4, 5], [6]])):
        request = make_request(manager, name, range(8))
        assert manager.get_computed_blocks(request) == PrefixHit(KVCacheBlocks.empty(2), 0)
        assert manager.get_num_common_prefix_blocks(request) == (0, 0)
        assert admit(manager, request, num_encoder_tokens=8) is not None
        assert lists_of(manager, request) == blocks


@pytest.mark.rule("KV-CROSS-4", "KV-ERR-5")
@pytest.mark.parametrize(
    "specs",
    [[cross(4)], [full(4), cross(4)], [encoder_only(4)], [full(4), encoder_only(4)]],
    ids=["cross", "full_cross", "encoder_only", "full_encoder_only"],
)
def test_caching_is_refused(make_manager: MakeManager, specs: list[LayerSpec]) -> None:
    """Nothing of these groups is ever a hit, so nothing at all would be."""
    with pytest.raises(ConfigError) as caught:
        make_manager(10, specs=specs)
    assert caught.value.field == "enable_caching"
    make_manager(10, specs=specs, enable_caching=False)


@pytest.mark.rule("KV-CROSS-5")
def test_an_encoder_only_group_needs_no_block(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """Full attention takes 1 and 2; beside it the list stays empty, encoder tokens or not."""
    manager = make_manager(10, specs=[full(4), encoder_only(4)], enable_caching=False)
    request = make_request(manager, "r", range(5))
    assert need_of(manager, request, 5, encoder=20) == 2
    answer = manager.allocate_slots(request, 5, num_encoder_tokens=20)
    assert answer == KVCacheBlocks(((1, 2), ()))
    alone = make_manager(1, specs=[encoder_only(4)], enable_caching=False)
    request = make_request(alone, "r", range(5))
    assert alone.allocate_slots(request, 5) == KVCacheBlocks(((),))
