"""Too little memory is an error before anything runs; and ids may lie in memory as they like."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import kvfast
from kvfast.device import (
    Backend,
    DeviceMemoryError,
    DeviceTables,
    HostTier,
    KVPools,
    PageOperations,
)
from kvfast.device.pages import pools
from kvfast.device.tables import state as _tables_state
from tests.device.models import DEVICE, cache, contents, filled, full
from tests.device.refusals import World
from tests.device.tables import FULL, config_of, rows_of


@pytest.mark.rule("KV-DEV-2")
def test_what_torch_refuses_is_an_error_of_memory_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody knows what is free; an exbibyte is more than any machine has."""
    monkeypatch.setattr(pools, "free_memory_bytes", lambda device: None)
    with pytest.raises(DeviceMemoryError) as caught:
        KVPools(cache(full(), num_blocks=2**60 // 288))
    assert caught.value.needed_bytes > 2**59


@pytest.mark.rule("KV-DEV-2")
def test_tables_without_room_are_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def free(device: torch.device) -> int:
        asked.append(device)
        return 1000

    monkeypatch.setattr(_tables_state, "free_memory_bytes", free)
    with pytest.raises(DeviceMemoryError) as caught:
        DeviceTables(config_of(FULL), max_requests=2, max_tokens=100, max_entries=5)
    # Slots and positions of 8 bytes, places of 4, for 100 tokens; and little for two requests.
    assert 2000 < caught.value.needed_bytes < 2500
    assert str(caught.value.needed_bytes) in str(caught.value)
    assert (caught.value.free_bytes, asked) == (1000, [torch.device("cpu")])
    DeviceTables(config_of(FULL), max_requests=2, max_tokens=16, max_entries=5)


@pytest.mark.rule("KV-DEV-2")
def test_without_room_for_the_host_there_is_no_tier(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World("torch")
    before = world.bits()
    config = replace(config_of(FULL), enable_caching=True)
    implementation = kvfast.implementation()
    batched = implementation.batched(implementation.create(config))
    memory = pools.KVPools(config.kv_cache, device=DEVICE)
    monkeypatch.setattr(pools, "free_memory_bytes", lambda device: 10_000)
    with pytest.raises(DeviceMemoryError) as caught:
        HostTier(implementation, batched, memory, num_host_blocks=1000)
    assert (caught.value.free_bytes, caught.value.device) == (10_000, "cpu")
    # If it is pinned, in powers of two.
    assert caught.value.needed_bytes >= 1000 * memory.size_bytes // memory.num_blocks
    assert world.bits() == before


@pytest.mark.rule("KV-DEV-3", "KV-DEV-5", "KV-DEV-6")
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_every_second_number_of_a_tensor_is_a_list_of_ids(
    dtype: torch.dtype, backend: Backend
) -> None:
    def spread(*numbers: int) -> torch.Tensor:
        wide = torch.tensor([[one, 11] for one in numbers], dtype=dtype, device=DEVICE)
        return wide[:, 0]

    results = []
    for ids in (spread, lambda *numbers: list(numbers)):
        memory = filled(cache(full()))
        operations = PageOperations(memory, backend=backend)
        tokens = torch.ones((2, 2, 6), device=DEVICE), torch.ones((2, 2, 3), device=DEVICE)
        operations.write("0.0", *tokens, ids(5, 9))
        operations.copy_slots(0, ids(5, 6), ids(12, 14))
        operations.copy_blocks(ids(1, 3), ids(4, 5))
        operations.zero_blocks(ids(2, 6))
        read = operations.gather("0.0", ids(9, 5, 17))
        results.append((contents(memory), [one.tolist() for one in read]))
    assert results[0] == results[1]


def test_rows_may_be_columns_of_a_wider_array(backend: Backend) -> None:
    wide = torch.cat([rows_of((1, 0, 0, 3), (0, 0, 1, 2))] * 2, dim=1)
    made = []
    for rows in (wide[:, :4], wide[:, :4].contiguous()):
        world = World(backend)
        world.tables.update([0, 1], [5, 1], rows)
        made.append(world.bits())
    assert made[0] == made[1]
