"""What comes after what in swaps: with copies as late as the order allows, and by what is asked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from kvfast.device import Ids, KVPools, Swapper, Transfer
from kvfast.device.tier.offload import Offload
from kvfast.device.tier.streams import CudaStreams
from tests.device.late import LateStreams
from tests.device.models import cache, filled, full, mamba

CONFIG = cache(full(), mamba())
BATCHES = ([3, 1], [2, 4, 6], [5])


def late_swapper() -> tuple[KVPools, KVPools, Swapper]:
    """Pools in host memory on both sides: these streams are as late as a device's may be."""
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


def offloaded(num_spare: int, *, waits: bool = True) -> tuple[bool, int]:
    """Batches of blocks go out, are overwritten at once, and come back.

    Answers whether all is as it was, and how often spare blocks had to be waited for. Without
    `waits` they are used again at once.
    """
    pools, _, swapper = late_swapper()
    before = [pages.clone() for pages in pools.pages]
    offload = Offload(swapper, num_spare)
    if not waits:
        swap_out = offload._out.swap_out

        def unawaited(blocks: Ids, host_blocks: Ids) -> Transfer:
            swap_out(blocks, host_blocks)
            return Transfer(None)

        offload._out.swap_out = unawaited  # type: ignore[method-assign] # broken on purpose
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


def test_spare_blocks_that_are_used_too_early_are_found() -> None:
    assert offloaded(6, waits=False)[0]
    for num_spare in (5, 3, 2, 1):
        assert not offloaded(num_spare, waits=False)[0]


def test_the_host_can_wait_for_all() -> None:
    pools, host, swapper = late_swapper()
    offload = Offload(swapper, 2)
    offload.synchronize()
    offload.copy([1, 2, 3], [1, 2, 3])
    offload.synchronize()
    pairs = zip(pools.pages, host.pages, strict=True)
    assert all(torch.equal(mine[1:4], theirs[1:4]) for mine, theirs in pairs)


class Recorder:
    """Stands for the streams of `torch.cuda`, and writes down what they are asked for."""

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


def asked(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a swap and its wait ask of the streams of cuda:1, while cuda:0 is current."""
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: FakeStream(recorder, f"side {device}"))
    monkeypatch.setattr(torch.cuda, "current_stream", recorder.current_stream)
    monkeypatch.setattr(torch.cuda, "stream", recorder.stream)
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
def test_a_swap_is_ordered_on_the_pools_device_whichever_is_current(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert asked(Recorder(), monkeypatch) == ORDER


def waits_on_the_current_device(self: CudaStreams, event: Any) -> None:
    torch.cuda.current_stream().wait_event(event)


def does_not_wait(self: CudaStreams, event: Any) -> None:
    """Nothing."""


def starts_at_once(self: CudaStreams, work: Any, used: Any) -> Any:
    with torch.cuda.stream(self._copying):
        work()
        event = self._copying.record_event()
    for tensor in used:
        tensor.record_stream(self._copying)
    return event


def records_too_early(self: CudaStreams, work: Any, used: Any) -> Any:
    self._copying.wait_stream(torch.cuda.current_stream(self._device))
    with torch.cuda.stream(self._copying):
        event = self._copying.record_event()
        work()
    for tensor in used:
        tensor.record_stream(self._copying)
    return event


@pytest.mark.parametrize(
    ("name", "mistake"),
    [
        ("wait", waits_on_the_current_device),
        ("wait", does_not_wait),
        ("start", starts_at_once),
        ("start", records_too_early),
    ],
)
def test_streams_with_one_mistake_are_asked_otherwise(
    name: str, mistake: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CudaStreams, name, mistake)
    assert asked(Recorder(), monkeypatch) != ORDER
