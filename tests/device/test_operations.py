"""Writing, reading, copying, zeroing: the kernels equal the reference, the reference the rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvfast._implementation import FastImplementation
from kvfast.device import PADDING_SLOT, Backend, KVPools, Layout, PageOperations
from kvfast.device.base.backend import BACKENDS
from kvfast.device.pages import formats as _formats
from kvspec.config import KVCacheConfig, KVCacheGroup, ManagerConfig
from kvspec.inside import CopyingManager
from kvspec.policy import Policy
from kvspec.request import RequestInput, RequestStatus
from kvspec.specs import FullAttentionSpec, LayerSpec
from tests.device.models import DEVICE, cache, contents, filled, full, mamba, mla, window

STORED = ["float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"]


def numbers(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Return values of all sizes, with zeros, infinities and subnormal numbers among them."""
    generator = torch.Generator().manual_seed(seed)
    sizes = 10.0 ** torch.randint(-9, 6, shape, generator=generator)
    values = torch.randn(shape, generator=generator) * sizes
    odd = torch.tensor([0.0, -0.0, float("inf"), -float("inf"), 2.0**-10, 464.0])
    chosen = torch.randint(0, 40, shape, generator=generator)
    for index, one in enumerate(odd):
        values = torch.where(chosen == index, one, values)
    return values.to(dtype).to(DEVICE)


@pytest.mark.rule("KV-DEV-3")
def test_a_token_is_written_to_its_slot_and_read_from_it(backend: Backend) -> None:
    pools = filled(cache(full()))
    operations = PageOperations(pools, backend=backend)
    keys, values = numbers((2, 2, 6), torch.float16, 1), numbers((2, 2, 3), torch.float16, 2)
    before = {name: part.clone() for name, part in pools.layers["0.1"].parts.items()}
    operations.write("0.1", keys, values, [6, 25])
    parts = pools.layers["0.1"].parts
    assert torch.equal(parts["key"][1, 2], keys[0])
    assert torch.equal(parts["value"][6, 1], values[1])
    for name, part in parts.items():
        kept = torch.ones(part.shape[:2], dtype=torch.bool, device=DEVICE)
        kept[1, 2] = kept[6, 1] = False
        same = _formats.bits(part)[kept] == _formats.bits(before[name])[kept]
        assert bool(same.all())
    read = operations.gather("0.1", torch.tensor([25, PADDING_SLOT, 6]))
    assert torch.equal(read[0], torch.stack([keys[1], torch.zeros_like(keys[0]), keys[0]]))
    assert torch.equal(read[1][::2], values.flip(0))


