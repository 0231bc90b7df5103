"""What only a GPU shows: nothing waits for it, and steps can be captured in a graph."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from kvfast.device._offload import Offload
from kvfast.device.operations import PageOperations
from kvfast.device.pools import KVPools
from kvfast.device.swap import Swapper
from tests.device.models import DEVICE, cache, contents, filled, full

pytestmark = pytest.mark.skipif(
    not DEVICE.startswith("cuda"), reason="needs a GPU: KVSPEC_TEST_DEVICE=cuda"
)

CONFIG = cache(full())


@pytest.fixture
def no_waiting() -> Iterator[None]:
    """Whatever makes the host wait for the device raises."""
    torch.cuda.set_sync_debug_mode("error")
    yield
    torch.cuda.set_sync_debug_mode("default")


def tokens(num: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.ones(num, 2, 6, device=DEVICE), torch.ones(num, 2, 3, device=DEVICE)


@pytest.mark.usefixtures("no_waiting")
def test_no_operation_waits_for_the_device() -> None:
    pools = KVPools(CONFIG, device=DEVICE)
    host = KVPools(CONFIG, pin_memory=True)
    operations = PageOperations(pools)
    keys, values = tokens(2)
    for _ in range(2):  # the first time compiles and builds tables of addresses
        slots = torch.arange(5, 7, device=DEVICE)
        operations.write("0.0", keys, values, slots)
        operations.write("0.0", keys, values, [9, -1])
        operations.gather("0.0", slots)
        operations.copy_blocks([1], [2])
        operations.copy_slots(0, [5], [9])
        operations.zero_blocks([3])
        swapper = Swapper(pools, host)
        swapper.swap_out([1, 2], [4, 5]).wait()
        swapper.swap_in([4, 5], [2, 1]).wait()


def test_writes_and_reads_can_be_captured_in_a_graph() -> None:
    pools = filled(CONFIG)
    operations = PageOperations(pools)
    keys, values = tokens(3)
    slots = torch.tensor([5, 9, -1], device=DEVICE)
    operations.write("0.0", keys, values, slots)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        operations.write("0.0", keys, values, slots)
        read = operations.gather("0.0", slots)
    keys.fill_(3.0)
    slots.copy_(torch.tensor([13, -1, 17], device=DEVICE))
    graph.replay()
    expected = filled(CONFIG)
    other = PageOperations(expected, backend="torch")
    other.write("0.0", *tokens(3), torch.tensor([5, 9, -1], device=DEVICE))
    other.write("0.0", keys, values, slots)
    assert contents(pools) == contents(expected)
    assert read[0][:, 0, 0].tolist() == [3.0, 0.0, 3.0]


def test_blocks_that_go_out_over_spare_blocks_come_back() -> None:
    pools, host = filled(CONFIG), KVPools(CONFIG, pin_memory=True)
    before, blocks = contents(pools), [3, 1, 6, 2, 5]
    swapper = Swapper(pools, host)
    offload = Offload(swapper, 2)
    offload.copy(blocks, blocks)
    for pages in pools.pages:
        pages[blocks] = 7  # at once: nothing was awaited
    swapper.swap_in(blocks, blocks).wait()
    assert contents(pools) == before
    offload.synchronize()
