"""Blocks go to host memory and come back as they were."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvfast.device import Backend, KVPools, Swapper
from kvfast.device.base.backend import BACKENDS
from kvspec.config import KVCacheConfig
from kvspec.errors import InvalidArgumentError
from tests.device.models import DEVICE, cache, contents, filled, full, mamba

CONFIG = cache(full(), mamba())
HOST = cache(full(), mamba(), num_blocks=4)


def host_pools() -> KVPools:
    return KVPools(HOST, pin_memory=DEVICE.startswith("cuda"))


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
    """Swap out, overwrite, swap in to other blocks; answers what the pools then hold."""
    pools, host = filled(CONFIG), host_pools()
    swapper = Swapper(pools, host, backend=backend)
    before = [pages.cpu().clone() for pages in pools.pages]
    swapper.swap_out(blocks[:num], host_blocks[:num]).synchronize()
    for pages, mine in zip(before, host.pages, strict=True):
        assert torch.equal(pages[blocks[:num]], mine[host_blocks[:num]])
    for pages in pools.pages:
        pages[blocks[:num]] = 7  # somebody else's by now
    transfer = swapper.swap_in(host_blocks[:num], blocks[3 : 3 + num])
    transfer.wait()
    transfer.synchronize()
    assert transfer.is_done
    for pages, mine in zip(before, pools.pages, strict=True):
        assert torch.equal(pages[blocks[:num]], mine.cpu()[blocks[3 : 3 + num]])
    return contents(pools)


@pytest.mark.rule("KV-DEV-7")
@pytest.mark.parametrize(
    ("blocks", "host_blocks", "field"),
    [
        ([0], [1], "blocks[0]"),
        ([1], [4], "host_blocks[0]"),
        ([1], [0], "host_blocks[0]"),
        ([1, 2], [1], "len(host_blocks)"),
        ([1, 2], [3, 3], "host_blocks[1]"),
    ],
)
def test_an_illegal_swap_raises_and_changes_nothing(
    blocks: list[int], host_blocks: list[int], field: str
) -> None:
    pools, host = filled(CONFIG), host_pools()
    before = contents(pools), contents(host)
    with pytest.raises(InvalidArgumentError) as caught:
        Swapper(pools, host).swap_out(blocks, host_blocks)
    assert caught.value.field == field
    assert (contents(pools), contents(host)) == before


@pytest.mark.parametrize("other", [cache(full()), cache(full(), full())])
def test_pools_of_other_layers_are_refused(other: KVCacheConfig) -> None:
    with pytest.raises(InvalidArgumentError, match="host_pools"):
        Swapper(filled(CONFIG), filled(other, device="cpu"))
    with pytest.raises(InvalidArgumentError, match="host_pools"):
        Swapper(filled(CONFIG), filled(CONFIG, layout="HND", device="cpu"))
