"""The calls on resident decode steps, and what each refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

import kvfast
from kvfast.device import Backend, DeviceTables, ResidentDecode, ResidentRun
from kvspec.batched import BatchedManager, StepOutput, StepPlan
from kvspec.request import RequestInput
from kvspec.specs import SlidingWindowSpec
from tests.device import refusals_kinds as kinds
from tests.device.refusals import Bad, Call
from tests.device.tables import FULL, config_of, kernel_device

MAX_HANDLES = (2**31 - 1) // 8
BAD_TOKENS: tuple[Any, ...] = ([1], [1, 2, 3], None, {1, 2}, 3)
NOT_OF_A_STEP: tuple[Any, ...] = (None, 3, [], {}, iter([[1, 2]]))
BAD_TOKEN: tuple[Any, ...] = (-1, True, 1.0, None, "1", 2**63)
OTHER = SlidingWindowSpec(4, 1, 8, "float16", sliding_window=5)


def batched_of(*specs: Any) -> BatchedManager:
    """Two requests of 5 tokens, registered, of which 4 are computed."""
    implementation = kvfast.implementation()
    manager = implementation.create(replace(config_of(*specs), enable_caching=True))
    batched = implementation.batched(manager)
    for name in "ab":
        request = implementation.make_request(manager, RequestInput(name, range(4)))
        batched.register(request)
    return batched


def decoding(backend: Backend) -> tuple[ResidentDecode, BatchedManager]:
    """Runs of two requests that decode, and their manager."""
    batched, device = batched_of(FULL), kernel_device(backend)
    tables = DeviceTables(
        config_of(FULL), max_requests=2, max_tokens=8, device=device, backend=backend
    )
    plan, rows = StepPlan(new=[0, 1]), torch.zeros((8, 4), dtype=torch.int32)
    tables.step(plan, batched.step(plan, StepOutput(rows)), rows)
    batched.append([0, 1], [7, 7])
    return ResidentDecode(tables, max_blocks=4), batched


def ended(backend: Backend) -> tuple[ResidentDecode, BatchedManager, ResidentRun]:
    """The same, and a run that is to be replayed."""
    resident, batched = decoding(backend)
    assert resident.begin(batched, [0, 1], 1) == 1
    resident.step()
    return resident, batched, resident.end()


CALLS = (
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
            *kinds.handles("handles", limit=MAX_HANDLES),
            Bad("handles", [0, 5], "handles[1]"),  # nobody is registered there
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
