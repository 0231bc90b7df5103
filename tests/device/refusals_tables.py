"""The calls on tables, and what each refuses."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from kvfast.device import DeviceTables
from kvspec.batched import StepPlan, StepResult
from tests.device import refusals_kinds as kinds
from tests.device.refusals import Bad, Call, World
from tests.device.tables import FULL, MAMBA, config_of, rows_of

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
            Bad("handles", [0, 5], "handle"),  # nobody is registered there
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

CALLS = (MADE, *BETWEEN, *STEPS)
