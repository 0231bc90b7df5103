"""Decode steps that the device decides alone: what one step costs it."""

from __future__ import annotations

from collections.abc import Iterator

import torch

import kvfast
from bench.device.cases import BLOCK_SIZE, SPEC, Bench, Case
from kvfast.device import Backend, DeviceTables, ResidentDecode
from kvspec.batched import StepOutput, StepPlan
from kvspec.config import KVCacheConfig, KVCacheGroup, ManagerConfig
from kvspec.request import RequestInput

MAX_STEPS = 1000
PROMPT_TOKENS = 64


def run_cases(bench: Bench, request_counts: list[int]) -> Iterator[Case]:
    """Yield steps in which every sixteenth request takes a block: decisions, tables, lengths,
    slots.

    Each contestant continues in its own run, which must be long enough: a step after its end would
    do nothing, yet be measured. That is a RuntimeError.
    """
    for num in request_counts:
        case = Case("resident step", f"{num:,} requests", 0)
        runs = {
            name: _begun(bench.device, num, backend) for name, backend in bench.backends.items()
        }
        for name, (resident, _) in runs.items():
            bench.add(case, name, resident.step)
        bench.add_copy(case, num * 32)
        yield case
        for name, (resident, planned) in runs.items():
            done = resident.end().num_steps
            if name in case.contestants and not 0 < done < planned:
                raise RuntimeError(f"{name}: {done} steps of {planned}: some did nothing")


def _begun(device: torch.device, num: int, backend: Backend) -> tuple[ResidentDecode, int]:
    """Begin a run of `num` requests; returns it with its number of steps."""
    longest = PROMPT_TOKENS + BLOCK_SIZE + MAX_STEPS
    num_blocks = 1 + num * -(-longest // BLOCK_SIZE)
    cache = KVCacheConfig(num_blocks, (KVCacheGroup(("layer",), SPEC),))
    config = ManagerConfig(cache, longest + 1, enable_caching=False)
    implementation = kvfast.implementation()
    manager = implementation.create(config)
    batched = implementation.batched(manager)
    handles = []
    for number in range(num):
        prompt = [1] * (PROMPT_TOKENS + number % BLOCK_SIZE)
        request = implementation.make_request(manager, RequestInput(f"r{number}", prompt))
        handles.append(batched.register(request))
    tables = DeviceTables(config, max_requests=num, max_tokens=num, device=device, backend=backend)
    plan = StepPlan(new=handles)
    rows = torch.zeros((num_blocks, 4), dtype=torch.int32)
    result = batched.step(plan, StepOutput(rows))
    tables.write(rows[: result.num_deltas])
    tables.set_lengths(handles, list(result.num_scheduled_tokens))
    batched.append(handles, [1] * num)
    resident = ResidentDecode(tables, max_blocks=num_blocks)
    return resident, resident.begin(batched, handles, MAX_STEPS)
