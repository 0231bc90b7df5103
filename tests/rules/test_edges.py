"""Single values that decide: what a snapshot shows, the second of two groups, the first block."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvspec.errors import ConfigError, InvalidArgumentError
from kvspec.events import BlockStored
from kvspec.interface import Implementation
from kvspec.request import MultimodalItem
from kvspec.specs import LayerSpec
from kvspec.stats import PrefixCacheStats
from tests.rules.batches import MakeSteps
from tests.rules.builders import (
    MakeManager,
    MakeRequest,
    admit,
    blocks_of,
    full,
    hit_of,
    new_manager,
)
from tests.rules.specs import chunked, has_taken_blocks, mamba, sliding


@pytest.mark.rule("KV-MGR-20", "KV-HASH-3")
def test_a_snapshot_has_the_first_parent_hash(make_manager: MakeManager) -> None:
    """The one drawn at random when there is no seed: nobody could work it out."""
    manager = make_manager(hash_seed=None)
    assert manager.snapshot().none_hash == manager.none_hash
    assert len(manager.none_hash) == 32


@pytest.mark.rule("KV-MGR-20", "KV-GRP-10")
def test_a_snapshot_has_the_ids_queued_for_zeroing(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """Per group: full attention zeroes, Mamba does not."""
    manager = make_manager(specs=[full(4), mamba(4)])
    admit(manager, make_request(manager, "r", range(4)))
    assert manager.snapshot().new_block_ids == ((1,), ())
    assert manager.take_new_block_ids() == (1,)
    assert manager.snapshot().new_block_ids == ((), ())


@pytest.mark.rule("KV-MGR-20", "KV-MAMBA-2")
def test_a_snapshot_has_the_keys_of_the_states_of_this_step(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """One for the state at the end of block 0, in group 1; none once the next step starts."""
    manager = make_manager(specs=[full(4), mamba(4)])
    request = make_request(manager, "r", range(4))
    admit(manager, request)
    key = request.block_hashes[0] + (1).to_bytes(4, "big")
    assert manager.snapshot().step_keys == (frozenset(), frozenset({key}))
    manager.new_step_starts()
    assert manager.snapshot().step_keys == (frozenset(), frozenset())


@pytest.mark.rule("KV-MGR-20")
def test_the_mark_of_a_state_may_be_left_out(
    implementation: Implementation, make_request: MakeRequest
) -> None:
    """None for a group in mode align: the request is restored as one that took no block yet."""
    manager = new_manager(implementation, 6, specs=[mamba(4, "align")])
    request = make_request(manager, "r", range(4))
    admit(manager, request)
    assert has_taken_blocks(manager, request)
    snapshot = manager.snapshot()
    unmarked = {"r": replace(snapshot.requests["r"], mamba=(None,))}
    restored = implementation.restore(manager.config, replace(snapshot, requests=unmarked))
    assert not has_taken_blocks(restored, request)


@pytest.mark.rule("KV-MGR-20", "KV-POOL-13")
def test_what_is_cached_after_a_restore_stands_behind_what_was_there(
    implementation: Implementation, make_request: MakeRequest
) -> None:
    """Request b computes the block of a anew; look-ups still answer a's, and b's when a's goes."""
    original = new_manager(implementation)
    admit(original, make_request(original, "a", range(4)))
    manager = implementation.restore(original.config, original.snapshot())
    b = make_request(manager, "b", range(4))
    assert manager.allocate_slots(b, 4) is not None  # without the hit that there is
    assert blocks_of(manager, b) == [2]
    key = b.block_hashes[0] + bytes(4)
    assert manager.snapshot().lookup_order == {key: (1, 2)}
    c = make_request(manager, "c", range(5))
    assert hit_of(manager, c) == [1]
    manager.evict_blocks([1])
    assert hit_of(manager, c) == [2]


@pytest.mark.rule("KV-CHUNK-3")
def test_the_chunk_of_every_group_is_checked(make_manager: MakeManager) -> None:
    """Also without caching, and also behind a group that is as it should be."""
    with pytest.raises(ConfigError) as caught:
        make_manager(specs=[chunked(4, 8), chunked(4, 6)], enable_caching=False)
    assert (caught.value.field, caught.value.value) == ("attention_chunk_size", 6)


@pytest.mark.rule("KV-EVT-8", "KV-HASH-8")
def test_an_item_of_the_second_block_is_no_extra_key_of_the_first(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """Tokens 5 and 6 of blocks of four: the second token of block 1."""
    manager = make_manager(enable_events=True)
    items = (MultimodalItem("img", 5, 2),)
    admit(manager, make_request(manager, "r", range(8), multimodal=items))
    (event,) = manager.take_events()
    assert isinstance(event, BlockStored)
    assert event.extra_keys == (None, (("img", 1),))


@pytest.mark.rule("KV-STAT-4", "KV-STAT-5")
def test_a_window_may_cover_a_single_request(implementation: Implementation) -> None:
    """Each update takes the place of the one before."""
    window = implementation.make_hit_rate_window(1)
    for hits in (0, 8):
        window.observe(PrefixCacheStats(False, 1, 10, hits, 0, 0, 0))
        assert (window.num_requests, window.hit_rate) == (1, hits / 10)


@pytest.mark.rule("KV-STAT-4", "KV-ERR-5")
def test_a_window_of_no_request_is_an_argument_and_no_configuration(
    implementation: Implementation,
) -> None:
    """What asks for it is a call; nothing that was configured is wrong."""
    with pytest.raises(InvalidArgumentError) as caught:
        implementation.make_hit_rate_window(0)
    assert (caught.value.field, caught.value.value) == ("max_requests", 0)
    assert not isinstance(caught.value, ConfigError)


@pytest.mark.rule("KV-BATCH-6", "KV-BATCH-12")
@pytest.mark.parametrize("specs", [[full(4)], [full(4), sliding(4, 8)]])
def test_a_request_that_was_rewound_to_its_start_is_under_way(
    make_steps: MakeSteps, specs: list[LayerSpec]
) -> None:
    """It still holds its block, which has slots for the tokens that are computed again."""
    steps = make_steps(specs=specs)
    (a,) = steps.admitted(range(4))
    held = steps.lists(a)
    steps.batched.rewind([a], [4])
    assert steps.of(a).num_computed_tokens == 0
    assert steps.batched.decode([a], 3).num_scheduled_tokens.tolist() == [3]
    assert steps.of(a).num_computed_tokens == 3
    assert steps.lists(a) == held
