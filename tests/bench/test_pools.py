"""The memory of a pool: measured in a separate process, which also passes on its errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kvcheck.tools.bench.calls import PoolCostError
from kvcheck.tools.bench.measure import Subject
from kvcheck.tools.bench.pools import can_measure, pool_costs
from kvref import ReferenceImplementation
from kvspec.config import ManagerConfig
from kvspec.interface import KVCacheManager

pytestmark = pytest.mark.skipif(not can_measure(), reason="this system tells no process's memory")

SIZES = (2**8, 2**12)


class Hoarder(ReferenceImplementation):
    def create(self, config: ManagerConfig, **options: Any) -> KVCacheManager:
        manager = super().create(config, **options)
        blocks = config.kv_cache.num_blocks
        hoard = [[object() for _ in range(15)] for _ in range(blocks)], bytearray(4096 * blocks)
        object.__setattr__(manager, "hoard", hoard)
        return manager


class Refuser(ReferenceImplementation):
    def create(self, config: ManagerConfig, **options: Any) -> KVCacheManager:
        raise ValueError("too many blocks")


class Vanisher(ReferenceImplementation):
    def create(self, config: ManagerConfig, **options: Any) -> KVCacheManager:
        """End the process as a crash in compiled code would."""
        import os

        os._exit(3)


def test_objects_and_bytes_of_a_pool_are_seen_per_block() -> None:
    subjects = [Subject("plain", ReferenceImplementation()), Subject("hoarder", Hoarder())]
    found = {
        (each.name, each.num_blocks): each for each in pool_costs(subjects, SIZES, max_fill_s=60)
    }
    assert set(found) == {(name, size) for name in ("plain", "hoarder") for size in SIZES}
    size = SIZES[-1]
    plain, hoarder = found["plain", size], found["hoarder", size]
    assert 15 <= (hoarder.objects - plain.objects) / size <= 17.5
    assert (hoarder.bytes_ - plain.bytes_) / size >= 4096
    # The reference has an object per block and, once it is cached, its key.
    assert plain.objects >= size
    assert plain.full_objects is not None
    assert plain.full_objects >= 2 * size
    assert plain.create_s > 0
    assert plain.fill_s > 0


def test_what_the_process_had_free_hides_nothing_of_a_pool() -> None:
    """Leave holes of all sizes, also those that the hoard's objects would fill."""
    rubbish: list[object] = [
        bytes(size) for size in (15, 100, 400, 700, 3000) for _ in range(50_000)
    ]
    rubbish += [[object() for _ in range(15)] for _ in range(50_000)]
    rubbish = rubbish[::100]
    subjects = [Subject("plain", ReferenceImplementation()), Subject("hoarder", Hoarder())]
    size = SIZES[-1]
    plain, hoarder = pool_costs(subjects, [size], max_fill_s=0)
    assert len(rubbish) == 3_000
    # A list of fifteen takes 176 bytes, with what the collector keeps of it; each object 16.
    assert (hoarder.bytes_ - plain.bytes_) / size >= 4096 + 176 + 15 * 16


def test_a_pool_that_takes_too_long_to_fill_is_only_made() -> None:
    first, second = pool_costs([Subject("toy", ReferenceImplementation())], SIZES, max_fill_s=0)
    assert first.full_bytes is not None
    assert (second.full_bytes, second.full_objects) == (None, None)
    assert second.objects >= second.num_blocks


@pytest.mark.parametrize(
    ("make", "says"), [(Refuser, "ValueError: too many blocks"), (Vanisher, "the process ended")]
)
def test_what_goes_wrong_in_the_other_process_is_said_here(
    make: Callable[[], ReferenceImplementation], says: str
) -> None:
    with pytest.raises(PoolCostError, match=says) as caught:
        pool_costs([Subject("toy", make())], SIZES, max_fill_s=60)
    assert (caught.value.name, caught.value.num_blocks) == ("toy", SIZES[0])
