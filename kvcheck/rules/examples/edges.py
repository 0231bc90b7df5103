"""Examples at an edge of their rule, which neighbours of a right implementation miss."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvcheck.play.verdicts import Level
from kvcheck.rules.examples.bench import Bench, full
from kvcheck.rules.examples.example import example
from kvcheck.rules.examples.plan_specs import GIB, latent, named, settings, sliding
from kvcheck.rules.examples.statistics import Clock
from kvcheck.rules.scenarios.groups import CROSS, window
from kvspec.blocks import KVCacheBlocks
from kvspec.errors import InvalidArgumentError, StaleHitError
from kvspec.events import AllBlocksCleared, BlockStored
from kvspec.interface import Feature
from kvspec.specs import MLAAttentionSpec
from kvspec.stats import ResidencySample


@example("KV-GRP-11", "KV-MGR-11", level=Level.IDENTITY)
def counts_never_go_back(bench: Bench) -> None:
    """A caching call for fewer tokens than before changes nothing."""
    bench.need(Feature.DELAYED_CACHING)
    manager = bench.manager(8)
    request = bench.started(manager, "r", range(12))
    before = manager.snapshot()
    manager.cache_blocks(request, 4)
    bench.equal("the state afterwards", before, manager.snapshot())


@example("KV-GRP-9")
def running_in_one_group(bench: Bench) -> None:
    """A request with an entry in one of its groups takes no external blocks."""
    bench.need(Feature.EXTERNAL_TOKENS)
    manager = bench.manager(20, full(2), CROSS, enable_caching=False)
    request = bench.request(manager, "r", range(8))
    arguments: dict[str, Any] = {"num_external_computed_tokens": 2, "num_encoder_tokens": 2}
    manager.allocate_slots(request, 2, **arguments)
    held = manager.get_blocks(request).to_lists()
    request.num_computed_tokens = 4
    manager.allocate_slots(request, 1, **arguments)
    bench.equal("the blocks held before", held, [
        blocks[: len(first)]
        for blocks, first in zip(manager.get_blocks(request).to_lists(), held, strict=True)
    ])  # fmt: skip


@example("KV-MGR-5")
def nothing_is_released_first(bench: Bench) -> None:
    """What no longer is read stays until it is known that the whole sequence fits."""
    bench.need(Feature.ADMISSION)
    manager = bench.manager(7, window(3))
    request = bench.request(manager, "r", range(20))
    bench.admit(manager, request, 6)
    bench.started(manager, "other", (90, 91, 92))
    before = bench.visible(manager)
    answer = manager.allocate_slots(request, 4, full_sequence_must_fit=True)
    bench.equal("an allocation that is too large", None, answer)
    bench.equal("the state afterwards", before, bench.visible(manager))


@example("KV-MGR-8")
def hits_of_their_group(bench: Bench) -> None:
    """A hit carries the key of its own group."""
    bench.need(Feature.MULTIPLE_GROUPS)
    manager = bench.manager(20, full(2), window(9))
    manager.free(bench.started(manager, "first", range(4)))
    request = bench.request(manager, "r", range(5))
    hit = manager.get_computed_blocks(request)
    bench.equal("the hit", 4, hit.hit_length_tokens)
    before = bench.visible(manager)
    bench.raises(
        "the hits of two groups, exchanged",
        StaleHitError,
        manager.allocate_slots,
        request,
        1,
        num_new_computed_tokens=4,
        new_computed_blocks=KVCacheBlocks(hit.blocks.groups[::-1]),
    )
    bench.equal("the state afterwards", before, bench.visible(manager))


@example("KV-MGR-8", "KV-COORD-9", level=Level.SAFETY)
def short_lists_of_hits(bench: Bench) -> None:
    """A list of hits may be short where a load brings what it lacks, and not otherwise."""
    bench.need(Feature.HITS_PER_GROUP, Feature.EXTERNAL_TOKENS, Feature.DELAYED_CACHING)
    bench.need(Feature.EVICTION_BY_ID)
    manager = bench.manager(20, full(4), MLAAttentionSpec(4, 1, 8, "float16"))
    first = bench.started(manager, "first", range(12))
    manager.evict_blocks(manager.get_blocks(first).to_lists()[1][1:])
    manager.free(first)
    request = bench.request(manager, "r", range(17))
    own = manager.find_longest_cache_hit_per_group(request, 16)
    bench.equal("own hits", (12, 4), tuple(own.hit_lengths_tokens))
    before = bench.visible(manager)

    def allocate(
        local: int, external: int, blocks: KVCacheBlocks = own.blocks
    ) -> KVCacheBlocks | None:
        return manager.allocate_slots(
            request,
            0 if external else 1,
            num_new_computed_tokens=local,
            new_computed_blocks=blocks,
            num_external_computed_tokens=external,
            delay_cache_blocks=True,
        )

    for local, external in ((12, 0), (4, 4), (16, 4), (0, 4)):
        what = f"{local} tokens of these hits, and {external} of a load"
        bench.raises(what, InvalidArgumentError, allocate, local, external)
        bench.equal("the state after it", before, bench.visible(manager))
    exchanged = KVCacheBlocks((own.blocks.groups[0], own.blocks.groups[0][:1]))
    bench.raises("a short list of other blocks", StaleHitError, allocate, 12, 4, exchanged)
    bench.equal("the state after that", before, bench.visible(manager))
    granted = allocate(12, 4)
    shown = None if granted is None else granted.to_lists()
    bench.equal("new blocks of the load", [[], []], shown)
    held = [len(blocks) for blocks in manager.get_blocks(request).to_lists()]
    bench.equal("blocks held for 16 tokens", [4, 4], held)
    manager.cache_blocks(request, 16)
    again = manager.get_computed_blocks(bench.request(manager, "again", range(17)))
    bench.equal("the hit when the load is there", 16, again.hit_length_tokens)


@example("KV-EVT-1", "KV-EVT-5")
def queue_of_events(bench: Bench) -> None:
    """A reset is told after what was told before; with events off nothing is."""
    bench.need(Feature.RESET)
    manager = bench.manager(8, enable_events=True)
    manager.free(bench.started(manager, "r", range(4)))
    manager.reset_prefix_cache()
    found = [type(event) for event in manager.take_events()]
    bench.equal("events", [BlockStored, AllBlocksCleared], found)
    silent = bench.manager(8)
    silent.free(bench.started(silent, "r", range(4)))
    silent.reset_prefix_cache()
    bench.equal("events that are off", (), tuple(silent.take_events()))


@example("KV-STAT-6")
def lives_with_few_touches(bench: Bench) -> None:
    """The gap before the first touch is none, and lives of before a reset are forgotten."""
    bench.need(Feature.RESIDENCY, Feature.RESET)
    clock = Clock()
    manager = bench.manager(3, clock=clock, residency_sample_rate=1.0)
    owner = bench.started(manager, "owner", range(4))
    for now in (10, 30):
        clock.now = now
        manager.free(bench.started(manager, "r", range(5)))
    manager.free(owner)
    manager.take_residency_samples()
    clock.now = 100
    taker = bench.started(manager, "taker", range(50, 58))
    found = sorted(manager.take_residency_samples(), key=lambda sample: sample.lifetime_ns)
    bench.equal("a block that was touched twice", ResidencySample(100, 70, (20,)), found[-1])
    manager.free(taker)
    manager.reset_prefix_cache()
    bench.started(manager, "next", range(60, 68))
    bench.equal("lives of before a reset", (), tuple(manager.take_residency_samples()))


@example("KV-PLAN-1", "KV-PLAN-8")
def exact_sizes(bench: Bench) -> None:
    """What fills its alignment or its blocks exactly needs no more."""
    aligned = bench.planner.spec_properties(latent(576, alignment=576), settings())
    bench.equal("bytes of an aligned page", 18_432, aligned.page_size_bytes)
    seen = bench.planner.spec_properties(sliding(17), settings(1000, 16))
    blocks = seen.max_admission_blocks_per_request
    bench.equal("blocks of a window of 17 and a step of 16 tokens", 3, blocks)


@example("KV-PLAN-16")
def first_layout(bench: Bench) -> None:
    """The layers of the first worker are the scheduler's."""
    plan = bench.planner.plan((named(latent()),) * 2, settings(), (GIB, GIB))
    first = plan.configs[0]
    groups = tuple(replace(group, layer_names=("other",)) for group in first.groups)
    found = bench.planner.scheduler_config((first, replace(first, groups=groups)))
    bench.equal("layers", first.groups[0].layer_names, found.groups[0].layer_names)


EDGES = (
    counts_never_go_back, running_in_one_group, nothing_is_released_first, hits_of_their_group,
    short_lists_of_hits, queue_of_events, lives_with_few_touches, exact_sizes, first_layout,
)  # fmt: skip
