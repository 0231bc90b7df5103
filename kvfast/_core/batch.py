"""Whole engine steps over arrays: the manager's own calls without a Python call for each request.

See `kvspec.batched.BatchedManager` for what each call promises. Legality is decided here, over
arrays; what exactly is wrong with an illegal call is then said by the checks of the contract.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import fields
from types import SimpleNamespace
from typing import Any, NoReturn

from kvspec import _batch_checks as contract
from kvspec._arrays import beginning, delta_rows, view_of
from kvspec._check import COUNT_MAX, int_at_least
from kvspec.batched import Array, Ints, StepOutput, StepPlan, StepResult
from kvspec.blocks import KVCacheBlocks
from kvspec.errors import InvalidArgumentError
from kvspec.interface import Capabilities, KVCacheManager
from kvspec.request import Request

from .manager import FastManager
from .request import FastRequest
from .steps import Steps

MANY = 1 << 62  # as in under_way
SET_SCHEDULED, SET_HITS, SET_SLOTS, SET_DELTAS, SET_LEFT = (
    vars(StepResult)[field.name].__set__ for field in fields(StepResult)
)


class FastBatch(Steps):
    """What each batched call does; see `guarded_batch` for whose turn it is.

    `shown` is the manager as the caller gave it.
    """

    def __init__(
        self, manager: FastManager, capabilities: Capabilities, shown: KVCacheManager
    ) -> None:
        super().__init__(manager)
        self.shown = shown
        self.capabilities = capabilities

    def facade(self) -> Any:
        """What the contract's checks read of a batched manager."""
        requests = {h: request for h, request in enumerate(self.requests) if request is not None}
        implementation = SimpleNamespace(capabilities=self.capabilities)
        manager = SimpleNamespace(config=self.core.config, get_blocks=self.blocks_of)
        return SimpleNamespace(requests=requests, manager=manager, implementation=implementation)

    def blocks_of(self, request: FastRequest) -> KVCacheBlocks:
        """The block lists of a request, in a call that has its turn already."""
        return self.core.lists_of(request)

    def illegal(self, field: str, value: object) -> NoReturn:
        """The contract's checks, which read it again, found nothing wrong with it."""
        raise InvalidArgumentError(field, value, "the same each time it is read")

    # Requests and their handles.

    def do_register(self, request: Request) -> int:
        """A handle for the request (KV-BATCH-4)."""
        mine = self.core.own(request)
        if mine.request_id in self.handle_of_id:
            raise InvalidArgumentError("request", mine.request_id, "one that is not registered yet")
        self.core.turn.changes()
        handle = self.add(mine)
        self.core.turn.changed()
        return handle

    def do_unregister(self, handles: Ints) -> None:
        """Forget requests that hold nothing (KV-BATCH-4)."""
        self.chosen(handles)
        for i in range(self.size):
            if self.core.allocator.holds_blocks(self.core.row_of(self.request_at(i))):
                allowed = "one that holds no blocks"
                raise InvalidArgumentError(f"handles[{i}]", self.handles[i], allowed)
        self.core.turn.changes()
        for i in range(self.size):
            self.remove(self.handles[i])
        self.core.turn.changed()

    def do_request_of(self, handle: int) -> Request:
        """The registered request."""
        if type(handle) is int and 0 <= handle < len(self.requests):
            request = self.requests[handle]
            if request is not None:
                return request
        known = self.known()
        found: Request = known[contract.registered("handle", handle, known)]
        return found

    def known(self) -> dict[int, Any]:
        """The registered requests by handle."""
        requests: dict[int, Any] = self.facade().requests
        return requests

    def chosen(self, handles: Ints) -> None:
        """Entries for these handles."""
        self.start_call()
        if not self.add_handles(handles):
            contract.handles_of("handles", handles, self.known())
            self.illegal("handles", handles)

    def do_append(self, handles: Ints, token_ids: Ints, counts: Ints | int) -> None:
        """Append tokens to each request (KV-BATCH-12)."""
        self.chosen(handles)
        if not self.set_counts(0, counts, 0):
            contract.tokens_of(token_ids, counts, self.size)
            self.illegal("counts", counts)
        wanted = 0
        for i in range(self.size):
            wanted = min(wanted + self.counts[i], MANY)
        num_tokens = self.copy_in(beginning(token_ids, wanted + 1))
        legal = num_tokens == wanted
        for i in range(max(num_tokens, 0)):
            legal = legal and self.handles[self.size + i] >= 0
        if not legal:
            contract.tokens_of(token_ids, counts, self.size)
            self.illegal("token_ids", token_ids)
        for i in range(self.size):
            self.request_at(i).reserve(self.counts[i])
        self.core.turn.changes()
        at = self.size
        for i in range(self.size):
            request = self.request_at(i)
            request.append_longs(self.handles, at, self.counts[i])
            at += self.counts[i]
        self.core.turn.changed()

    def do_rewind(self, handles: Ints, num_tokens: Ints | int) -> None:
        """Take back computed tokens of each request (KV-BATCH-12)."""
        self.chosen(handles)
        if not self.set_counts(0, num_tokens, 0) or not self.may_rewind():
            chosen = [self.handles[i] for i in range(self.size)]
            contract.rewinds_of(chosen, num_tokens, self.known())
            self.illegal("num_tokens", num_tokens)
        self.core.turn.changes()
        self.rewind_all()
        self.core.turn.changed()

    def do_lookup(self, handles: Ints) -> array[int]:
        """Hit lengths in tokens (KV-BATCH-12)."""
        self.chosen(handles)
        for i in range(self.size):
            if not self.is_scheduled(self.request_at(i)):
                contract.check_scheduling(f"handles[{i}]", self.request_at(i))
                self.illegal(f"handles[{i}]", self.handles[i])
        found = array("q", bytes(8 * self.size))
        view = found
        for i in range(self.size):
            view[i] = self.find_hit(self.request_at(i))
        self.core.turn.changes()
        for i in range(self.size):
            self.count_hit(self.request_at(i), view[i])
        self.core.turn.changed()
        return found

    # Steps.

    def do_decode(
        self,
        handles: Ints,
        num_new_tokens: Ints | int,
        num_lookahead_tokens: int,
        output: StepOutput | None,
    ) -> StepResult:
        """A step of decoding requests only; without a plan, which takes longer to make."""
        self.core.ask_clock()
        self.open_outputs(output)
        self.budget = COUNT_MAX
        self.lookahead = self.core.counted("num_lookahead_tokens", num_lookahead_tokens)
        self.start_call()
        self.end_finished = self.end_preempted = 0
        legal = self.add_handles(handles) and self.set_counts(0, num_new_tokens, 1)
        self.end_under_way = self.size
        if not legal or not self.all_legal():
            plan = StepPlan(decoding=handles, decode_tokens=num_new_tokens, starts_step=False)
            contract.check_step(self.facade(), plan, None)
            self.illegal("decoding", handles)
        return self.done(False)

    def do_free(self, handles: Ints) -> None:
        """A step of finished requests only."""
        self.give_all_back(handles, False)

    def do_preempt(self, handles: Ints) -> None:
        """A step of preempted requests only."""
        self.give_all_back(handles, True)

    def give_all_back(self, handles: Ints, preempts: bool) -> None:
        """A step of finished, or of preempted requests; without a plan."""
        self.start_call()
        legal = self.add_handles(handles)
        self.end_finished = 0 if preempts else self.size
        self.end_preempted = self.end_under_way = self.size
        if not legal or not self.all_legal():
            finished, preempted = ((), handles) if preempts else (handles, ())
            plan = StepPlan(finished=finished, preempted=preempted, starts_step=False)
            contract.check_step(self.facade(), plan, None)
            self.illegal("preempted" if preempts else "finished", handles)
        self.core.turn.changes()
        self.perform()
        self.core.turn.changed()

    def do_step(self, plan: StepPlan, output: StepOutput | None) -> StepResult:
        """One after another: finished, preempted, decoding, prefilling, new (KV-BATCH-1)."""
        if not isinstance(plan, StepPlan):
            raise InvalidArgumentError("plan", plan, "a StepPlan")
        self.core.ask_clock()
        self.open_outputs(output)
        self.read_options(plan)
        starts_step = plan.starts_step
        if not self.read_entries(plan) or not self.all_legal():
            contract.check_step(self.facade(), plan, output)
            self.illegal("plan", plan)
        return self.done(starts_step)

    def done(self, starts_step: bool) -> StepResult:
        """The result of a legal step, which is done here if its outputs have room, too."""
        if self.slots:
            self.check_room()
        self.core.turn.changes()
        if starts_step:
            self.core.allocator.forget_step()
        self.perform()
        for g, view in enumerate(self.slots):
            if view is not None:
                self.write_slots(g, view)
        written = left = 0
        if self.has_rows:
            written = self.write_rows()
            left = self.rows_left
        result = result_of(self.scheduled, self.hits, self.granted, written, left)
        self.core.turn.changed()
        return result

    def read_options(self, plan: StepPlan) -> None:
        """What concerns all entries of a step."""
        core = self.core
        self.budget = core.counted("token_budget", plan.token_budget)
        self.lookahead = core.counted("num_lookahead_tokens", plan.num_lookahead_tokens)
        self.reserved = core.counted("reserved_blocks", plan.reserved_blocks)
        core.check_flag("full_sequence_must_fit", plan.full_sequence_must_fit)
        core.check_flag("stops_at_refusal", plan.stops_at_refusal)
        core.check_flag("starts_step", plan.starts_step)
        self.whole_must_fit = plan.full_sequence_must_fit
        self.stops_at_refusal = plan.stops_at_refusal

    def read_entries(self, plan: StepPlan) -> bool:
        """The handles and counts of a plan; False where they are not legal."""
        self.start_call()
        if not self.add_handles(plan.finished):
            return False
        self.end_finished = self.size
        if not self.add_handles(plan.preempted):
            return False
        self.end_preempted = self.size
        if not self.add_handles(plan.decoding) or not self.set_counts(
            self.end_preempted, plan.decode_tokens, 1
        ):
            return False
        end = self.size
        if not self.add_handles(plan.prefilling) or not self.set_counts(
            end, plan.prefill_tokens, 1
        ):
            return False
        self.end_under_way = self.size
        return self.add_handles(plan.new) and self.set_counts(
            self.end_under_way, plan.max_new_tokens, 1
        )

    def open_outputs(self, output: StepOutput | None) -> None:
        """Open the outputs for writing, before anything is decided: arrays may run code."""
        if output is not None:
            if not isinstance(output, StepOutput):
                raise InvalidArgumentError("output", output, "a StepOutput or None")
            if output.block_deltas is not None:
                self.rows = open_rows(output.block_deltas)
                self.has_rows = True
            if output.slot_mappings is not None:
                self.slots = self.open_slots(output.slot_mappings)

    def close_outputs(self) -> None:
        """Let go of the caller's memory."""
        if self.has_rows:
            self.rows = self.no_rows
            self.has_rows = False
        self.slots = self.no_slots

    def check_room(self) -> None:
        """Every slot mapping has room for all that the step may schedule (KV-BATCH-9)."""
        length = self.most_slots()
        for g, view in enumerate(self.slots):
            if view is not None and len(view) < length:
                self.undo()
                allowed = f"at least {length} slots long"
                raise InvalidArgumentError(f"slot_mappings[{g}]", len(view), allowed)

    def open_slots(self, given: Sequence[object]) -> list[memoryview | None]:
        """`mappings`; quickly, where it is all as it should be."""
        views: list[memoryview | None] = []
        is_usual = (type(given) is list or type(given) is tuple) and len(given) == self.num_groups
        for g, slots in enumerate(given if is_usual else ()):
            view = None if slots is None else view_of_slots(slots)
            is_usual = is_usual and (slots is None or (view is not None and self.has_slots(g)))
            views.append(view)
        return views if is_usual else contract.mappings(self.core.config, given)

    def has_slots(self, g: int) -> bool:
        """Whether the group's blocks hold one slot per token of the sequence (KV-BATCH-9)."""
        return self.core.shape.holds_tokens(g) and not self.core.shape.is_mamba(g)

    # What is told of block lists.

    def do_take_deltas(self, block_deltas: Array) -> int:
        """Report what was not reported yet, of all requests (KV-BATCH-11)."""
        self.rows = open_rows(block_deltas)
        self.has_rows = True
        num_rows = 0
        self.core.turn.changes()
        for handle, request in enumerate(self.requests):
            if request is not None:
                num_rows = self.report(handle, self.core.row_of(request), num_rows)
        self.core.turn.changed()
        return num_rows

    def do_num_pending_deltas(self) -> int:
        """Entries of all requests that were not reported yet."""
        return sum(
            self.rows_to_tell(handle, self.core.row_of(request))
            for handle, request in enumerate(self.requests)
            if request is not None
        )

    def do_next_free_blocks(self, num_blocks: int) -> array[int]:
        """The front of the free queue (KV-BATCH-13)."""
        int_at_least("num_blocks", num_blocks, 0, error=InvalidArgumentError)
        return array("i", self.core.pool.first_free(num_blocks))

    def do_list_lengths(self, handles: Ints) -> array[int]:
        """Lengths of block lists, handle after handle, group after group (KV-BATCH-13)."""
        self.chosen(handles)
        found = array("i", bytes(4 * self.size * self.num_groups))
        view = found
        tables = self.core.tables
        for i in range(self.size):
            row = self.core.row_of(self.request_at(i))
            for g in range(self.num_groups if row >= 0 else 0):
                view[i * self.num_groups + g] = tables.length[row * self.num_groups + g]
        return found


def open_rows(given: object) -> memoryview:
    """`delta_rows`, of what engines pass without asking whether it is something else."""
    view = view_of(given)
    if (
        view is not None
        and view.ndim == 2
        and view.format == "i"
        and not view.readonly
        and view.c_contiguous
        and view.shape[1] == 4  # type: ignore[index]  # it has two dimensions
    ):
        return view
    return delta_rows("block_deltas", given)


def view_of_slots(given: object) -> memoryview | None:
    """A writable view of 64-bit ints, if it is the usual one."""
    view = view_of(given)
    if (
        view is not None
        and view.ndim == 1
        and (view.format == "q" or view.format == "l")
        and view.itemsize == 8
        and not view.readonly
        and view.c_contiguous
    ):
        return view
    return None


def result_of(
    scheduled: array[int], hits: array[int], num_slots: int, num_deltas: int, num_left: int
) -> StepResult:
    """`StepResult`, whose own way of being made takes as long as a small step."""
    made = StepResult.__new__(StepResult)
    SET_SCHEDULED(made, scheduled)
    SET_HITS(made, hits)
    SET_SLOTS(made, num_slots)
    SET_DELTAS(made, num_deltas)
    SET_LEFT(made, num_left)
    return made
