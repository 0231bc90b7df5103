"""Blocks are swapped to host memory and back unchanged, in the order that waits require."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvfast.device import Backend, KVPools, Swapper, Transfer
from kvfast.device.base.backend import BACKENDS
from kvfast.device.tier.offload import Offload
from kvfast.device.tier.streams import CudaStreams
from kvspec.config import KVCacheConfig
from kvspec.errors import InvalidArgumentError
from tests.device.models import DEVICE, LateStreams, cache, contents, filled, full, mamba

CONFIG = cache(full(), mamba())


def host_pools() -> KVPools:
    return KVPools(cache(full(), mamba(), num_blocks=4), pin_memory=DEVICE.startswith("cuda"))


@pytest.mark.rule("KV-DEV-8")
@given(st.permutations(range(1, 7)), st.permutations(range(1, 4)), st.integers(0, 3))
@settings(max_examples=8)
def test_what_was_swapped_out_comes_back_to_any_block(
    blocks: list[int], host_blocks: list[int], num: int
) -> None:
    pytest.importorskip("triton", reason="Triton is not installed")
    after = [there_and_back(blocks, host_blocks, num, backend) for backend in BACKENDS]
    assert after[0] == after[1]


def there_and_back(
    blocks: list[int], host_blocks: list[int], num: int, backend: Backend
) -> list[bytes]:
    """Swap out, overwrite, swap in to other blocks; return what the pools then hold."""
    pools, host = filled(CONFIG), host_pools()
    swapper = Swapper(pools, host, backend=backend)
    before = [pages.cpu().clone() for pages in pools.pages]
    swapper.swap_out(blocks[:num], host_blocks[:num]).synchronize()
    for pages, mine in zip(before, host.pages, strict=True):
        assert torch.equal(pages[blocks[:num]], mine[host_blocks[:num]])
    for pages in pools.pages:
        pages[blocks[:num]] = 7  # in other use by now
    transfer = swapper.swap_in(host_blocks[:num], blocks[3 : 3 + num])
    transfer.wait()
    transfer.synchronize()
    assert transfer.is_done
    for pages, mine in zip(before, pools.pages, strict=True):
        assert torch.equal(pages[blocks[:num]], mine.cpu()[blocks[3 : 3 + num]])
    return contents(pools)


@pytest.mark.parametrize("other", [cache(full()), cache(full(), full())])
def test_pools_of_other_layers_are_refused(other: KVCacheConfig) -> None:
    with pytest.raises(InvalidArgumentError, match="host_pools"):
        Swapper(filled(CONFIG), filled(other, device="cpu"))
    with pytest.raises(InvalidArgumentError, match="host_pools"):
        Swapper(filled(CONFIG), filled(CONFIG, layout="HND", device="cpu"))


BATCHES = ([3, 1], [2, 4, 6], [5])


def late_swapper() -> tuple[KVPools, KVPools, Swapper]:
    """Make pools in host memory on both sides: these streams are as late as a device's may be."""
    pools = filled(CONFIG, device="cpu")
    host = KVPools(cache(full(), mamba(), num_blocks=8))
    return pools, host, Swapper(pools, host, streams=LateStreams())


def overwrite(pools: KVPools, blocks: list[int]) -> None:
    for pages in pools.pages:
        pages[blocks] = 7


@pytest.mark.rule("KV-DEV-8")
def test_what_is_queued_after_the_wait_comes_after_the_copy() -> None:
    pools, _, swapper = late_swapper()
    before = [pages.clone() for pages in pools.pages]
    transfer = swapper.swap_out([1, 2], [3, 4])
    assert not transfer.is_done
    transfer.wait()
    assert transfer.is_done
    overwrite(pools, [1, 2])
    swapper.swap_in([4, 3], [5, 6]).wait()
    for old, now in zip(before, pools.pages, strict=True):
        assert torch.equal(old[[2, 1]], now[[5, 6]])


