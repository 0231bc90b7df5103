"""Kernels leave every array as plain torch does, bit for bit, in whichever order programs run."""

from __future__ import annotations

from dataclasses import fields, replace
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvfast.device import DeviceTables
from kvfast.device.base.backend import BACKENDS, form_of
from kvfast.device.resident import plain
from kvfast.device.resident.state import MAX_STEPS, RunState, new_run
from kvfast.device.tables.geometry import Geometry, GroupTable
from kvfast.device.tables.state import DeviceState, new_state
from kvspec.config import KVCacheConfig, KVCacheGroup, ManagerConfig
from kvspec.specs import FullAttentionSpec, LayerSpec, MambaSpec, SlidingWindowSpec
from tests.device.tables import kernel_device
from tests.device.test_prefix_index import hits, random_hashes, table_of

pytest.importorskip("triton", reason="Triton is not installed")

LONGEST = 30


def assert_equal(left: Any, right: Any) -> None:
    for field in fields(left):
        ours, theirs = (getattr(one, field.name).cpu() for one in (left, right))
        assert ours.dtype == theirs.dtype
        assert torch.equal(ours, theirs), field.name


@pytest.fixture(params=[False, True], ids=["in order", "backwards"])
def either_order(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter runs programs one after another; backwards, it runs the last one first."""
    if not request.param:
        return
    interpreter = pytest.importorskip("triton.runtime.interpreter").interpreter_builder
    in_order = interpreter.set_grid_idx

    def turned(x: int, y: int, z: int) -> None:
        across, down, _ = interpreter.grid_dim
        in_order(across - 1 - x, down - 1 - y, z)

    monkeypatch.setattr(interpreter, "set_grid_idx", turned)


# Tables.


NUM_BLOCKS = 50
SPECS: tuple[LayerSpec, ...] = (
    FullAttentionSpec(3, 1, 8, "float16"),
    MambaSpec(4, ((2,),), ("float32",), mamba_cache_mode="align", num_speculative_blocks=1),
    SlidingWindowSpec(2, 1, 8, "float16", sliding_window=5),
)


def pair(
    groups: list[int], *, max_requests: int, max_tokens: int, max_entries: int | None = None
) -> tuple[DeviceTables, DeviceTables]:
    layers = tuple(KVCacheGroup((f"layer.{n}",), SPECS[g]) for n, g in enumerate(groups))
    plain, kernels = (
        DeviceTables(
            ManagerConfig(KVCacheConfig(NUM_BLOCKS, layers), max_model_len_tokens=40),
            max_requests=max_requests,
            max_tokens=max_tokens,
            max_entries=max_entries,
            device=kernel_device(backend),
            backend=backend,
        )
        for backend in BACKENDS
    )
    return plain, kernels


def random_rows(random: Random, tables: DeviceTables, handles: int, num: int) -> torch.Tensor:
    groups = tables._geometry.groups
    rows = []
    for _ in range(num):
        group = random.randrange(len(groups))
        index = random.randrange(min(4, groups[group].width))
        rows.append([random.randrange(handles), group, index, random.randrange(NUM_BLOCKS)])
    return torch.tensor(rows, dtype=torch.int32).reshape(-1, 4)


def random_step(random: Random, both: tuple[DeviceTables, DeviceTables], handles: int) -> None:
    """Give both lengths, a list, rows and a batch, perhaps that of the previous step."""
    plain = both[0]
    chosen = random.sample(range(handles), random.randint(0, handles))
    lengths = [random.randint(0, 20) for _ in chosen]
    moving = [g for g, group in enumerate(plain._geometry.groups) if group.moves]
    listed = [random.randrange(NUM_BLOCKS) for _ in range(5)]
    rows = random_rows(random, plain, handles, random.randint(0, 12))
    batch = plain._batch.handles.tolist(), plain._batch.counts.tolist()
    if random.random() < 0.6:
        batch = random.sample(range(handles), random.randint(0, handles)), []
        batch = batch[0], [random.randint(0, 6) for _ in batch[0]]
    for tables in both:
        tables.set_lengths(chosen, lengths)
        if moving:
            tables.set_row(listed[0] % handles, moving[0], listed)
        tables.set_lengths(batch[0], [7] * len(batch[0]))
        tables.update(*batch, rows)


@pytest.mark.rule("KV-DEV-13")
@settings(max_examples=8)
@given(
    groups=st.sampled_from([[0], [1], [0, 2], [2, 1, 0]]),
    seed=st.integers(0, 9999),
    max_entries=st.sampled_from([3, 40]),
)
def test_random_steps_are_the_same_in_both_forms(
    groups: list[int], seed: int, max_entries: int
) -> None:
    random = Random(seed)
    both = pair(groups, max_requests=3, max_tokens=48, max_entries=max_entries)
    for handles in (3, 3, 7):  # the last ones need more rows
        random_step(random, both, handles)
        assert_equal(*(one._device.state for one in both))
        for group in range(len(groups)):
            left, right = (tables.block_tables(group).cpu() for tables in both)
            assert torch.equal(left, right)


@pytest.mark.rule("KV-DEV-14")
def test_what_is_out_of_range_on_the_device_is_not_written() -> None:
    _, kernels = pair([0], max_requests=2, max_tokens=4)
    device = kernels._device
    # Around both arrays lies memory of others.
    around = torch.arange(2 * 40, dtype=torch.int32, device=kernels.device).view(2, 40)
    num = len(device.state.entries)
    entries, lengths = around[0, 4 : 4 + num], around[1, 4:6]
    device.state = replace(device.state, entries=entries, num_computed=lengths)
    before = around.tolist()
    words = [2, 2, 0, 0, 0, 0, 0, 0, -1, num, 5, 6, 2, -1, 7, 8]
    device.state.staged[: len(words)] = torch.tensor(words, dtype=torch.int32)
    kernels.apply()
    assert around.tolist() == before
    words = [2, 1, 0, 0, 0, 0, 0, 0, 0, num - 1, 5, 6, 1, 7]
    device.state.staged[: len(words)] = torch.tensor(words, dtype=torch.int32)
    kernels.apply()
    assert around[0, 3 : 5 + num].tolist() == [3, 5, *before[0][5 : 3 + num], 6, 4 + num]
    assert around[1, 3:7].tolist() == [43, 44, 45 + 7, 46]


@pytest.mark.rule("KV-DEV-13")
@pytest.mark.usefixtures("either_order")
def test_it_does_not_matter_in_which_order_programs_step() -> None:
    both = pair([0, 2], max_requests=300, max_tokens=600)
    random = Random(2)
    handles = random.sample(range(300), 280)
    rows = [random_rows(random, both[0], 300, num) for num in (600, 600, 0)]
    for deltas in rows:
        random.shuffle(handles)
        counts = [random.randrange(4) for _ in handles]
        for tables in both:
            tables.set_lengths(range(0, 300, 7), [4] * 43)
            tables.update(handles, counts, deltas)
        assert_equal(*(one._device.state for one in both))


# Resident steps.


def random_state(
    random: Random, max_requests: int, max_tokens: int, *, suffices: bool = False
) -> tuple[Geometry, DeviceState, RunState]:
    """Draw requests of any length in 0 … 3 groups, and a reserve that suffices or not."""
    spans = [random.choice((1, 2, 5, 16)) for _ in range(random.randint(int(suffices), 3))]
    groups = [GroupTable(-(-LONGEST // span), span, True, False) for span in spans]
    groups.insert(random.randint(0, len(groups)), GroupTable(3, 4, False, False))
    geometry = Geometry(tuple(groups), max_requests)
    device = torch.device(kernel_device("triton"))
    state = new_state(geometry, max_tokens, 8, device)
    max_blocks = 6 * max_requests if suffices else random.choice((1, 4, 3 * max_requests))
    run = new_run(max_requests, len(spans), max_blocks, device)
    num = min(max_requests, max_tokens)
    num = num if suffices else random.randint(0, num)
    lengths = [random.randint(0, LONGEST - 1) for _ in range(max_requests)]
    state.num_computed.copy_(torch.tensor(lengths))
    handles = random.sample(range(max_requests), num)
    run.handles[:num] = torch.tensor(handles)
    most = [random.randint(0, min(4, LONGEST - lengths[handle])) for handle in handles]
    run.left[:num] = torch.tensor(most)
    for g, span in enumerate(spans):
        held = [-(-lengths[handle] // span) + random.choice((0, 0, 1)) for handle in handles]
        run.lengths[g, :num] = torch.tensor(held)
    reserved = max_blocks if suffices else random.randint(0, max_blocks)
    run.reserve[:reserved] = torch.tensor(random.sample(range(1, 10**6), reserved))
    run.control[: MAX_STEPS + 1] = torch.tensor(
        [num, reserved, 2 if suffices else random.choice((0, 2, 5))]
    )
    return geometry, state, run


def check_steps(
    seed: int, max_requests: int, max_tokens: int, num_steps: int = 4, **options: bool
) -> int:
    kernels = form_of("kvfast.device.resident", "triton")
    geometry, state, run = random_state(Random(seed), max_requests, max_tokens, **options)
    _, state_too, run_too = random_state(Random(seed), max_requests, max_tokens, **options)
    for _ in range(num_steps):
        plain.decide(state, run, geometry)
        kernels.decide(state_too, run_too, geometry)
        assert_equal(state, state_too)
        run.log[-1] = run_too.log[-1] = 0  # an entry that is never read
        assert_equal(run, run_too)
    return int(run.control[3])


@pytest.mark.rule("KV-DEV-15", "KV-DEV-16")
@settings(max_examples=25)
@given(seed=st.integers(0, 10**6), sizes=st.tuples(st.integers(1, 9), st.integers(1, 12)))
def test_the_kernel_is_the_plain_form(seed: int, sizes: tuple[int, int]) -> None:
    check_steps(seed, *sizes)


@pytest.mark.rule("KV-DEV-15")
@pytest.mark.parametrize("num", [1023, 1024, 1025, 2500])
def test_rows_that_take_several_rounds(num: int) -> None:
    assert check_steps(num, num, num + 7, num_steps=2, suffices=True) > 40


# The index.


@pytest.mark.rule("KV-DEV-19")
@pytest.mark.usefixtures("either_order")
def test_a_table_larger_than_a_program_is_the_same_in_both_forms() -> None:
    random = Random(1)
    hashes = random_hashes(random, 300, 1000)
    tables = [table_of(backend, 300, hashes[:3], hashes[3:]) for backend in BACKENDS]
    assert torch.equal(tables[0].slots, tables[1].slots.cpu())
    prompts = [hashes[:290], hashes[7:], [hashes[5]] * 128, random.choices(hashes, k=140)]
    prompts[1][200] = bytes(32)
    found = [hits(*both) for both in zip(tables, [prompts] * 2, BACKENDS, strict=True)]
    assert found[0].tolist() == found[1].tolist() == [290, 200, 128, 140]
