"""Decode steps that the device decides alone, and the manager plays again (KV-DEV-15 … KV-DEV-17).

The host hands over the first free blocks, in the order in which its manager would take them. Then
each step is a few launches, always the same ones, so it can be captured in a CUDA graph: nothing is
asked of the host until the run ends.

    resident = ResidentDecode(tables, max_blocks=4096)
    for _ in range(resident.begin(batched, handles, max_steps=32)):
        step = resident.step()      # positions, slots, … of one token for each request
        ...                         # compute, sample; resident.left[…] = 0 ends a request
    run = resident.end()            # waits for the device
    resident.replay(run, batched, token_ids)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Literal

import torch

from kvfast.device.base.arguments import check_group, check_size, check_type, host_ints
from kvfast.device.base.backend import form_of
from kvfast.device.base.errors import ResidentOrderError, RunDifferenceError
from kvfast.device.resident import plan as plans
from kvfast.device.resident.state import NUM_STEPS, NUM_TAKEN, new_run, sizes_of
from kvfast.device.tables.handover import Handover
from kvfast.device.tables.input import counts_of
from kvfast.device.tables.tables import DeviceStep, DeviceTables
from kvspec.batched import BatchedManager, Ints, StepOutput, StepPlan
from kvspec.domains import COUNT_MAX, INT64_MAX, is_int
from kvspec.errors import InvalidArgumentError, UnsupportedError

__all__ = ["ResidentDecode", "ResidentRun"]


@dataclass(frozen=True)
class ResidentRun:
    """The result of a run.

    - `handles`: the requests, in their order. `granted`: how many tokens each had.
    - `num_steps`: steps in which some request had one.
    - `rows`: int32 [blocks taken, 4] on the host, the uses of taken blocks: handle, group, index,
      block, in the order in which they were taken.
    """

    handles: tuple[int, ...]
    granted: tuple[int, ...]
    num_steps: int
    rows: torch.Tensor

    def places(self, step: int) -> list[int]:
        """Return the places of the requests with a token in this step, an int in 0 … num_steps -
        1.
        """
        if not is_int(step) or not 0 <= step < self.num_steps:
            allowed = f"an int from 0 on, less than num_steps = {self.num_steps}"
            raise InvalidArgumentError("step", step, allowed)
        return [place for place, number in enumerate(self.granted) if number > step]


class ResidentDecode:
    """Runs of decode steps over one object's tables, which receive no other steps meanwhile.

    `max_blocks`: the most that a run takes. All memory is allocated here; when the tables have
    grown, the next `begin` allocates it again, and captured CUDA graphs are out of date. Groups of
    attention only: UnsupportedError for states (Mamba).

    Between `begin` and the end of `replay` no other call may change the manager, and no second tier
    may hold its blocks: what a run evicts is overwritten before it is reported.
    """

    def __init__(self, tables: DeviceTables, *, max_blocks: int) -> None:
        check_type("tables", tables, DeviceTables)
        check_size("max_blocks", max_blocks)
        plans.check_groups(tables.config)
        self.tables = tables
        self._handover = Handover(tables)
        self.max_blocks = max_blocks
        self._form = form_of(__package__, tables.backend)
        self._phase: Literal["idle", "running", "ended"] = "idle"
        self._handles: tuple[int, ...] = ()
        self._longest = 0
        self._allocate()

    def _allocate(self) -> None:
        tables = self.tables
        num_groups = len(self._handover.geometry.slot_groups)
        size = (tables.max_requests, num_groups, self.max_blocks)
        self._run = new_run(*size, tables.device)
        is_pinned = tables.device.type == "cuda"
        self._told = torch.zeros(len(self._run.told), dtype=torch.int32, pin_memory=is_pinned)

    # On the device.

    @property
    def left(self) -> torch.Tensor:
        """int32 [max_requests] on the device: tokens that each place may still have.

        In the order of the handles. Kernels may lower it after a step: 0 ends a request.
        """
        return self._run.left

    @property
    def num_steps(self) -> torch.Tensor:
        """int32 [1] on the device: steps that were carried out, the last one included."""
        return self._run.control[NUM_STEPS : NUM_STEPS + 1]

    def new_blocks(self, group: int) -> torch.Tensor | None:
        """Return the block each place took in the last step: int32 [max_requests] on the device.

        -1 where there was none. Zero them before the step writes (KV-GRP-10); None for groups
        without slots, which take none.
        """
        geometry = self._handover.geometry
        check_group("group", group, len(geometry.groups))
        if group not in geometry.slot_groups:
            return None
        return self._run.new_blocks[geometry.slot_groups.index(group)]

    # The host's part.

    def begin(
        self,
        batched: BatchedManager,
        handles: Ints,
        max_steps: int,
        *,
        max_tokens: Ints | int = COUNT_MAX,
    ) -> int:
        """Start a run of decoding requests; returns how many steps it can have.

        All have one token that is not computed yet. `max_tokens`: the most that each is granted,
        limited by the room for sampled tokens in `max_model_len`. No step is planned that might
        lack blocks, nor one in which a block without a key would leave a window. 0: no step is
        possible; there is no run then. Otherwise pending changes of block lists are sent, as by
        `take_deltas`.
        """
        self._expect("begin", "idle")
        check_type("batched", batched, BatchedManager)
        specs = batched.manager.config.managed_specs
        if specs != self.tables.config.managed_specs:
            raise InvalidArgumentError("batched", specs, "a manager of the tables' groups")
        chosen = self._handover.checked_handles("handles", handles)
        check_size("max_steps", max_steps)
        most = counts_of("max_tokens", max_tokens, len(chosen), COUNT_MAX)
        listed: list[int] = chosen.tolist()
        if len(listed) > self.tables.max_tokens:
            allowed = f"at most max_tokens = {self.tables.max_tokens} requests"
            raise InvalidArgumentError("handles", len(listed), allowed)
        lengths = batched.list_lengths(listed)
        computed = self._computed(batched, chosen)
        # Nothing is refused from here on.
        demand = self._demand(lengths, computed, most)
        num_steps = self._num_steps(batched, listed, demand, max_steps)
        if num_steps == 0:
            return 0
        reserve = batched.next_free_blocks(demand.num_blocks(num_steps))
        self._handover.begin(batched, chosen)
        if len(self._run.handles) != self.tables.max_requests:
            self._allocate()
        self._hand_over(chosen, demand, list(reserve), num_steps)
        self._handles, self._phase = tuple(listed), "running"
        self._longest = int(computed.max())
        return num_steps

    def _computed(self, batched: BatchedManager, handles: torch.Tensor) -> torch.Tensor:
        """Return the computed tokens of each; check that exactly one more is known."""
        lengths = self._handover.lengths_of(handles)
        for place, handle in enumerate(handles.tolist()):
            request = batched.request_of(handle)
            num_left = request.num_tokens - request.num_computed_tokens
            if num_left != 1:
                allowed = f"a request with 1 token left to compute, not {num_left}"
                raise InvalidArgumentError(f"handles[{place}]", handle, allowed)
            if lengths[place] != request.num_computed_tokens:
                allowed = (
                    f"one with {request.num_computed_tokens} computed tokens in the tables too,"
                    f" not {int(lengths[place])}"
                )
                raise InvalidArgumentError(f"handles[{place}]", handle, allowed)
        return lengths

    def _demand(
        self, list_lengths: Sequence[int], computed: torch.Tensor, most: torch.Tensor
    ) -> plans.Demand:
        geometry = self._handover.geometry
        lengths = torch.tensor(list(list_lengths), dtype=torch.int64)
        spans = [geometry.groups[g].span_tokens for g in geometry.slot_groups]
        longest = self.tables.config.max_model_len_tokens
        return plans.Demand(
            computed,
            torch.minimum(most, longest - 1 - computed).clamp(min=0),
            lengths.view(len(computed), len(geometry.groups))[:, list(geometry.slot_groups)].T,
            torch.tensor(spans, dtype=torch.int64)[:, None],
        )

    def _num_steps(
        self, batched: BatchedManager, handles: list[int], demand: plans.Demand, max_steps: int
    ) -> int:
        """Return the steps that surely have their blocks, and free no block without a key."""
        manager, geometry = batched.manager, self._handover.geometry
        num_steps = demand.num_steps(max_steps, min(self.max_blocks, manager.num_free_blocks))
        for handle in handles if plans.has_windows(manager.config) else ():
            request = batched.request_of(handle)
            num_steps = plans.steps_within_windows(manager, geometry, request, num_steps)
        return num_steps

    def _hand_over(
        self, handles: torch.Tensor, demand: plans.Demand, reserve: list[int], max_steps: int
    ) -> None:
        """Make one copy to the device. The last run has ended, so its buffer is free."""
        num = len(handles)
        self._told.zero_()
        control, told, left, _, lengths, blocks = self._split(self._told)
        control[:3] = torch.tensor([num, len(reserve), max_steps])
        told[:num] = handles
        left[:num] = demand.most
        lengths.view(self._run.lengths.shape)[:, :num] = demand.lengths
        blocks[: len(reserve)] = torch.tensor(reserve, dtype=torch.int32)
        self._run.told.copy_(self._told, non_blocking=True)

    def step(self) -> DeviceStep:
        """Do the next step: two kernels, the same launches in every step of every run (KV-DEV-13).

        It covers all requests of the run, in their order; an ended one has row and slot -1, length
        and position 0. After the planned steps no request continues. With Triton the call can be
        captured in a CUDA graph, whose replay then replaces it; `tables.padded` is the same in each
        step.
        """
        self._expect("step", "running")
        self._form.decide(self._handover.state, self._run, self._handover.geometry)
        self._longest = min(self._longest + 1, self.tables.config.max_model_len_tokens)
        return self._handover.outputs(len(self._handles), self._longest)

    def end(self) -> ResidentRun:
        """Return the result. Waits for the device; then the tables may receive steps again."""
        self._expect("end", "running")
        control, _, _, granted, _, reserve = self._split(self._run.told.cpu())
        num_taken, num_steps = int(control[NUM_TAKEN]), int(control[NUM_STEPS])
        numbers: list[int] = granted[: len(self._handles)].tolist()
        addresses = self._run.log[:num_taken].cpu()
        self._handover.end(self._handles, numbers)
        self._phase = "ended"
        rows = self._rows(addresses.long(), reserve[:num_taken].long())
        return ResidentRun(self._handles, tuple(numbers), num_steps, rows)

    def _split(self, told: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Split the message into its arrays, on the host."""
        num_groups, num_rows = self._run.lengths.shape
        return tuple(told.split_with_sizes(sizes_of(num_rows, num_groups, self.max_blocks)))

    def _rows(self, addresses: torch.Tensor, blocks: torch.Tensor) -> torch.Tensor:
        """Return the entry that each block was written to, from its address."""
        geometry = self._handover.geometry
        bases = torch.tensor(geometry.bases)
        groups = torch.bucketize(addresses, bases, right=True) - 1
        within = addresses - bases[groups]
        width = torch.tensor([group.width for group in geometry.groups])[groups]
        rows = [within // width, groups, within % width, blocks]
        return torch.stack(rows, dim=1).int()

    def replay(self, run: ResidentRun, batched: BatchedManager, token_ids: Sequence[Ints]) -> None:
        """Let the manager decide the same steps, and append the tokens (KV-DEV-17).

        `token_ids[k][i]`: what step k sampled for place i; read where i had a token. Ids that the
        manager queued for zeroing are taken: the run's kernels have zeroed what they needed to.
        RunDifferenceError where it decides otherwise; the step is done then, the rest is not.
        """
        self._expect("replay", "ended")
        check_type("run", run, ResidentRun)
        check_type("batched", batched, BatchedManager)
        tokens = _checked_tokens(run, token_ids)
        self._phase = "idle"
        output = torch.zeros((max(1, len(run.rows)), 4), dtype=torch.int32)
        told = 0
        for number in range(run.num_steps):
            places = run.places(number)
            handles = [run.handles[place] for place in places]
            result = batched.step(StepPlan(decoding=handles), StepOutput(output))
            granted = list(result.num_scheduled_tokens)
            rows = output[: result.num_deltas]
            if 0 in granted or result.num_deltas_left:
                refused = tuple(compress(handles, (not num for num in granted)))
                raise RunDifferenceError(number, "refused", refused, ())
            ours = run.rows[told : told + len(rows)]
            if not torch.equal(rows, ours):
                raise RunDifferenceError(number, "took", _tuples(rows), _tuples(ours))
            told += len(rows)
            batched.append(handles, [tokens[number][place] for place in places])
        if told != len(run.rows):
            raise RunDifferenceError(run.num_steps, "took", (), _tuples(run.rows[told:]))
        _take_new_block_ids(batched)

    def _expect(self, call: str, phase: Literal["idle", "running", "ended"]) -> None:
        if self._phase != phase:
            raise ResidentOrderError(call, self._phase, phase)


def _checked_tokens(run: ResidentRun, token_ids: Sequence[Ints]) -> list[list[int]]:
    """Check the tokens of all steps, each of all places."""
    is_number = isinstance(token_ids, torch.Tensor) and token_ids.dim() == 0  # it has no len()
    is_sequence = isinstance(token_ids, (Sequence, torch.Tensor)) and not is_number
    if not is_sequence or len(token_ids) < run.num_steps:
        raise InvalidArgumentError("token_ids", token_ids, f"tokens of {run.num_steps} steps")
    found = []
    for number in range(run.num_steps):
        field = f"token_ids[{number}]"
        given = token_ids[number]
        tokens = host_ints(field, given)
        if len(tokens) != len(run.handles):
            raise InvalidArgumentError(field, given, f"{len(run.handles)} tokens, one per request")
        found.append(counts_of(field, tokens, len(tokens), INT64_MAX).tolist())
    return found


def _take_new_block_ids(batched: BatchedManager) -> None:
    try:
        batched.manager.take_new_block_ids()
    except UnsupportedError:  # it queues none
        return


def _tuples(rows: torch.Tensor) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(row) for row in rows.tolist())
