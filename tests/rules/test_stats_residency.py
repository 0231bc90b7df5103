"""KV-STAT-6, KV-STAT-7: the lives of sampled blocks."""

from __future__ import annotations

import math

import pytest

from kvspec.interface import KVCacheManager
from kvspec.stats import ResidencySample
from tests.rules.builders import MakeManager, MakeRequest, admit, blocks_of


class Clock:
    """A clock that shows what the test says, in nanoseconds."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock() -> Clock:
    """A clock at 0."""
    return Clock()


@pytest.mark.rule("KV-STAT-6")
def test_a_life_lasts_from_birth_to_reuse(
    make_manager: MakeManager, make_request: MakeRequest, clock: Clock
) -> None:
    """Born at 100, touched at 110, 130, 160, 200, 250, taken at 300: 200, 50, (30, 40, 50)."""
    manager = make_manager(3, 4, residency_sample_rate=1.0, clock=clock)
    clock.now = 100
    first = make_request(manager, "first", range(4))
    admit(manager, first)
    manager.free(first)
    for clock.now in (110, 130, 160, 200, 250):
        request = make_request(manager, "r", range(5))
        admit(manager, request)
        assert blocks_of(manager, request) == [1, 2]
        manager.free(request)
    # Block 2 holds the fifth token of each: taken five times, its first four lives are over.
    lives = [ResidencySample(length, length, ()) for length in (20, 30, 40, 50)]
    assert list(manager.take_residency_samples()) == lives
    assert manager.take_residency_samples() == ()
    clock.now = 300
    taker = make_request(manager, "taker", range(50, 58))
    admit(manager, taker)
    assert blocks_of(manager, taker) == [2, 1]
    assert manager.take_residency_samples() == (
        ResidencySample(50, 50, ()),
        ResidencySample(200, 50, (30, 40, 50)),
    )


@pytest.mark.rule("KV-STAT-6")
@pytest.mark.parametrize("cached", [True, False])
def test_an_untouched_block_is_idle_since_its_birth(
    make_manager: MakeManager, make_request: MakeRequest, clock: Clock, cached: bool
) -> None:
    """Born at 100, taken at 300: lifetime 200, idle 200, no gaps; whether cached or not."""
    manager = make_manager(2, 4, residency_sample_rate=1.0, clock=clock)
    clock.now = 100
    first = make_request(manager, "first", range(4 if cached else 3))
    admit(manager, first)
    clock.now = 200
    manager.free(first)  # neither a touch nor an end
    assert manager.take_residency_samples() == ()
    clock.now = 300
    admit(manager, make_request(manager, "taker", [9]))
    assert manager.take_residency_samples() == (ResidencySample(200, 200, ()),)


@pytest.mark.rule("KV-STAT-6", "KV-POOL-5")
def test_a_hit_on_a_block_in_use_is_a_touch(
    make_manager: MakeManager, make_request: MakeRequest, clock: Clock
) -> None:
    """The block is hit at 10 and 30 while its first owner holds it, and evicted at 100."""
    manager = make_manager(6, 4, residency_sample_rate=1.0, clock=clock)
    admit(manager, make_request(manager, "owner", range(4)))
    for clock.now in (10, 30):
        admit(manager, make_request(manager, f"r{clock.now}", range(5)))
    clock.now = 100
    manager.evict_blocks([1])
    assert manager.take_residency_samples() == (ResidencySample(100, 70, (20,)),)


@pytest.mark.rule("KV-STAT-6", "KV-POOL-10")
def test_eviction_by_id_ends_lives(
    make_manager: MakeManager, make_request: MakeRequest, clock: Clock
) -> None:
    """In the given order, of cached blocks and of others, and once only."""
    manager = make_manager(6, 4, residency_sample_rate=1.0, clock=clock)
    admit(manager, make_request(manager, "early", range(4)))
    clock.now = 5
    admit(manager, make_request(manager, "late", [9]))
    clock.now = 7
    manager.evict_blocks([2, 0, 1, 3])
    expected = (ResidencySample(2, 2, ()), ResidencySample(7, 7, ()))
    assert manager.take_residency_samples() == expected
    manager.evict_blocks([1, 2])
    assert manager.take_residency_samples() == ()


@pytest.mark.rule("KV-STAT-6", "KV-POOL-11")
def test_a_reset_drops_lives_and_samples(
    make_manager: MakeManager, make_request: MakeRequest, clock: Clock
) -> None:
    """Neither the sample not yet taken nor the lives under way come out afterwards."""
    manager = make_manager(3, 4, residency_sample_rate=1.0, clock=clock)
    for name in ("one", "two"):
        request = make_request(manager, name, [9])
        admit(manager, request)
        manager.free(request)
    assert manager.reset_prefix_cache() is True
    assert manager.take_residency_samples() == ()
    clock.now = 50
    request = make_request(manager, "three", range(8))
    admit(manager, request)
    assert manager.take_residency_samples() == ()
    clock.now = 60
    manager.evict_blocks([1])
    assert manager.take_residency_samples() == (ResidencySample(10, 10, ()),)


@pytest.mark.rule("KV-STAT-6")
def test_without_caching_nothing_is_timed(
    make_manager: MakeManager, make_request: MakeRequest, clock: Clock
) -> None:
    """With caching off there are no samples at any rate."""
    manager = make_manager(2, 4, residency_sample_rate=1.0, clock=clock, enable_caching=False)
    for name in ("one", "two"):
        request = make_request(manager, name, [9])
        admit(manager, request)
        manager.free(request)
    assert manager.take_residency_samples() == ()


def sampled_allocations(
    manager: KVCacheManager, make_request: MakeRequest, num_allocations: int
) -> list[int]:
    """The numbers of the sampled ones among the first allocations of a pool of one block."""
    sampled = []
    for number in range(num_allocations):
        request = make_request(manager, "r", [9])
        admit(manager, request)
        manager.evict_blocks([1])
        if manager.take_residency_samples():
            sampled.append(number)
        manager.free(request)
    return sampled


@pytest.mark.rule("KV-STAT-7")
@pytest.mark.parametrize(
    ("rate", "expected"),
    [(0.25, [3, 7, 11, 15, 19]), (1.0, list(range(20))), (1, list(range(20))), (0.0, [])],
)
def test_the_stated_share_is_sampled(
    make_manager: MakeManager, make_request: MakeRequest, rate: float, expected: list[int]
) -> None:
    """Rate 0.25: 3, 7, 11, …; 1.0: all; 0.0: none."""
    manager = make_manager(2, 4, residency_sample_rate=rate)
    assert sampled_allocations(manager, make_request, 20) == expected


@pytest.mark.rule("KV-STAT-7")
@pytest.mark.parametrize("rate", [0.29, 0.1, 1 / 3, 0.999])
def test_the_arithmetic_is_that_of_doubles(
    make_manager: MakeManager, make_request: MakeRequest, rate: float
) -> None:
    """Rate 0.29: number 99 is not sampled, number 100 is."""
    manager = make_manager(2, 4, residency_sample_rate=rate)
    sampled = sampled_allocations(manager, make_request, 120)
    if rate == 0.29:
        assert 100 * 0.29 == 28.999999999999996
        assert (99 in sampled, 100 in sampled) == (False, True)
    assert sampled == [n for n in range(120) if math.floor((n + 1) * rate) > math.floor(n * rate)]


@pytest.mark.rule("KV-STAT-7")
def test_every_block_of_a_call_is_counted(
    make_manager: MakeManager, make_request: MakeRequest, clock: Clock
) -> None:
    """A call that takes four blocks at rate 0.25 has the last of them sampled; a reset goes on."""
    manager = make_manager(5, 4, residency_sample_rate=0.25, clock=clock)
    for taken in ([1, 2, 3, 4], [4, 3, 2, 1]):
        request = make_request(manager, "r", range(13))
        manager.allocate_slots(request, 13, delay_cache_blocks=True)
        assert blocks_of(manager, request) == taken
        manager.evict_blocks(taken[:3])
        assert manager.take_residency_samples() == ()
        manager.evict_blocks(taken[3:])
        assert len(manager.take_residency_samples()) == 1
        manager.free(request)
        assert manager.reset_prefix_cache() is True
