"""What is asked of a GPU's memory, and of addresses in it, as far as it shows without one."""

from __future__ import annotations

import pytest
import torch

from kvfast.device import Backend, DeviceMemoryError, KVPools, Layout, PageOperations
from kvfast.device.base.memory import free_memory_bytes, sent
from kvfast.device.pages import pools
from kvspec.config import KVCacheConfig, KVCacheGroup
from kvspec.specs import FullAttentionSpec
from tests.device.models import DEVICE, cache, full


@pytest.mark.rule("KV-DEV-2")
def test_what_torch_keeps_for_later_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    device = torch.device("cuda:0")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1000, 9000))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 500)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 200)
    assert free_memory_bytes(device) == 1300


@pytest.mark.rule("KV-DEV-2")
def test_pinned_memory_is_counted_as_torch_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """In powers of two: 1,008 bytes take 1,024, for each of two layers."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(DeviceMemoryError) as caught:
        KVPools(cache(full()), pin_memory=True, free_bytes=2047)
    assert caught.value.needed_bytes == 2048
    sizes = {1: 1, 2: 2, 3: 4, 4096: 4096, 4097: 8192}
    assert {size: pools._pinned_bytes(size) for size in sizes} == sizes


@pytest.mark.rule("KV-DEV-3", "KV-DEV-5", "KV-DEV-6")
@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_blocks_beyond_4_gib_are_reached(layout: Layout, backend: Backend) -> None:
    """Bytes and elements are numbered by more than 31 bits. What is not touched takes no memory."""
    spec = FullAttentionSpec(16, 2, 1024, "bfloat16")  # 128 KiB
    last = 5 * 2**30 // (128 << 10)
    made = KVPools(
        KVCacheConfig(last + 1, (KVCacheGroup(("a",), spec),)),
        device=DEVICE, layout=layout, free_bytes=None if DEVICE != "cpu" else 2**40,
    )  # fmt: skip
    operations = PageOperations(made, backend=backend)
    keys = torch.arange(4096, device=DEVICE).remainder(251).bfloat16().view(2, 2, 1024)
    slots = [16 * last + 15, 16 * (last - 1)]
    operations.write("a", keys, -keys, slots)
    parts = made.layers["a"].parts
    assert torch.equal(parts["key"][last, 15], keys[0])
    read = operations.gather("a", torch.tensor(slots, device=DEVICE, dtype=torch.int32))
    assert torch.equal(read[0], keys)
    assert torch.equal(read[1], -keys)
    operations.copy_blocks([last, last - 1], [1, last - 2])
    assert torch.equal(parts["value"][1, 15], -keys[0])
    assert torch.equal(parts["value"][last - 2, 0], -keys[1])
    operations.zero_blocks([last])
    assert not made.pages[0][last].any()
    assert made.pages[0][last - 1].any()


def test_ids_that_are_sent_may_be_overwritten_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those in pinned memory, of which torch would send the very bytes, later."""
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *size, dtype, pin_memory: empty(*size, dtype=dtype))
    pinned = torch.tensor([4, 5])
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self)
    found = sent(pinned, torch.device("cpu"))
    pinned.fill_(7)
    assert found.tolist() == [4, 5]
