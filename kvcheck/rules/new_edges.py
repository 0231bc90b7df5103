"""Single values that decide: what a snapshot shows, the second of two groups, the first block."""

from __future__ import annotations

from dataclasses import replace

from kvcheck.play.verdicts import Level
from kvcheck.rules.bench import Bench
from kvcheck.rules.example import cases, example
from kvcheck.rules.judging import equal, holds, raises
from kvcheck.rules.specs import chunked, full, mamba, sliding
from kvcheck.rules.steps import Steps
from kvspec.errors import ConfigError, InvalidArgumentError
from kvspec.events import BlockStored
from kvspec.request import MultimodalItem
from kvspec.specs import LayerSpec
from kvspec.stats import PrefixCacheStats


@example("KV-MGR-20", "KV-HASH-3", level=Level.IDENTITY)
def a_snapshot_has_the_first_parent_hash(bench: Bench) -> None:
    """The one drawn at random when there is no seed: nobody could work it out."""
    manager = bench.manager(hash_seed=None)
    equal(manager.snapshot().none_hash, manager.none_hash)
    equal(len(manager.none_hash), 32)


@example("KV-MGR-20", "KV-GRP-10", level=Level.IDENTITY)
def a_snapshot_has_the_ids_queued_for_zeroing(bench: Bench) -> None:
    """Per group: full attention zeroes, Mamba does not."""
    manager = bench.manager(6, full(4), mamba(4))
    manager.admit(manager.request("r", range(4)))
    equal(manager.snapshot().new_block_ids, ((1,), ()))
    equal(manager.take_new_block_ids(), (1,))
    equal(manager.snapshot().new_block_ids, ((), ()))


@example("KV-MGR-20", "KV-MAMBA-2", level=Level.IDENTITY)
def a_snapshot_has_the_keys_of_the_states_of_this_step(bench: Bench) -> None:
    """One for the state at the end of block 0, in group 1; none once the next step starts."""
    manager = bench.manager(6, full(4), mamba(4))
    request = manager.request("r", range(4))
    manager.admit(request)
    key = request.block_hashes[0] + (1).to_bytes(4, "big")
    equal(manager.snapshot().step_keys, (frozenset(), frozenset({key})))
    manager.new_step_starts()
    equal(manager.snapshot().step_keys, (frozenset(), frozenset()))


@example("KV-MGR-20", level=Level.IDENTITY)
def the_mark_of_a_state_may_be_left_out(bench: Bench) -> None:
    """None for a group in mode align: the request is restored as one that took no block yet."""
    manager = bench.manager(6, mamba(4, "align"))
    request = manager.request("r", range(4))
    manager.admit(request)
    holds(manager.has_taken_blocks(request))
    snapshot = manager.snapshot()
    unmarked = {"r": replace(snapshot.requests["r"], mamba=(None,))}
    restored = bench.restore(manager.config, replace(snapshot, requests=unmarked))
    holds(not restored.has_taken_blocks(request))


@example("KV-MGR-20", "KV-POOL-13", level=Level.IDENTITY)
def what_is_cached_after_a_restore_stands_behind_what_was_there(bench: Bench) -> None:
    """Request b computes the block of a anew; look-ups still answer a's, and b's when a's goes."""
    original = bench.manager()
    original.admit(original.request("a", range(4)))
    manager = bench.restore(original.config, original.snapshot())
    b = manager.request("b", range(4))
    holds(manager.allocate_slots(b, 4) is not None)  # without the hit that there is
    equal(manager.blocks(b), [2])
    key = b.block_hashes[0] + bytes(4)
    equal(manager.snapshot().lookup_order, {key: (1, 2)})
    c = manager.request("c", range(5))
    equal(manager.hit(c), [1])
    manager.evict_blocks([1])
    equal(manager.hit(c), [2])


@example("KV-CHUNK-3", choices=("chunk_must_align",))
def the_chunk_of_every_group_is_checked(bench: Bench) -> None:
    """Also without caching, and also behind a group that is as it should be."""
    with raises(ConfigError) as caught:
        bench.manager(6, chunked(4, 8), chunked(4, 6), enable_caching=False)
    equal((caught.value.field, caught.value.value), ("attention_chunk_size", 6))


@example("KV-EVT-8", "KV-HASH-8")
def an_item_of_the_second_block_is_no_extra_key_of_the_first(bench: Bench) -> None:
    """Tokens 5 and 6 of blocks of four: the second token of block 1."""
    manager = bench.manager(enable_events=True)
    items = (MultimodalItem("img", 5, 2),)
    manager.admit(manager.request("r", range(8), multimodal=items))
    (event,) = manager.take_events()
    holds(isinstance(event, BlockStored))
    equal(event.extra_keys, (None, (("img", 1),)))


@example("KV-STAT-4", "KV-STAT-5")
def a_window_may_cover_a_single_request(bench: Bench) -> None:
    """Each update takes the place of the one before."""
    window = bench.subject.make_hit_rate_window(1)
    for hits in (0, 8):
        window.observe(PrefixCacheStats(False, 1, 10, hits, 0, 0, 0))
        equal((window.num_requests, window.hit_rate), (1, hits / 10))


@example("KV-STAT-4", "KV-ERR-5")
def a_window_of_no_request_is_an_argument_and_no_configuration(bench: Bench) -> None:
    """What asks for it is a call; nothing that was configured is wrong."""
    with raises(InvalidArgumentError) as caught:
        bench.subject.make_hit_rate_window(0)
    equal((caught.value.field, caught.value.value), ("max_requests", 0))
    holds(not isinstance(caught.value, ConfigError))


@cases([full(4)], [full(4), sliding(4, 8)])
@example("KV-BATCH-6", "KV-BATCH-12", level=Level.IDENTITY)
def a_request_that_was_rewound_to_its_start_is_under_way(
    bench: Bench, specs: list[LayerSpec]
) -> None:
    """It still holds its block, which has slots for the tokens that are computed again."""
    steps = Steps(bench, specs=specs)
    (a,) = steps.admitted(range(4))
    held = steps.lists(a)
    steps.batched.rewind([a], [4])
    equal(steps.of(a).num_computed_tokens, 0)
    equal(steps.batched.decode([a], 3).num_scheduled_tokens.tolist(), [3])
    equal(steps.of(a).num_computed_tokens, 3)
    equal(steps.lists(a), held)
