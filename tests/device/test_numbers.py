"""Kernels beside plain torch on the chip itself: every pattern of bits, sizes of real models.

Without a GPU a few of the same comparisons are interpreted.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from kvfast.device import KVPools, Layout, PageOperations
from kvfast.device.base.backend import BACKENDS
from kvfast.device.pages import formats as _formats
from kvspec.config import KVCacheConfig, KVCacheGroup
from kvspec.specs import FullAttentionSpec
from tests.device.models import DEVICE
from tests.device.test_operations import without_nan

pytest.importorskip("triton", reason="Triton is not installed")

ON_GPU = DEVICE.startswith("cuda")
SIZES = [(8, 128), (1, 576), (5, 80), (40, 128)] if ON_GPU else [(3, 20)]
NUM = 700 if ON_GPU else 40
KINDS = [("float32", "NONE"), ("float16", "NONE"), ("bfloat16", "NONE"),
         ("float8_e4m3fn", "NONE"), ("float8_e5m2", "NONE"),
         ("int8", "INT8_PER_TOKEN_HEAD"), ("float8_e4m3fn", "FP8_PER_TOKEN_HEAD")]  # fmt: skip


def pools_of(stored: str, mode: str, layout: Layout, heads: int, size: int, num: int) -> KVPools:
    spec = FullAttentionSpec(16, heads, size, stored, mode)
    cache = KVCacheConfig(2 + -(-num // 16), (KVCacheGroup(("a",), spec),))
    pools = KVPools(cache, device=DEVICE, layout=layout)
    pools.pages[0].zero_()
    return pools


def patterns(num: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    width = torch.empty(0, dtype=dtype).element_size()
    found = torch.randint(0, 256, (num * width,), dtype=torch.uint8, generator=generator)
    return found.view(dtype).to(DEVICE)


def both(
    make: Callable[[], KVPools], tokens: torch.Tensor, slots: torch.Tensor, dtype: torch.dtype
) -> list[list[torch.Tensor]]:
    results = []
    for backend in BACKENDS:
        pools = make()
        operations = PageOperations(pools, backend=backend)
        parts = pools.layers["a"].parts
        has_own = dtype == parts["key"].dtype or "key_scale" in parts
        scale = 1.0 if has_own else 0.37
        half = 1.0 if has_own else 0.5  # a power of two
        operations.write("a", tokens, tokens, slots, key_scale=scale, value_scale=half)
        read = operations.gather("a", slots.flip(0), dtype=dtype, key_scale=scale)
        results.append([*parts.values(), *read])
    return results


def assert_same(results: list[list[torch.Tensor]]) -> None:
    for plain, kernels in zip(*results, strict=True):
        left, right = (
            _formats.bits(without_nan(one) if one.dtype in _formats.FLOATS else one)
            for one in (plain, kernels)
        )
        assert torch.equal(left, right)


@pytest.mark.rule("KV-DEV-3", "KV-DEV-4")
@pytest.mark.parametrize(("heads", "size"), SIZES)
@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize(("stored", "mode"), KINDS)
def test_whatever_the_bits_are_kernels_do_what_torch_does(
    stored: str, mode: str, layout: Layout, heads: int, size: int
) -> None:
    for seed, dtype in enumerate(_formats.FLOATS):
        # A part of a wider tensor, as keys are one of queries, keys and values.
        wide = patterns(NUM * (heads + 3) * size, dtype, seed).view(NUM, heads + 3, size)
        tokens = wide[:, 2 : 2 + heads]
        order = torch.randperm(NUM, generator=torch.Generator().manual_seed(seed))
        slots = (16 + order).to(DEVICE)
        slots[NUM // 2] = -1
        for some in (slice(None), slice(1, 2), slice(3, 19)) if ON_GPU else (slice(1, None),):
            pools = [pools_of(stored, mode, layout, heads, size, NUM) for _ in range(2)]
            pools[1].pages[0].copy_(pools[0].pages[0])
            kinds = slots[some].to(torch.int32 if seed else torch.int64)
            assert_same(both(iter(pools).__next__, tokens[some], kinds, dtype))


@pytest.mark.rule("KV-DEV-4")
def test_a_product_stands_for_a_division_only_where_it_is_the_same() -> None:
    from kvfast.device.pages.kernels import inverse_of

    assert [inverse_of(one) for one in (0.37, 3.0, 1.5, 2.0**127)] == [None] * 4
    assert [inverse_of(one) for one in (1, 0.5, 2.0**126)] == [1.0, 2.0, 2.0**-126]
    values = patterns(5000, torch.float32, 1)
    for power in range(-126, 127):
        divisor = torch.full((), 2.0**power, device=values.device)
        inverse = torch.full((), inverse_of(2.0**power), device=values.device)
        assert torch.equal(without_nan(values / divisor), without_nan(values * inverse)), power


@pytest.mark.rule("KV-DEV-4")
@pytest.mark.skipif(not ON_GPU, reason="needs a GPU: KVSPEC_TEST_DEVICE=cuda")
def test_the_chip_stores_what_the_host_does() -> None:
    bits = torch.arange(-(2**15), 2**15).to(torch.int16).view(-1, 1, 64)
    for given in (torch.float16, torch.bfloat16):
        tokens = bits.view(given)
        for stored in _formats.STORED:
            name = str(stored).removeprefix("torch.")
            group = KVCacheGroup(("a",), FullAttentionSpec(16, 1, 64, name))
            written = 1.0 if stored == given else 0.37
            gathered = 1.0 if stored == torch.float32 else 0.37
            found = []
            for device, backend in (("cpu", BACKENDS[0]), *((DEVICE, one) for one in BACKENDS)):
                pools = KVPools(KVCacheConfig(66, (group,)), device=device)
                operations = PageOperations(pools, backend=backend)
                here, slots = tokens.to(device), torch.arange(16, 16 + 1024)
                operations.write("a", here, here, slots, key_scale=written, value_scale=written)
                read = operations.gather(
                    "a", slots, dtype=torch.float32, key_scale=gathered, value_scale=gathered
                )
                found += [without_nan(one).cpu() for one in read]
            for one in found[1:]:
                assert torch.equal(found[0], one), (given, stored)
