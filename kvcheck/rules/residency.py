"""KV-STAT-6, KV-STAT-7: the lives of sampled blocks."""

from __future__ import annotations

import math

from kvcheck.rules.bench import Bench
from kvcheck.rules.example import cases, example
from kvcheck.rules.judging import equal, holds
from kvcheck.rules.managed import Managed
from kvspec.stats import ResidencySample


class Clock:
    """A clock that shows what the test says, in nanoseconds."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now


@example("KV-STAT-6")
def a_life_lasts_from_birth_to_reuse(bench: Bench) -> None:
    """Born at 100, touched at 110, 130, 160, 200, 250, taken at 300: 200, 50, (30, 40, 50)."""
    clock = Clock()
    manager = bench.manager(3, residency_sample_rate=1.0, clock=clock)
    clock.now = 100
    first = manager.started("first", range(4))
    manager.free(first)
    for clock.now in (110, 130, 160, 200, 250):
        request = manager.started("r", range(5))
        manager.same(manager.blocks(request), [1, 2])
        manager.free(request)
    # Block 2 holds the fifth token of each: taken five times, its first four lives are over.
    lives = [ResidencySample(length, length, ()) for length in (20, 30, 40, 50)]
    equal(list(manager.take_residency_samples()), lives)
    equal(manager.take_residency_samples(), ())
    clock.now = 300
    taker = manager.started("taker", range(50, 58))
    manager.same(manager.blocks(taker), [2, 1])
    samples = sorted(manager.take_residency_samples(), key=lambda sample: sample.lifetime_ns)
    equal(samples, [ResidencySample(50, 50, ()), ResidencySample(200, 50, (30, 40, 50))])


@cases(True, False)
@example("KV-STAT-6")
def an_untouched_block_is_idle_since_its_birth(bench: Bench, cached: bool) -> None:
    """Born at 100, taken at 300: lifetime 200, idle 200, no gaps; whether cached or not."""
    clock = Clock()
    manager = bench.manager(2, residency_sample_rate=1.0, clock=clock)
    clock.now = 100
    first = manager.started("first", range(4 if cached else 3))
    clock.now = 200
    manager.free(first)  # neither a touch nor an end
    equal(manager.take_residency_samples(), ())
    clock.now = 300
    manager.admit(manager.request("taker", [9]))
    equal(manager.take_residency_samples(), (ResidencySample(200, 200, ()),))


@example("KV-STAT-6", "KV-POOL-5")
def a_hit_on_a_block_in_use_is_a_touch(bench: Bench) -> None:
    """The block is hit at 10 and 30 while its first owner holds it, and evicted at 100."""
    clock = Clock()
    manager = bench.manager(6, residency_sample_rate=1.0, clock=clock)
    owner = manager.started("owner", range(4))
    for clock.now in (10, 30):
        manager.started(f"r{clock.now}", range(5))
    clock.now = 100
    manager.evict_blocks(manager.blocks(owner))
    equal(manager.take_residency_samples(), (ResidencySample(100, 70, (20,)),))


@example("KV-STAT-6", "KV-POOL-10")
def eviction_by_id_ends_lives_in_the_order_of_the_call(bench: Bench) -> None:
    """Of cached blocks and of others, and once only."""
    clock = Clock()
    manager = bench.manager(6, residency_sample_rate=1.0, clock=clock)
    (early,) = manager.blocks(manager.started("early", range(4)))
    clock.now = 5
    (late,) = manager.blocks(manager.started("late", [9]))
    clock.now = 7
    unused = next(block for block in range(1, 6) if block not in (early, late))
    manager.evict_blocks([late, 0, early, unused])
    expected = (ResidencySample(2, 2, ()), ResidencySample(7, 7, ()))
    equal(manager.take_residency_samples(), expected)
    manager.evict_blocks([early, late])
    equal(manager.take_residency_samples(), ())


@example("KV-STAT-6", "KV-POOL-11")
def a_reset_drops_lives_and_samples(bench: Bench) -> None:
    """Neither the sample not yet taken nor the lives under way come out afterwards."""
    clock = Clock()
    manager = bench.manager(3, residency_sample_rate=1.0, clock=clock)
    for name in ("one", "two"):
        manager.free(manager.started(name, [9]))
    holds(manager.reset_prefix_cache() is True)
    equal(manager.take_residency_samples(), ())
    clock.now = 50
    request = manager.started("three", range(8))
    equal(manager.take_residency_samples(), ())
    clock.now = 60
    manager.evict_blocks(manager.blocks(request)[:1])
    equal(manager.take_residency_samples(), (ResidencySample(10, 10, ()),))


@example("KV-STAT-6")
def without_caching_nothing_is_timed(bench: Bench) -> None:
    """With caching off there are no samples at any rate."""
    clock = Clock()
    manager = bench.manager(2, residency_sample_rate=1.0, clock=clock, enable_caching=False)
    for name in ("one", "two"):
        manager.free(manager.started(name, [9]))
    equal(manager.take_residency_samples(), ())


def sampled_allocations(manager: Managed, bench: Bench, num_allocations: int) -> list[int]:
    """The numbers of the sampled ones among the first allocations of a pool of one block."""
    sampled = []
    for number in range(num_allocations):
        request = manager.started("r", [9])
        manager.evict_blocks(manager.blocks(request))
        if manager.take_residency_samples():
            sampled.append(number)
        manager.free(request)
    return sampled


@cases(0.29, 0.1, 1 / 3, 0.999, 0.25, 1.0, 1, 0.0)
@example("KV-STAT-7")
def the_arithmetic_is_that_of_doubles(bench: Bench, rate: float) -> None:
    """Rate 0.29: number 99 is not sampled, number 100 is."""
    manager = bench.manager(2, residency_sample_rate=rate)
    sampled = sampled_allocations(manager, bench, 120)
    if rate == 0.29:
        equal(100 * 0.29, 28.999999999999996)
        equal((99 in sampled, 100 in sampled), (False, True))
    equal(sampled, [n for n in range(120) if math.floor((n + 1) * rate) > math.floor(n * rate)])


@example("KV-STAT-7")
def every_block_of_a_call_is_counted(bench: Bench) -> None:
    """A call that takes four blocks at rate 0.25 has the last of them sampled; a reset goes on."""
    clock = Clock()
    manager = bench.manager(5, residency_sample_rate=0.25, clock=clock)
    for taken in ([1, 2, 3, 4], [4, 3, 2, 1]):
        request = manager.request("r", range(13))
        manager.allocate_slots(request, 13, delay_cache_blocks=True)
        blocks = manager.blocks(request)
        manager.same(blocks, taken)
        manager.evict_blocks(blocks[:3])
        equal(manager.take_residency_samples(), ())
        manager.evict_blocks(blocks[3:])
        equal(len(manager.take_residency_samples()), 1)
        manager.free(request)
        holds(manager.reset_prefix_cache() is True)
