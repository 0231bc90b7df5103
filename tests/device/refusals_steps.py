"""The calls on tables, runs, swaps and the host tier, and what each refuses besides other types."""

from __future__ import annotations

from array import array
from dataclasses import replace
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
from tests.device import refusals_kinds as kinds
from tests.device.models import cache, full
from tests.device.refusals import HOST_BLOCKS, Bad, Call, World
from tests.device.refusals_memory import GROUPS, NUM_BLOCKS
from tests.device.tables import FULL, MAMBA, config_of, kernel_device, rows_of

# Tables.

MAX_HANDLES = (2**31 - 1) // (8 + 6)
"""Rows of 8 and 6 blocks, numbered by 31 bits."""
LAST_ROW = (0, 0, 0, 1)
DELTAS = tuple(
    Bad("deltas", value, field)
    for value, field in (
        *((value, "deltas") for value in (
            [[*LAST_ROW]], rows_of(LAST_ROW).long(), rows_of(LAST_ROW)[:, :3], rows_of(LAST_ROW)[0],
            rows_of(LAST_ROW).to("meta"), np.zeros((2, 4), np.float32),
            np.zeros((2, 8), np.int32)[:, ::2], array("i", LAST_ROW),
        )),
        (rows_of((-1, 0, 0, 1)), "deltas[0].handle"),
        (rows_of(LAST_ROW, (MAX_HANDLES, 0, 0, 1)), "deltas[1].handle"),
        *((rows_of((0, group, 0, 1)), "deltas[0].group") for group in (-1, 2)),
        *((rows_of((0, 1, index, 1)), "deltas[0].index") for index in (-1, 6)),
        *((rows_of((0, 1, 5, block)), "deltas[0].block") for block in (-1, 20)),
    )
)  # fmt: skip
HANDLES = kinds.handles("handles", MAX_HANDLES)


def counts(argument: str, limit: int) -> tuple[Bad, ...]:
    """List bad counts of two handles, each below the limit."""
    return (
        *kinds.handles(argument, limit, once=False),
        *(Bad(argument, value, argument) for value in ([1], -1, True)),
    )


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
STEPPED = {
    "update": lambda w: w.tables.update,
    "stage": lambda w: w.tables.stage,
}
TABLES = (
    Call(
        "DeviceTables", lambda w: DeviceTables,
        lambda w: {"config": config_of(FULL, MAMBA), "max_requests": 2, "max_tokens": 16},
        (
            *(bad for name in ("max_requests", "max_tokens", "max_entries")
              for bad in kinds.numbers(name, 1, 2**31 - 1)),
            Bad("max_requests", MAX_HANDLES + 1, "max_requests"),
            *(Bad("widths", value, "widths") for value in ([4], [4, 4, 4], {3, 4})),
            *(Bad("widths", [4, value], "widths[1]") for value in (0, -1, True, 2**31, 1.5, "4")),
        ),
    ),
    Call("DeviceTables.table", lambda w: w.tables.table, lambda w: {}, GROUPS),
    Call("DeviceTables.block_tables", lambda w: w.tables.block_tables, lambda w: {}, GROUPS),
    Call(
        "DeviceTables.set_lengths", lambda w: w.tables.set_lengths,
        lambda w: {"handles": [0, 1], "lengths": [3, 4]},
        (*HANDLES, *counts("lengths", 33), Bad("lengths", 33, "lengths"),
         Bad("handles", [0], "lengths")),
    ),
    Call(
        "DeviceTables.rewind", lambda w: w.tables.rewind,
        lambda w: {"handles": [0, 1], "num_tokens": [0, 4]},
        (
            *HANDLES, *counts("num_tokens", 18),  # of 17
            Bad("num_tokens", 2**31, "num_tokens"),
            Bad("num_tokens", 1, "num_tokens[0]", {"handles": [0]}),
        ),
    ),
    Call("DeviceTables.write", lambda w: w.tables.write, lambda w: {}, DELTAS),
    Call(
        "DeviceTables.set_row", lambda w: w.tables.set_row,
        lambda w: {"handle": 1, "group": 1, "blocks": [2]},
        (
            *(Bad("handle", value, "handle[0]") for value in (-1, MAX_HANDLES, 2**70)),
            *GROUPS, Bad("blocks", [1] * 7, "blocks"),
            *(Bad("blocks", [1, value], "blocks[1]") for value in (-1, 20, torch.tensor(1))),
        ),
    ),
    Call(
        "DeviceTables.read_rows", lambda w: w.tables.read_rows,
        lambda w: {"batched": w.batched, "handles": [w.handle]},
        (*HANDLES, Bad("handles", [0, 5], "handle")),  # no request is registered there
    ),
    Call("DeviceTables.difference", lambda w: w.tables.difference, lambda w: {}),
    Call(
        "DeviceTables.step", lambda w: w.tables.step,
        lambda w: {"plan": StepPlan(decoding=[0]), "result": result(1), "deltas": None},
        (
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
                {"plan": StepPlan(new=[0])}),
        ),
    ),
    *(
        Call(
            f"DeviceTables.{method}", of,
            lambda w: {"handles": [0, 1], "num_scheduled": [1, 2], "deltas": None},
            (
                *HANDLES, *DELTAS, *kinds.handles("num_scheduled", 17, once=False),
                *(Bad("num_scheduled", value, "num_scheduled") for value in
                  ([1], [9, 8], [0, 16])),  # the last one is longer than any sequence
            ),
        )
        for method, of in STEPPED.items()
    ),
)  # fmt: skip

