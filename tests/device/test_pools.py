"""Pools: every page where the plan puts it; too little memory is an error before anything runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import kvfast
from kvfast.device import (
    Backend,
    DeviceMemoryError,
    DeviceTables,
    HostTier,
    KVPools,
    Layout,
    PageOperations,
)
from kvfast.device.base.layout import LAYOUTS, page_parts, page_size_bytes
from kvfast.device.base.memory import free_memory_bytes, sent
from kvfast.device.pages import pools
from kvfast.device.tables import state as _tables_state
from kvref.planning.planner import ReferencePlanner
from kvspec.config import KVCacheConfig, KVCacheGroup, KVCacheTensor
from kvspec.errors import ConfigError
from kvspec.planning import PlanningConfig
from kvspec.specs import (
    DTYPE_BYTES,
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    HiddenStateCacheSpec,
    LayerSpec,
    MLAAttentionSpec,
    SinkFullAttentionSpec,
    SlidingWindowMLASpec,
    TQFullAttentionSpec,
    UniformTypeKVCacheSpecs,
)
from tests.device.models import DEVICE, cache, contents, filled, full, mamba, mla, window
from tests.device.refusals import World
from tests.device.tables import FULL, MAMBA, config_of, rows_of, tables_of

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


@pytest.mark.rule("KV-DEV-2")
def test_what_torch_refuses_is_an_error_of_memory_too(monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.rule("KV-DEV-14")
@pytest.mark.parametrize("answers", [[100], [None, 100]], ids=["asked", "tried"])
def test_without_room_to_grow_everything_stays(
    answers: list[int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = tables_of(FULL, MAMBA)
    tables.update([1], [3], rows_of((1, 0, 0, 3)))
    full = torch.full

    def no_room(size: Any, *args: Any, **options: Any) -> torch.Tensor:
        if size == (8 * (8 + 6) + 1,):
            raise torch.OutOfMemoryError
        return full(size, *args, **options)

    monkeypatch.setattr(torch, "full", no_room)
    monkeypatch.setattr(_tables_state, "free_memory_bytes", lambda device: answers.pop(0))
    with pytest.raises(DeviceMemoryError) as caught:
        tables.update([1, 7], [1, 1], rows_of((7, 0, 0, 4)))
    assert (caught.value.free_bytes, caught.value.device) == (100, "cpu")
    assert caught.value.needed_bytes > 4 * 8 * 14
    assert (tables.max_requests, answers) == (2, [])
    assert tables.update([1], [1]).positions.tolist() == [3]
    assert tables.staged_bytes == 32 + 8


@pytest.mark.rule("KV-DEV-2")
def test_what_torch_keeps_for_later_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    device = torch.device("cuda:0")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1000, 9000))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 500)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 200)
    assert free_memory_bytes(device) == 1300


@pytest.mark.rule("KV-DEV-2")
def test_pinned_memory_is_counted_as_torch_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Round up to powers of two: 1,008 bytes take 1,024, for each of two layers."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(DeviceMemoryError) as caught:
        KVPools(cache(full()), pin_memory=True, free_bytes=2047)
    assert caught.value.needed_bytes == 2048
    sizes = {1: 1, 2: 2, 3: 4, 4096: 4096, 4097: 8192}
    assert {size: pools._pinned_bytes(size) for size in sizes} == sizes


@pytest.mark.rule("KV-DEV-3", "KV-DEV-5", "KV-DEV-6")
@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_blocks_beyond_4_gib_are_reached(layout: Layout, backend: Backend) -> None:
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
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *size, dtype, pin_memory: empty(*size, dtype=dtype))
    pinned = torch.tensor([4, 5])
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self)
    found = sent(pinned, torch.device("cpu"))
    pinned.fill_(7)
    assert found.tolist() == [4, 5]