@pytest.mark.rule("KV-DEV-4")
@pytest.mark.parametrize("stored", STORED[1:])  # float32 is what is given
def test_what_is_stored_is_the_nearest_number_of_the_format(stored: str) -> None:
    dtype = getattr(torch, stored)
    width = 8 * torch.empty(0, dtype=dtype).element_size()
    # All finite numbers of the format, and for some values the nearest of them by search.
    every = torch.arange(-(2 ** (width - 1)), 2 ** (width - 1)).to(
        _formats.BITS_OF_BYTES[width // 8]
    )
    known = every.view(dtype).double()  # on the host: this is about numbers
    known = known[known.isfinite()].unique()
    values = numbers((300,), torch.float32, 5).cpu()
    values = values[values.isfinite()].clamp(float(known[0]), float(known[-1]))
    nearest = (values.double()[:, None] - known[None, :]).abs().min(dim=1).values
    got = _formats.encoded(values, dtype).double()
    assert torch.equal((values.double() - got).abs(), nearest)


@pytest.mark.rule("KV-DEV-4")
@pytest.mark.parametrize("mode", ["INT8_PER_TOKEN_HEAD", "FP8_PER_TOKEN_HEAD"])
def test_what_is_not_a_number_does_not_touch_the_scale_of_others(
    mode: str, backend: Backend
) -> None:
    stored, largest = ("int8", 127.0) if mode.startswith("INT8") else ("float8_e4m3fn", 448.0)
    pools = filled(cache(full(stored, kv_quant_mode=mode)))
    nan = float("nan")
    keys = torch.tensor([[[nan, -largest, 1, 2, 4, 8], [nan] * 6]], device=DEVICE)
    operations = PageOperations(pools, backend=backend)
    operations.write("0.0", keys, torch.zeros(1, 2, 3, device=DEVICE), [5])
    assert pools.layers["0.0"].parts["key_scale"][1, 1].tolist() == [1.0, 1.0]
    read = operations.gather("0.0", [5], dtype=torch.float32)[0][0]
    assert read[0, 1:].tolist() == [-largest, 1, 2, 4, 8]
    lost = torch.stack([read[0, 0], *read[1]])
    assert bool((lost == 0).all() if stored == "int8" else lost.isnan().all())


@pytest.mark.rule("KV-DEV-5")
@given(st.lists(st.integers(0, 6), min_size=1, max_size=3, unique=True), st.data())
@settings(max_examples=15)
def test_pages_are_copied_and_nothing_else_changes(sources: list[int], data: st.DataObject) -> None:
    left = sorted(set(range(1, 7)) - set(sources))
    destinations = data.draw(st.permutations(left))[: len(sources)]
    sources = sources[: len(destinations)]
    group = data.draw(st.sampled_from([None, 0, 1]))
    config = cache(full(), mamba())
    before = filled(config)
    results = []
    for backend in backends():
        pools = filled(config)
        PageOperations(pools, backend=backend).copy_blocks(sources, destinations, group=group)
        results.append(contents(pools))
    layers = [one for one in before.layers.values() if group in (None, one.group)]
    rows = before.pages if group is None else [one.pages for one in layers]
    for row in rows:
        for source, destination in zip(sources, destinations, strict=True):
            row[destination] = row[source].clone()
    assert results == [contents(before)] * len(results)


def without_nan(values: torch.Tensor) -> torch.Tensor:
    return torch.where(values.isnan(), torch.full_like(values, 12345.0), values)


def backends() -> list[Backend]:
    pytest.importorskip("triton", reason="Triton is not installed")
    return ["torch", "triton"]


@pytest.mark.rule("KV-DEV-6")
@pytest.mark.parametrize("ids", [[], [3], [1, 6, 1], [-1, 4, -1]])
@pytest.mark.parametrize(
    "spec", [full(), mla("float8_e4m3fn"), mamba(), window()], ids=lambda spec: type(spec).__name__
)
def test_zeroed_blocks_are_zero_and_no_others(
    backend: Backend, spec: LayerSpec, ids: list[int]
) -> None:
    pools = filled(cache(spec))
    expected = filled(cache(spec))
    PageOperations(pools, backend=backend).zero_blocks(ids)
    for pages in expected.pages:
        pages[[block for block in ids if block != -1]] = 0
    assert contents(pools) == contents(expected)


@pytest.mark.rule("KV-DEV-5")
@pytest.mark.parametrize("mode", ["NONE", "FP8_PER_TOKEN_HEAD"])
def test_slots_are_copied_with_their_scales(backend: Backend, mode: str) -> None:
    pools = filled(cache(full("float8_e4m3fn", kv_quant_mode=mode)))
    before = {name: part.clone() for name, part in pools.layers["0.0"].parts.items()}
    operations = PageOperations(pools, backend=backend)
    operations.copy_slots(0, [8, 9], [20, 21])  # two slots of block 2 to block 5
    for name, part in pools.layers["0.0"].parts.items():
        words, old = _formats.bits(part), _formats.bits(before[name])
        assert torch.equal(words[5, :2], old[2, :2]), name
        assert torch.equal(words[5, 2:], old[5, 2:]), name
        assert torch.equal(words[:5], old[:5]), name


@pytest.mark.rule("KV-DEV-3", "KV-DEV-4")
def test_latents_go_through_the_same_operations(backend: Backend) -> None:
    pools = filled(cache(mla("float8_e5m2")))
    operations = PageOperations(pools, backend=backend)
    latents = torch.tensor([[1.0, -2.5, 0, 3, 4, 5, 6, 7, 57344]], device=DEVICE)[:, None, :]
    operations.write_latent("0.0", latents, [9], scale=0.5)
    read = operations.gather_latent("0.0", [9], dtype=torch.float32, scale=0.5)
    assert read.flatten().tolist() == [1.0, -2.5, 0, 3, 4, 5, 6, 7, 28672]  # 114,688 is cut


@pytest.mark.rule("KV-DEV-7")
def test_slots_on_the_device_that_are_out_of_range_are_skipped() -> None:
    pytest.importorskip("triton", reason="Triton is not installed")
    from kvfast.device.pages import kernels as _pages_triton
    from kvfast.device.pages import plain as _pages_torch

    slots = torch.tensor([-5, 0, 3, 28, 2**40, 9], device=DEVICE)
    tokens = numbers((6, 2, 6), torch.float32, 3)
    after = []
    for module in (_pages_torch, _pages_triton):
        pools = filled(cache(full()))
        part = pools.layers["0.0"].parts["key"]
        module.store_tokens(part, None, tokens, slots, 1.0)
        after.append(contents(pools))
        assert not pools.pages[0][0].any()
        read = module.load_tokens(part, None, slots, torch.float32, 1.0)
        assert not read[:5].any()
        assert torch.equal(read[5], tokens[5].half().float())
    assert after[0] == after[1]


@pytest.mark.rule("KV-INSIDE-15", "KV-INSIDE-16", "KV-DEV-5")
def test_the_copies_of_a_step_run_at_once_and_bring_what_a_hit_reads(backend: Backend) -> None:
    kv_cache = cache(full(), replace(mamba(), mamba_cache_mode="align"), num_blocks=20)
    implementation = FastImplementation()
    config = ManagerConfig(
        kv_cache,
        max_model_len_tokens=20,
        hash_block_size_tokens=2,
        policy=Policy(hits_inside_blocks=True),
    )
    manager = cast(CopyingManager, implementation.create(config))
    pools = filled(kv_cache)
    operations = PageOperations(pools, backend=backend)
    first, second = (
        implementation.make_request(manager, RequestInput(name, list(range(1, 8)))) for name in "ab"
    )
    manager.allocate_slots(first, 6)
    first.num_computed_tokens, first.status = 6, RequestStatus.RUNNING
    manager.new_step_starts()
    manager.allocate_slots(first, 1)
    copies = [manager.take_block_copies()]  # its state is kept for others
    manager.new_step_starts()
    hit = manager.get_computed_blocks(second)
    assert hit.hit_length_tokens == 6
    assert manager.allocate_slots(
        second, 1, num_new_computed_tokens=6, new_computed_blocks=hit.blocks
    )
    copies.append(manager.take_block_copies())
    assert [len(step.pairs) for step in copies] == [1, 2]
    for step in copies:
        before = [pages.clone() for pages in pools.pages]
        operations.copy_blocks(*zip(*step.pairs, strict=True))
        for pages, old in zip(pools.pages, before, strict=True):
            for source, destination in step.pairs:
                old[destination] = old[source]
            assert torch.equal(pages, old)
        manager.free_blocks(step.retained)
    assert manager.get_blocks(second).groups[1][-1] == copies[1].pairs[1][1]


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
    for kind in (torch.float16, torch.bfloat16):
        tokens = bits.view(kind)
        for stored in _formats.STORED:
            name = str(stored).removeprefix("torch.")
            group = KVCacheGroup(("a",), FullAttentionSpec(16, 1, 64, name))
            written = 1.0 if stored == kind else 0.37
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
                assert torch.equal(found[0], one), (kind, stored)
