"""Examples at an edge of their rule, which neighbours of a right implementation miss."""

from __future__ import annotations

from kvcheck.rules.bench import Bench
from kvcheck.rules.example import example
from kvcheck.rules.judging import equal
from kvcheck.rules.scenarios.groups import window
from kvcheck.rules.specs import full
from kvcheck.rules.statistics import Clock
from kvspec.blocks import KVCacheBlocks
from kvspec.errors import StaleHitError
from kvspec.events import AllBlocksCleared, BlockStored
from kvspec.interface import Feature
from kvspec.stats import ResidencySample


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