def test_without_the_wait_these_streams_show_it() -> None:
    pools, host, swapper = late_swapper()
    transfer = swapper.swap_out([1], [3])
    overwrite(pools, [1])
    transfer.synchronize()
    assert all((pages[3] == 7).all() for pages in host.pages)


def offloaded(num_spare: int) -> tuple[bool, int]:
    """Swap batches of blocks out, overwrite them at once, and swap them in.

    Return whether all is as it was, and how often spare blocks had to be waited for.
    """
    pools, _, swapper = late_swapper()
    before = [pages.clone() for pages in pools.pages]
    offload = Offload(swapper, num_spare)
    for blocks in BATCHES:
        offload.copy(blocks, blocks)
        overwrite(pools, blocks)
    streams: Any = swapper.streams
    num_waits = streams.num_waits
    moved = [block for blocks in BATCHES for block in blocks]
    swapper.swap_in(moved, moved).wait()
    pairs = zip(before, pools.pages, strict=True)
    return all(torch.equal(old[1:], now[1:]) for old, now in pairs), num_waits


@pytest.mark.rule("KV-DEV-8")
@pytest.mark.parametrize(
    ("num_spare", "num_waits"),
    [
        (6, 0),  # room for all: nothing waits
        (5, 1),  # the last one for the first batch
        (3, 2),
        (2, 2),  # the second batch in parts
        (1, 5),  # one by one
    ],
)
def test_blocks_go_out_beside_what_overwrites_them(num_spare: int, num_waits: int) -> None:
    assert offloaded(num_spare) == (True, num_waits)


def test_the_host_can_wait_for_all() -> None:
    pools, host, swapper = late_swapper()
    offload = Offload(swapper, 2)
    offload.synchronize()
    offload.copy([1, 2, 3], [1, 2, 3])
    offload.synchronize()
    pairs = zip(pools.pages, host.pages, strict=True)
    assert all(torch.equal(mine[1:4], theirs[1:4]) for mine, theirs in pairs)


class Recorder:
    """A stub for the streams of `torch.cuda` that records their calls."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.current = "cuda:0"  # not the pools' device

    def current_stream(self, device: object = None) -> FakeStream:
        return FakeStream(self, f"computing {device or self.current}")

    @contextmanager
    def stream(self, chosen: FakeStream) -> Iterator[None]:
        self.told.append(f"on {chosen.name}")
        yield
        self.told.append("back")


class FakeStream:
    def __init__(self, recorder: Recorder, name: str) -> None:
        self.recorder, self.name = recorder, name

    def wait_stream(self, other: FakeStream) -> None:
        self.recorder.told.append(f"{self.name} waits for {other.name}")

    def wait_event(self, event: str) -> None:
        self.recorder.told.append(f"{self.name} waits for {event}")

    def record_event(self) -> str:
        self.recorder.told.append("event")
        return "event"


class Used:
    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder

    def record_stream(self, stream: FakeStream) -> None:
        self.recorder.told.append(f"kept for {stream.name}")


def asked() -> list[str]:
    """Return the calls that a swap on cuda:1 and its wait make while cuda:0 is current."""
    recorder = Recorder()
    with (
        patch.object(torch.cuda, "Stream", lambda device: FakeStream(recorder, f"side {device}")),
        patch.object(torch.cuda, "current_stream", recorder.current_stream),
        patch.object(torch.cuda, "stream", recorder.stream),
    ):
        streams = CudaStreams(torch.device("cuda:1"))
        used: Any = Used(recorder)
        event = streams.start(lambda: recorder.told.append("work"), [used])
        Transfer(event, streams).wait()
    return recorder.told


ORDER = [
    "side cuda:1 waits for computing cuda:1",
    "on side cuda:1",
    "work",
    "event",
    "back",
    "kept for side cuda:1",
    "computing cuda:1 waits for event",
]


@pytest.mark.rule("KV-DEV-8")
def test_a_swap_is_ordered_on_the_pools_device_whichever_is_current() -> None:
    assert asked() == ORDER
