"""Examples at an edge of their rule, which neighbours of a right implementation miss."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvcheck.play.verdicts import Level
from kvcheck.rules.bench import Bench
from kvcheck.rules.example import example
from kvcheck.rules.judging import equal, raises
from kvcheck.rules.plan_specs import GIB, latent, named, settings, sliding
from kvcheck.rules.scenarios.groups import CROSS, window
from kvcheck.rules.specs import full
from kvcheck.rules.statistics import Clock
from kvspec.blocks import KVCacheBlocks
from kvspec.errors import InvalidArgumentError, StaleHitError
from kvspec.events import AllBlocksCleared, BlockStored
from kvspec.interface import Feature
from kvspec.specs import MLAAttentionSpec
from kvspec.stats import ResidencySample


@example("KV-GRP-11", "KV-MGR-11", level=Level.IDENTITY, choices=())
def a_caching_call_for_fewer_tokens_than_before_changes_nothing(bench: Bench) -> None:
    bench.need(Feature.DELAYED_CACHING)
    manager = bench.manager(8)
    request = manager.started("r", range(12))
    before = manager.snapshot()
    manager.cache_blocks(request, 4)
    equal(manager.snapshot(), before, "the state afterwards")


@example("KV-GRP-9")
def a_request_with_an_entry_in_one_of_its_groups_takes_no_external_blocks(bench: Bench) -> None:
    bench.need(Feature.EXTERNAL_TOKENS)
    manager = bench.manager(20, full(2), CROSS, enable_caching=False)
    request = manager.request("r", range(8))
    arguments: dict[str, Any] = {"num_external_computed_tokens": 2, "num_encoder_tokens": 2}
    manager.allocate_slots(request, 2, **arguments)
    held = manager.get_blocks(request).to_lists()
    request.num_computed_tokens = 4
    manager.allocate_slots(request, 1, **arguments)
    equal([
        blocks[: len(first)]
        for blocks, first in zip(manager.get_blocks(request).to_lists(), held, strict=True)
    ], held, "the blocks held before")  # fmt: skip


@example("KV-MGR-5")
def nothing_is_released_first(bench: Bench) -> None:
    """What no longer is read stays until it is known that the whole sequence fits."""
    bench.need(Feature.ADMISSION)
    manager = bench.manager(7, window(3))
    request = manager.request("r", range(20))
    manager.admit(request, 6)
    manager.started("other", (90, 91, 92))
    before = manager.visible()
    answer = manager.allocate_slots(request, 4, full_sequence_must_fit=True)
    equal(answer, None, "an allocation that is too large")
    equal(manager.visible(), before, "the state afterwards")


@example("KV-MGR-8")
def a_hit_carries_the_key_of_its_own_group(bench: Bench) -> None:
    bench.need(Feature.MULTIPLE_GROUPS)
    manager = bench.manager(20, full(2), window(9))
    manager.free(manager.started("first", range(4)))
    request = manager.request("r", range(5))
    hit = manager.get_computed_blocks(request)
    equal(hit.hit_length_tokens, 4, "the hit")
    before = manager.visible()
    with manager.refuses(StaleHitError):
        manager.allocate_slots(
            request,
            1,
            num_new_computed_tokens=4,
            new_computed_blocks=KVCacheBlocks(hit.blocks.groups[::-1]),
        )
    equal(manager.visible(), before, "the state afterwards")


@example("KV-MGR-8", "KV-COORD-9", level=Level.SAFETY)
def short_lists_of_hits(bench: Bench) -> None:
    """A list of hits may be short where a load brings what it lacks, and not otherwise."""
    bench.need(Feature.HITS_PER_GROUP, Feature.EXTERNAL_TOKENS, Feature.DELAYED_CACHING)
    bench.need(Feature.EVICTION_BY_ID)
    manager = bench.manager(20, full(4), MLAAttentionSpec(4, 1, 8, "float16"))
    first = manager.started("first", range(12))
    manager.evict_blocks(manager.get_blocks(first).to_lists()[1][1:])
    manager.free(first)
    request = manager.request("r", range(17))
    own = manager.find_longest_cache_hit_per_group(request, 16)
    equal(tuple(own.hit_lengths_tokens), (12, 4), "own hits")
    before = manager.visible()

    def allocate(local: int, external: int, blocks: KVCacheBlocks = own.blocks) -> Any:
        return manager.allocate_slots(
            request,
            0 if external else 1,
            num_new_computed_tokens=local,
            new_computed_blocks=blocks,
            num_external_computed_tokens=external,
            delay_cache_blocks=True,
        )

    for local, external in ((12, 0), (4, 4), (16, 4), (0, 4)):
        with raises(InvalidArgumentError):
            allocate(local, external)
        equal(manager.visible(), before, "the state after it")
    exchanged = KVCacheBlocks((own.blocks.groups[0], own.blocks.groups[0][:1]))
    with raises(StaleHitError):
        allocate(12, 4, exchanged)
    equal(manager.visible(), before, "the state after that")
    granted = allocate(12, 4)
    shown = None if granted is None else granted.to_lists()
    equal(shown, [[], []], "new blocks of the load")
    held = [len(blocks) for blocks in manager.get_blocks(request).to_lists()]
    equal(held, [4, 4], "blocks held for 16 tokens")
    manager.cache_blocks(request, 16)
    again = manager.get_computed_blocks(manager.request("again", range(17)))
    equal(again.hit_length_tokens, 16, "the hit when the load is there")


@example("KV-EVT-1", "KV-EVT-5")
def a_reset_is_told_after_what_was_told_before_with_events_off_nothing_is(bench: Bench) -> None:
    bench.need(Feature.RESET)
    manager = bench.manager(8, enable_events=True)
    manager.free(manager.started("r", range(4)))
    manager.reset_prefix_cache()
    found = [type(event) for event in manager.take_events()]
    equal(found, [BlockStored, AllBlocksCleared], "events")
    silent = bench.manager(8)
    silent.free(silent.started("r", range(4)))
    silent.reset_prefix_cache()
    equal(tuple(silent.take_events()), (), "events that are off")


@example("KV-STAT-6")
def lives_with_few_touches(bench: Bench) -> None:
    """The gap before the first touch is none, and lives of before a reset are forgotten."""
    bench.need(Feature.RESIDENCY, Feature.RESET)
    clock = Clock()
    manager = bench.manager(3, clock=clock, residency_sample_rate=1.0)
    owner = manager.started("owner", range(4))
    for now in (10, 30):
        clock.now = now
        manager.free(manager.started("r", range(5)))
    manager.free(owner)
    manager.take_residency_samples()
    clock.now = 100
    taker = manager.started("taker", range(50, 58))
    found = sorted(manager.take_residency_samples(), key=lambda sample: sample.lifetime_ns)
    equal(found[-1], ResidencySample(100, 70, (20,)), "a block that was touched twice")
    manager.free(taker)
    manager.reset_prefix_cache()
    manager.started("next", range(60, 68))
    equal(tuple(manager.take_residency_samples()), (), "lives of before a reset")


@example("KV-PLAN-1", "KV-PLAN-8")
def what_fills_its_alignment_or_its_blocks_exactly_needs_no_more(bench: Bench) -> None:
    aligned = bench.planner.spec_properties(latent(576, alignment=576), settings())
    equal(aligned.page_size_bytes, 18_432, "bytes of an aligned page")
    seen = bench.planner.spec_properties(sliding(17), settings(1000, 16))
    blocks = seen.max_admission_blocks_per_request
    equal(blocks, 3, "blocks of a window of 17 and a step of 16 tokens")


@example("KV-PLAN-16")
def the_layers_of_the_first_worker_are_the_scheduler_s(bench: Bench) -> None:
    plan = bench.planner.plan((named(latent()),) * 2, settings(), (GIB, GIB))
    first = plan.configs[0]
    groups = tuple(replace(group, layer_names=("other",)) for group in first.groups)
    found = bench.planner.scheduler_config((first, replace(first, groups=groups)))
    equal(found.groups[0].layer_names, first.groups[0].layer_names, "layers")
