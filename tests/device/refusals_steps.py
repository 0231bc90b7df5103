"""The calls on tables, runs, swaps and the host tier, and what each refuses."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

import kvfast
from kvfast.device import (
    Backend,
    DeviceTables,
    HostTier,
    KVPools,
    ResidentDecode,
    ResidentRun,
    Swapper,
)
from kvspec.batched import BatchedManager, StepOutput, StepPlan, StepResult
from kvspec.request import RequestInput
from kvspec.specs import SlidingWindowSpec
from tests.device import refusals as kinds
from tests.device.models import cache, full
from tests.device.refusals import HOST_BLOCKS, Bad, Call, World
from tests.device.refusals_memory import NUM_BLOCKS
from tests.device.tables import FULL, MAMBA, config_of, kernel_device, rows_of

MAX_HANDLES = (2**31 - 1) // (8 + 6)
"""Rows of 8 and 6 blocks, numbered by 31 bits."""

ROWS: tuple[tuple[Any, str], ...] = (
    (4, "deltas"),
    ([[0, 0, 0, 1]], "deltas"),
    (rows_of((0, 0, 0, 1)).long(), "deltas"),
    (rows_of((0, 0, 0, 1))[:, :3], "deltas"),
    (rows_of((0, 0, 0, 1))[0], "deltas"),
    (rows_of((0, 0, 0, 1)).to("meta"), "deltas"),
    (np.zeros((2, 4), np.float32), "deltas"),
    (np.zeros((2, 8), np.int32)[:, ::2], "deltas"),
    (array("i", [0, 0, 0, 1]), "deltas"),
    (rows_of((-1, 0, 0, 1)), "deltas[0].handle"),
    (rows_of((0, 0, 0, 1), (MAX_HANDLES, 0, 0, 1)), "deltas[1].handle"),
    (rows_of((0, 2, 0, 1)), "deltas[0].group"),
    (rows_of((0, -1, 0, 1)), "deltas[0].group"),
    (rows_of((0, 1, 6, 1)), "deltas[0].index"),
    (rows_of((0, 1, -1, 1)), "deltas[0].index"),
    (rows_of((0, 1, 5, 20)), "deltas[0].block"),
    (rows_of((0, 1, 5, -1)), "deltas[0].block"),
)
DELTAS = tuple(Bad("deltas", value, field) for value, field in ROWS)
GROUPS = (*kinds.numbers("group", 0, 1), Bad("group", [], "group"))

MADE = Call(
    "DeviceTables", lambda w: DeviceTables,
    lambda w: {"config": config_of(FULL, MAMBA), "max_requests": 2, "max_tokens": 16},
    (
        *kinds.objects("config"),
        *kinds.numbers("max_requests", 1, 2**31 - 1),
        Bad("max_requests", MAX_HANDLES + 1, "max_requests"),
        *kinds.numbers("max_tokens", 1, 2**31 - 1),
        *kinds.numbers("max_entries", 1, 2**31 - 1, optional=True),
        *kinds.devices(),
        *kinds.backends(),
        *(Bad("widths", value, "widths") for value in (3, [4], [4, 4, 4], {3, 4})),
        *(Bad("widths", [4, value], "widths[1]") for value in (0, -1, True, 2**31, 1.5, "4")),
    ),
)  # fmt: skip

BETWEEN = (
    Call(
        "DeviceTables.table", lambda w: w.tables.table, lambda w: {}, GROUPS,
    ),
    Call(
        "DeviceTables.block_tables", lambda w: w.tables.block_tables, lambda w: {}, GROUPS,
    ),
    Call(
        "DeviceTables.set_lengths", lambda w: w.tables.set_lengths,
        lambda w: {"handles": [0, 1], "lengths": [3, 4]},
        (
            *kinds.handles("handles", limit=MAX_HANDLES),
            *kinds.handles("lengths", repeats=False, limit=33),
            *(Bad("lengths", value, "lengths") for value in (-1, True, 33)),
            Bad("handles", [0], "lengths"), Bad("lengths", [1], "lengths"),
        ),
    ),
    Call(
        "DeviceTables.rewind", lambda w: w.tables.rewind,
        lambda w: {"handles": [0, 1], "num_tokens": [0, 4]},
        (
            *kinds.handles("handles", limit=MAX_HANDLES),
            *kinds.handles("num_tokens", repeats=False, limit=18),  # of 17
            *(Bad("num_tokens", value, "num_tokens") for value in (-1, True, 2**31)),
            Bad("num_tokens", 1, "num_tokens[0]", others={"handles": [0]}),
            Bad("num_tokens", [1], "num_tokens"),
        ),
    ),
    Call("DeviceTables.write", lambda w: w.tables.write, lambda w: {},
         (*DELTAS, Bad("deltas", None, "deltas"))),
    Call(
        "DeviceTables.set_row", lambda w: w.tables.set_row,
        lambda w: {"handle": 1, "group": 1, "blocks": [2]},
        (
            *(Bad("handle", value, "handle[0]") for value in
              (-1, True, 1.0, None, "1", MAX_HANDLES, 2**70, [1])),
            *GROUPS,
            *(Bad("blocks", value, "blocks") for value in
              (None, 3, {1, 2}, iter([1]), [1] * 7, np.array([1]), torch.tensor([1]))),
            *(Bad("blocks", [1, value], "blocks[1]") for value in
              (-1, 20, True, 1.0, None, "1", torch.tensor(1))),
        ),
    ),
    Call(
        "DeviceTables.read_rows", lambda w: w.tables.read_rows,
        lambda w: {"batched": w.batched, "handles": [w.handle]},
        (
            *kinds.objects("batched"),
            *kinds.handles("handles", limit=MAX_HANDLES),
            Bad("handles", [0, 5], "handle"),  # no request is registered there
        ),
    ),
    Call(
        "DeviceTables.difference", lambda w: w.tables.difference, lambda w: {},
        kinds.objects("batched"),
    ),
)  # fmt: skip


def result(*scheduled: int, hits: tuple[int, ...] = (), num_deltas: int = 0) -> StepResult:
    return StepResult(array("q", scheduled), array("q", hits), num_deltas=num_deltas)


PLANS: tuple[tuple[dict[str, Any], str], ...] = (
    *(
        ({field: value}, f"plan.{field}")
        for field in ("finished", "preempted", "decoding", "prefilling", "new")
        for value in (None, 3, torch.ones(1), {0}, np.ones((1, 1), int))
    ),
    ({"decoding": [True]}, "plan.decoding[0]"),
    ({"decoding": [-1]}, "handles[0]"),
    ({"decoding": [2**31]}, "handles[0]"),
    ({"decoding": [0, 0]}, "handles[1]"),
    ({"decoding": [0], "prefilling": [0]}, "handles[1]"),
    ({"decoding": [0, 1]}, "num_scheduled"),
    ({"decoding": [0], "finished": [-1]}, "plan[0]"),
    ({"decoding": [0], "finished": [1], "preempted": [1]}, "plan[1]"),
    ({"new": [0]}, "result.hit_tokens"),
)


def _method(name: str, world: World) -> Callable[..., object]:
    found: Callable[..., object] = getattr(world.tables, name)
    return found


STEPS = (
    Call(
        "DeviceTables.step", lambda w: w.tables.step,
        lambda w: {"plan": StepPlan(decoding=[0]), "result": result(1), "deltas": None},
        (
            *kinds.objects("plan"), *kinds.objects("result"),
            *(replace(bad, others={"result": result(1, num_deltas=len(bad.value))})
              for bad in DELTAS if isinstance(bad.value, torch.Tensor)),
            *(bad for bad in DELTAS if not isinstance(bad.value, torch.Tensor)),
            *(Bad("plan", StepPlan(**plan), field) for plan, field in PLANS),
            Bad("result", result(), "num_scheduled"),
            Bad("result", result(1, 1), "num_scheduled"),
            Bad("result", result(-1), "num_scheduled[0]"),
            Bad("result", result(17), "num_scheduled[0]"),
            Bad("result", result(1, hits=(1,)), "result.hit_tokens"),
            Bad("result", result(1, num_deltas=2), "deltas"),
            Bad("result", result(1, num_deltas=-1), "deltas"),
            Bad("result", result(1, hits=(33,)), "result.hit_tokens[0]",
                others={"plan": StepPlan(new=[0])}),
        ),
    ),
    *(
        Call(
            f"DeviceTables.{method}", partial(_method, method),
            lambda w: {"handles": [0, 1], "num_scheduled": [1, 2], "deltas": None},
            (
                *kinds.handles("handles", limit=MAX_HANDLES), *DELTAS,
                *kinds.handles("num_scheduled", repeats=False, limit=17),
                Bad("num_scheduled", [1], "num_scheduled"),
                Bad("num_scheduled", [9, 8], "num_scheduled"),
                Bad("num_scheduled", [0, 16], "num_scheduled"),  # longer than any sequence
                Bad("num_scheduled", 1, "num_scheduled"),
            ),
        )
        for method in ("update", "stage")
    ),
)  # fmt: skip


RUN_HANDLES = (2**31 - 1) // 8
BAD_TOKENS: tuple[Any, ...] = ([1], [1, 2, 3], None, {1, 2}, 3)
NOT_OF_A_STEP: tuple[Any, ...] = (None, 3, [], {}, iter([[1, 2]]))
BAD_TOKEN: tuple[Any, ...] = (-1, True, 1.0, None, "1", 2**63)
OTHER = SlidingWindowSpec(4, 1, 8, "float16", sliding_window=5)


def batched_of(*specs: Any) -> BatchedManager:
    """Register two requests of 4 tokens."""
    implementation = kvfast.implementation()
    manager = implementation.create(replace(config_of(*specs), enable_caching=True))
    batched = implementation.batched(manager)
    for name in "ab":
        request = implementation.make_request(manager, RequestInput(name, range(4)))
        batched.register(request)
    return batched


def decoding(backend: Backend) -> tuple[ResidentDecode, BatchedManager]:
    batched, device = batched_of(FULL), kernel_device(backend)
    tables = DeviceTables(
        config_of(FULL), max_requests=2, max_tokens=8, device=device, backend=backend
    )
    plan, rows = StepPlan(new=[0, 1]), torch.zeros((8, 4), dtype=torch.int32)
    tables.step(plan, batched.step(plan, StepOutput(rows)), rows)
    batched.append([0, 1], [7, 7])
    return ResidentDecode(tables, max_blocks=4), batched


def ended(backend: Backend) -> tuple[ResidentDecode, BatchedManager, ResidentRun]:
    resident, batched = decoding(backend)
    assert resident.begin(batched, [0, 1], 1) == 1
    resident.step()
    return resident, batched, resident.end()


RESIDENT_CALLS = (
    Call(
        "ResidentDecode", lambda w: ResidentDecode,
        lambda w: {"tables": w.decoding[0].tables, "max_blocks": 4},
        (*kinds.objects("tables"), *kinds.numbers("max_blocks", 1, 2**31 - 1)),
    ),
    Call(
        "ResidentDecode.new_blocks", lambda w: w.decoding[0].new_blocks, lambda w: {},
        (*kinds.numbers("group", 0, 0), Bad("group", [], "group")),
    ),
    Call(
        "ResidentDecode.begin", lambda w: w.decoding[0].begin,
        lambda w: {"batched": w.decoding[1], "handles": [0, 1], "max_steps": 3},
        (
            *kinds.objects("batched"),
            Bad("batched", batched_of(OTHER), "batched"),
            Bad("batched", batched_of(FULL), "handles[0]"),  # nothing of them is computed there
            *kinds.handles("handles", limit=RUN_HANDLES),
            Bad("handles", [0, 5], "handles[1]"),  # no request is registered there
            *kinds.numbers("max_steps", 1, 2**31 - 1),
            *kinds.handles("max_tokens", repeats=False, limit=2**53),
            *(Bad("max_tokens", value, "max_tokens") for value in (-1, True, 2**53, [1])),
        ),
    ),
    Call(
        "ResidentRun.places", lambda w: w.ended[2].places, lambda w: {},
        (*kinds.numbers("step", 0, 0), Bad("step", [], "step")),
    ),
    Call(
        "ResidentDecode.replay", lambda w: w.ended[0].replay,
        lambda w: {"run": w.ended[2], "batched": w.ended[1], "token_ids": [[1, 2]]},
        (
            *kinds.objects("run"),
            *kinds.objects("batched"),
            *(Bad("token_ids", value, "token_ids") for value in NOT_OF_A_STEP),
            *(
                Bad("token_ids", [value], "token_ids[0]")
                for value in BAD_TOKENS
            ),
            Bad("token_ids", [[[1], [2]]], "token_ids[0][0]"),
            *(
                Bad("token_ids", [[1, value]], "token_ids[0][1]")
                for value in BAD_TOKEN
            ),
        ),
    ),
)  # fmt: skip


def swaps(method: str, source: str, destination: str) -> Call:
    limits = {"blocks": NUM_BLOCKS, "host_blocks": HOST_BLOCKS}
    return Call(
        f"Swapper.{method}", lambda w: getattr(w.swapper, method),
        lambda w: {"blocks": [5, 6], "host_blocks": [2, 3]},
        (
            *kinds.ids(source, 1, limits[source]),
            *kinds.ids(destination, 1, limits[destination], writes=True),
            Bad(destination, [1], f"len({destination})"),
            Bad(source, [1, 2, 3], f"len({destination})"),
        ),
    )  # fmt: skip


STREAMS = (Bad("streams", 3, "streams"), Bad("streams", "cuda", "streams"))

SWAPS = (
    Call(
        "Swapper", lambda w: Swapper,
        lambda w: {"device_pools": w.pools, "host_pools": w.host},
        (
            *kinds.objects("device_pools"),
            *kinds.objects("host_pools"),
            *kinds.backends(),
            *STREAMS,
        ),
    ),
    swaps("swap_out", "blocks", "host_blocks"),
    swaps("swap_in", "host_blocks", "blocks"),
)  # fmt: skip


def made(world: World) -> dict[str, Any]:
    tier = world.tier()
    return {
        "implementation": world.implementation,
        "batched": tier.batched,
        "pools": tier.pages.pools,
        "num_host_blocks": HOST_BLOCKS,
    }


TAKEN_ROWS = tuple(
    Bad("rows", value, field, others={"result": result(1, num_deltas=1)})
    for value, field in (
        (4, "rows"),
        ([[0, 0, 0, 1]], "rows"),
        (rows_of((0, 0, 0, 1)).long(), "rows"),
        (rows_of(), "rows"),
        (rows_of((1, 0, 0, 1)), "rows[0].handle"),
        (rows_of((0, 1, 0, 1)), "rows[0].group"),
        (rows_of((0, 0, -1, 1)), "rows[0].index"),
        (rows_of((0, 0, 0, 20)), "rows[0].block"),
        (rows_of((0, 0, 0, -1)), "rows[0].block"),
    )
)
TIERS = (
    Call(
        "HostTier", lambda w: HostTier, made,
        (
            *(replace(bad, field="num_blocks") for bad in kinds.numbers("num_host_blocks", 1)),
            *kinds.objects("implementation"),
            *kinds.objects("batched"),
            *kinds.objects("pools"),
            Bad("pools", KVPools(cache(full())), "pools"),
            *kinds.numbers("num_spare_blocks", 0, optional=True),
            *kinds.backends(),
            *STREAMS,
        ),
    ),
    Call(
        "HostTier.load", lambda w: w.tier().load, lambda w: {}, kinds.objects("request"),
    ),
    Call(
        "HostTier.take", lambda w: w.tier().take, lambda w: {},
        tuple(Bad("blocks", [19, value], "blocks") for value in (1.5, True, "7", 20, 2**70)),
    ),
    Call(
        "HostTier.before_step", lambda w: w.tier().before_step,
        lambda w: {"plan": StepPlan(decoding=[0]), "result": result(1), "rows": rows_of()},
        (
            *kinds.objects("plan"),
            Bad("plan", StepPlan(decoding=[5]), "handle"),
            *kinds.objects("result"),
            Bad("result", result(1, 1), "result.num_scheduled_tokens"),
            Bad("result", result(1, num_deltas=1), "rows"),
            *TAKEN_ROWS,
        ),
    ),
    Call(
        "HostTier.after_step", lambda w: w.tier().after_step, lambda w: {},
        (Bad("handles", [5], "handle"), Bad("handles", [True], "handle")),
    ),
)  # fmt: skip


CALLS = (MADE, *BETWEEN, *STEPS, *RESIDENT_CALLS, *SWAPS, *TIERS)