# Runs.

RUN_HANDLES = (2**31 - 1) // 8
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


NOT_OF_A_STEP: tuple[Any, ...] = (None, 3, [], {}, iter([[1, 2]]), torch.tensor(1))
RUNS = (
    Call("ResidentDecode", lambda w: ResidentDecode,
         lambda w: {"tables": w.decoding[0].tables, "max_blocks": 4},
         kinds.numbers("max_blocks", 1, 2**31 - 1)),
    Call("ResidentDecode.new_blocks", lambda w: w.decoding[0].new_blocks, lambda w: {},
         kinds.numbers("group", 0, 0)),
    Call(
        "ResidentDecode.begin", lambda w: w.decoding[0].begin,
        lambda w: {"batched": w.decoding[1], "handles": [0, 1], "max_steps": 3},
        (
            Bad("batched", batched_of(OTHER), "batched"),
            Bad("batched", batched_of(FULL), "handles[0]"),  # nothing of them is computed there
            *kinds.handles("handles", RUN_HANDLES),
            Bad("handles", [0, 5], "handles[1]"),  # no request is registered there
            *kinds.numbers("max_steps", 1, 2**31 - 1),
            *counts("max_tokens", 2**53), Bad("max_tokens", 2**53, "max_tokens"),
        ),
    ),
    Call("ResidentRun.places", lambda w: w.ended[2].places, lambda w: {},
         kinds.numbers("step", 0, 0)),
    Call(
        "ResidentDecode.replay", lambda w: w.ended[0].replay,
        lambda w: {"run": w.ended[2], "batched": w.ended[1], "token_ids": [[1, 2]]},
        (
            *(Bad("token_ids", value, "token_ids") for value in NOT_OF_A_STEP),
            *(Bad("token_ids", [value], "token_ids[0]") for value in
              ([1], [1, 2, 3], None, {1, 2}, 3)),
            Bad("token_ids", [[[1], [2]]], "token_ids[0][0]"),
            *(Bad("token_ids", [[1, value]], "token_ids[0][1]") for value in
              (-1, True, 1.0, None, "1", 2**63)),
        ),
        of_any_type=("token_ids",),
    ),
)  # fmt: skip

# Swaps and the host tier.


def swaps(source: str, destination: str) -> tuple[Bad, ...]:
    limits = {"blocks": NUM_BLOCKS, "host_blocks": HOST_BLOCKS}
    return (
        *kinds.ids(source, 1, limits[source]),
        *kinds.ids(destination, 1, limits[destination], writes=True),
        Bad(destination, [1], f"len({destination})"),
        Bad(source, [1, 2, 3], f"len({destination})"),
    )


def made(world: World) -> dict[str, Any]:
    tier = world.tier()
    return {
        "implementation": world.implementation,
        "batched": tier.batched,
        "pools": tier.pages.pools,
        "num_host_blocks": HOST_BLOCKS,
    }


TAKEN_ROWS = tuple(
    Bad("rows", value, field, {"result": result(1, num_deltas=1)})
    for value, field in (
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
BETWEEN = {"blocks": [5, 6], "host_blocks": [2, 3]}
TIERS = (
    Call("Swapper", lambda w: Swapper, lambda w: {"device_pools": w.pools, "host_pools": w.host}),
    Call("Swapper.swap_out", lambda w: w.swapper.swap_out, lambda w: BETWEEN,
         swaps("blocks", "host_blocks")),
    Call("Swapper.swap_in", lambda w: w.swapper.swap_in, lambda w: BETWEEN,
         swaps("host_blocks", "blocks")),
    Call(
        "HostTier", lambda w: HostTier, made,
        (
            Bad("num_host_blocks", 0, "num_blocks"),
            Bad("num_spare_blocks", -1, "num_spare_blocks"),
            Bad("pools", KVPools(cache(full())), "pools"),
        ),
        {"num_host_blocks": "num_blocks"},
    ),
    Call("HostTier.load", lambda w: w.tier().load, lambda w: {}),
    Call("HostTier.take", lambda w: w.tier().take, lambda w: {},
         tuple(Bad("blocks", [19, value], "blocks") for value in (1.5, True, "7", 20, 2**70)),
         of_any_type=("blocks",)),
    Call(
        "HostTier.before_step", lambda w: w.tier().before_step,
        lambda w: {"plan": StepPlan(decoding=[0]), "result": result(1), "rows": rows_of()},
        (
            Bad("plan", StepPlan(decoding=[5]), "handle"),
            Bad("result", result(1, 1), "result.num_scheduled_tokens"),
            Bad("result", result(1, num_deltas=1), "rows"),
            *TAKEN_ROWS,
        ),
    ),
    Call("HostTier.after_step", lambda w: w.tier().after_step, lambda w: {},
         (Bad("handles", [5], "handle"), Bad("handles", [True], "handle")),
         of_any_type=("handles",)),
)  # fmt: skip

CALLS = (*TABLES, *RUNS, *TIERS)
