"""Pools: every page where the plan puts it, every view where the page has it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kvfast.device import DeviceMemoryError, KVPools, Layout
from kvfast.device.base.layout import LAYOUTS, page_parts, page_size_bytes
from kvfast.device.base.memory import free_memory_bytes
from kvref.planning.planner import ReferencePlanner
from kvspec.config import KVCacheConfig, KVCacheGroup, KVCacheTensor
from kvspec.errors import ConfigError
from kvspec.planning import PlanningConfig
from kvspec.specs import (
    DTYPE_BYTES,
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    HiddenStateCacheSpec,
    LayerSpec,
    MLAAttentionSpec,
    SinkFullAttentionSpec,
    SlidingWindowMLASpec,
    TQFullAttentionSpec,
    UniformTypeKVCacheSpecs,
)
from tests.device.models import cache, full, mamba, mla, window

PAGE = 4 * 2 * 9 * 2  # bytes of full() and of window()
PLANNER = ReferencePlanner()
PLANNING = PlanningConfig(max_model_len_tokens=64, max_num_batched_tokens=64)

SPECS: list[LayerSpec] = [
    full(),
    full("float8_e4m3fn"),
    full("int8", kv_quant_mode="INT8_PER_TOKEN_HEAD"),
    full("float8_e4m3fn", kv_quant_mode="FP8_PER_TOKEN_HEAD"),
    full("uint8", kv_quant_mode="FP8_PER_TENSOR"),
    replace(full("uint8", kv_quant_mode="NVFP4"), head_size=64, head_size_v=32),
    replace(full(), page_size_padded=1024),
    SinkFullAttentionSpec(4, 2, 6, "float32", sink_len=4),
    TQFullAttentionSpec(4, 2, 6, "uint8", tq_slot_size=5),
    window(),
    ChunkedLocalAttentionSpec(4, 2, 6, "bfloat16", attention_chunk_size=8),
    CrossAttentionSpec(4, 2, 6, "float64"),
    mla(),
    MLAAttentionSpec(4, 1, 9, "uint8", cache_dtype_str="fp8_ds_mla"),
    MLAAttentionSpec(
        8, 1, 9, "uint8", cache_dtype_str="fp8_ds_mla", compress_ratio=4, alignment=576,
        model_version="deepseek_v4",
    ),
    SlidingWindowMLASpec(4, 1, 9, "bfloat16", sliding_window=6),
    HiddenStateCacheSpec(4, 1, 9, "float16"),
    mamba(),
    replace(mamba(), page_size_padded=None),
]  # fmt: skip


@pytest.mark.rule("KV-PLAN-1", "KV-DEV-1")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: type(spec).__name__)
def test_a_page_has_the_bytes_that_planning_counts_and_no_two_elements_share_one(
    spec: LayerSpec, layout: Layout
) -> None:
    planned = PLANNER.spec_properties(spec, PLANNING)
    assert page_size_bytes(spec) == planned.page_size_bytes
    taken = set[int]()
    for part in page_parts(spec, layout):
        item = DTYPE_BYTES[part.dtype]
        places = torch.zeros(part.shape, dtype=torch.int64)
        for axis, stride in enumerate(part.strides):
            shape = [1] * len(part.shape)
            shape[axis] = -1
            places += torch.arange(part.shape[axis]).reshape(shape) * stride
        starts = (places.flatten() * item + part.offset_bytes).tolist()
        bytes_of_part = {start + byte for start in starts for byte in range(item)}
        assert len(bytes_of_part) == part.size_bytes
        assert not bytes_of_part & taken
        taken |= bytes_of_part
    assert not taken or max(taken) < page_size_bytes(spec)


def a_page_of_keys_and_values_is_laid_out() -> None:
    test_a_page_has_the_bytes_that_planning_counts_and_no_two_elements_share_one(full(), "HND")


@pytest.mark.rule("KV-DEV-1", "KV-PLAN-13", "KV-PLAN-14")
@pytest.mark.parametrize("packed", [False, True])
def test_pools_are_what_a_planner_planned(packed: bool) -> None:
    layers = tuple((f"{kind}.{i}", spec) for i in range(2) for kind, spec in
                   (("full", full()), ("window", window())))  # fmt: skip
    config = replace(PLANNING, packed_layout=packed)
    plan = PLANNER.plan((layers,), config, (10_000,))
    pools = KVPools(plan.configs[0])
    assert pools.size_bytes == 10_000 // (2 * PAGE) * 2 * PAGE
    assert len(pools.pages) == (1 if packed else 2)
    # Block by block, each pair of layers has its page, and nothing lies in two of them.
    for pages in pools.pages:
        pages.zero_()
    for number, name in enumerate(("full.0", "full.1"), start=1):
        pools.layers[name].pages.fill_(number)
    for number, name in enumerate(("window.0", "window.1"), start=1):
        assert bool((pools.layers[name].pages == number).all())
    assert all(bool(pages.all()) for pages in pools.pages)


@pytest.mark.rule("KV-DEV-2")
def test_the_pages_of_the_null_block_are_zero() -> None:
    pools = KVPools(cache(full(), mamba()))
    for pages in pools.pages:
        assert not pages[0].any()


@pytest.mark.rule("KV-DEV-1")
def test_a_write_through_a_view_is_in_the_page_of_its_block() -> None:
    for layout in LAYOUTS:
        pools = KVPools(cache(full(), window()), layout=layout)
        for pages in pools.pages:
            pages.zero_()
        pools.layers["1.0"].parts["value"][5, 3, 1, 2] = 1.0
        changed = [one.nonzero()[:, 0].unique().tolist() for one in pools.pages]
        assert changed == [[5], []]
        assert float(pools.layers["0.0"].parts["value"][5, 3, 1, 2]) == 1.0  # they share a tensor


@pytest.mark.rule("KV-DEV-2")
def test_without_room_nothing_is_allocated() -> None:
    with pytest.raises(DeviceMemoryError) as caught:
        KVPools(cache(full()), free_bytes=2015)
    assert (caught.value.needed_bytes, caught.value.free_bytes) == (2016, 2015)
    assert KVPools(cache(full()), free_bytes=2016).size_bytes == 2016
    free = free_memory_bytes(torch.device("cpu"))
    if free is not None:
        with pytest.raises(DeviceMemoryError, match="GiB"):
            KVPools(cache(full(), num_blocks=free // 100))


def tensors(*given: KVCacheTensor, num_blocks: int = 7) -> KVCacheConfig:
    return KVCacheConfig(num_blocks, (KVCacheGroup(("a", "b"), full()),), given)


BAD = {
    "shared_by a": tensors(KVCacheTensor(7 * PAGE, ("a", "a"))),
    "shared_by b": tensors(KVCacheTensor(7 * PAGE, ("a",))),
    "shared_by c": tensors(KVCacheTensor(7 * PAGE, ("a", "b", "c"))),
    "size_bytes 1009": tensors(KVCacheTensor(7 * PAGE + 1, ("a", "b"))),
    "size_bytes 142": tensors(KVCacheTensor(7 * (PAGE - 2), ("a", "b"))),
    "key of a": tensors(KVCacheTensor(7 * (PAGE + 1), ("a", "b"))),
    "tensors": tensors(KVCacheTensor(7 * PAGE, ("a",), 0, PAGE), KVCacheTensor(7 * PAGE, ("b",))),
    "num_blocks 0": replace(cache(full()), num_blocks=0),
    "tensors ()": KVCacheConfig(3, (KVCacheGroup(("a",), full()), KVCacheGroup(("b",), mla())), ()),
}


@pytest.mark.rule("KV-DEV-1")
@pytest.mark.parametrize("case", BAD)
def test_tensors_that_do_not_fit_the_groups_are_refused(case: str) -> None:
    with pytest.raises(ConfigError) as caught:
        KVPools(BAD[case])
    shown = f"{caught.value.field} {caught.value.value}"
    assert shown.startswith(case), shown


def test_layers_of_one_type_have_views_of_their_own_sizes() -> None:
    wide = replace(full(), head_size=12)
    spec = UniformTypeKVCacheSpecs(4, (("a", full()), ("b", wide)))
    pools = KVPools(KVCacheConfig(3, (KVCacheGroup(("a", "b"), spec),)))
    assert pools.layers["a"].parts["key"].shape == (3, 4, 2, 6)
    assert pools.layers["b"].parts["key"].shape == (3, 4, 2, 12)
