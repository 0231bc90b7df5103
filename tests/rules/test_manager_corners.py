"""KV-MGR at the edges: the last token, one external token, the longest sequence, an empty list."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvspec.blocks import KVCacheBlocks
from kvspec.errors import InvalidArgumentError, StaleHitError
from kvspec.interface import Implementation, KVCacheManager
from kvspec.request import Request
from kvspec.snapshot import RequestState
from tests.rules.builders import (
    MakeManager,
    MakeRequest,
    Story,
    admit,
    blocks_of,
    everything,
    full,
    references,
    run_on,
)
from tests.rules.specs import lists_of, mamba, sliding, step

AT_EIGHT = pytest.mark.parametrize(("num_tokens", "external"), [(8, 0), (9, 1)])
"""s is taken at 8: 8 tokens are computed, or 9 with a load, the last of which is computed again."""


def one_of_a_cached_text(
    make_manager: MakeManager, make_request: MakeRequest, window: int, num_tokens: int
) -> tuple[KVCacheManager, Request]:
    """Blocks 1, 2 and 3 hold tokens 0 … 11 in a window; a second request begins like them."""
    manager = make_manager(10, 4, specs=[sliding(4, window)])
    admit(manager, make_request(manager, "first", range(12)))
    return manager, make_request(manager, "second", range(num_tokens))


def take(manager: KVCacheManager, request: Request, blocks: tuple[int, int], external: int) -> None:
    """Allocate one token behind two hit blocks and so many external tokens; it must fit."""
    answer = manager.allocate_slots(
        request,
        1,
        num_new_computed_tokens=8,
        new_computed_blocks=KVCacheBlocks((blocks,)),
        num_external_computed_tokens=external,
    )
    assert answer is not None


@pytest.mark.rule("KV-MGR-8", "KV-MGR-4", "KV-GRP-5")
@AT_EIGHT
@pytest.mark.parametrize("offered", [(0, 2), (1, 2)])
def test_a_hit_block_that_is_skipped_may_be_null_and_becomes_it(
    make_manager: MakeManager,
    make_request: MakeRequest,
    num_tokens: int,
    external: int,
    offered: tuple[int, int],
) -> None:
    """W = 5: s(8) = 4, so the first block is skipped."""
    manager, request = one_of_a_cached_text(make_manager, make_request, 5, num_tokens)
    take(manager, request, offered, external)
    assert blocks_of(manager, request)[:2] == [0, 2]
    assert references(manager)[1] == 1


@pytest.mark.rule("KV-MGR-8", "KV-MGR-4", "KV-GRP-5")
@AT_EIGHT
def test_a_hit_block_of_which_one_token_is_read_is_no_null(
    make_manager: MakeManager, make_request: MakeRequest, num_tokens: int, external: int
) -> None:
    """W = 6: s(8) = 3, and token 3 lies in the first block."""
    manager, request = one_of_a_cached_text(make_manager, make_request, 6, num_tokens)
    before = everything(manager)
    with pytest.raises(StaleHitError) as caught:
        take(manager, request, (0, 2), external)
    assert (caught.value.group, caught.value.index, caught.value.block_id) == (0, 0, 0)
    assert everything(manager) == before
    take(manager, request, (1, 2), external)
    assert blocks_of(manager, request)[:2] == [1, 2]


@pytest.mark.rule("KV-MGR-8")
def test_what_follows_a_null_is_looked_at(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """W = 5: the first may be null, the second must be block 2."""
    manager, request = one_of_a_cached_text(make_manager, make_request, 5, 9)
    with pytest.raises(StaleHitError) as caught:
        take(manager, request, (0, 1), 0)
    assert (caught.value.group, caught.value.index, caught.value.block_id) == (0, 1, 1)


@pytest.mark.rule("KV-MGR-8", "KV-ERR-2")
def test_a_block_beyond_the_hashes_is_named(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """7 tokens have one hash of 4, so nothing can be known of a second block."""
    manager = make_manager(6, 4)
    admit(manager, make_request(manager, "first", range(8)))
    request = make_request(manager, "second", range(7))
    with pytest.raises(StaleHitError) as caught:
        take(manager, request, (1, 2), 0)
    assert (caught.value.group, caught.value.index, caught.value.block_id) == (0, 1, 2)


@pytest.mark.rule("KV-GRP-9", "KV-MGR-20")
def test_an_entry_alone_makes_a_request_running(
    implementation: Implementation, story: Story, make_request: MakeRequest
) -> None:
    """Restored with a count of 0 and an empty list: no hits for it, and no external blocks."""
    state = story.manager.snapshot()
    only_an_entry = RequestState(((),), (0,), (None,))
    known = replace(state, requests={**state.requests, "c": only_an_entry})
    restored = implementation.restore(story.manager.config, known)
    assert restored.snapshot() == known
    request = make_request(restored, "c", range(1, 10))
    hit = restored.get_computed_blocks(request)
    assert hit.blocks.to_lists() == [[1, 2]]
    with pytest.raises(InvalidArgumentError) as caught:
        restored.allocate_slots(
            request, 1, num_new_computed_tokens=8, new_computed_blocks=hit.blocks
        )
    assert caught.value.field == "new_computed_blocks"
    answer = restored.allocate_slots(request, 0, num_external_computed_tokens=4)
    assert answer == KVCacheBlocks(((5,),))


@pytest.mark.rule("KV-GRP-5", "KV-GRP-6", "KV-MGR-3")
def test_one_external_token_is_a_load(make_manager: MakeManager, make_request: MakeRequest) -> None:
    """B = 1: a count of 0, block 1 for the load, and block 2 alone in the answer."""
    manager = make_manager(6, 1)
    request = make_request(manager, "r", range(5))
    answer = manager.allocate_slots(
        request, 1, num_external_computed_tokens=1, delay_cache_blocks=True
    )
    assert answer == KVCacheBlocks(((2,),))
    assert blocks_of(manager, request) == [1, 2]
    assert manager.snapshot().requests["r"].num_cached_blocks == (0,)


@pytest.mark.rule("KV-MGR-5", "KV-GRP-3")
def test_the_gate_counts_what_the_request_holds(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """16 tokens, of which 8 are computed: two blocks more, and two are free."""
    manager = make_manager(5, 4)
    request = make_request(manager, "r", range(16))
    admit(manager, request, 8)
    assert manager.num_free_blocks == 2
    answer = manager.allocate_slots(request, 4, full_sequence_must_fit=True)
    assert answer == KVCacheBlocks(((3,),))


@pytest.mark.rule("KV-MGR-5", "KV-MAMBA-6")
def test_the_gate_counts_main_tokens_up_to_the_end(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """Align, S = 0: 6 of 20 tokens end in entry 1, which is held, but 20 end in entry 4."""
    manager = make_manager(2, specs=[mamba(4, "align")])
    request = make_request(manager, "r", range(20))
    step(manager, request, 5)
    assert lists_of(manager, request) == [[0, 1]]
    before = manager.snapshot()
    assert manager.allocate_slots(request, 1, full_sequence_must_fit=True) is None
    assert manager.snapshot() == before
    assert run_on(manager, request) == [[]]


@pytest.mark.rule("KV-MGR-5", "KV-MGR-4")
@pytest.mark.parametrize(("num_blocks", "fits"), [(3, False), (4, True)])
def test_the_gate_skips_no_further_than_the_longest_sequence(
    make_manager: MakeManager, make_request: MakeRequest, num_blocks: int, fits: bool
) -> None:
    """Longest 17, W = 7, 40 external tokens: the gate asks for cdiv(17, 4) - s(17) // 4 = 3.

    The allocation itself needs 2: cdiv(40, 4) - s(40) // 4, with s(40) = 34.
    """
    manager = make_manager(num_blocks, specs=[sliding(4, 7)], max_model_len_tokens=17)
    request = make_request(manager, "r", range(60))
    answer = manager.allocate_slots(
        request, 0, num_external_computed_tokens=40, full_sequence_must_fit=True
    )
    assert (answer is not None) is fits
    assert manager.num_free_blocks == num_blocks - 1 - 2 * fits


@pytest.mark.rule("KV-HASH-3", "KV-MGR-20")
@pytest.mark.parametrize("seed", ["0", None])
def test_a_snapshot_holds_the_first_parent_hash(
    make_manager: MakeManager, seed: str | None
) -> None:
    manager = make_manager(4, specs=[full(4)], hash_seed=seed)
    assert manager.snapshot().none_hash == manager.none_hash
