"""The implementation of batched calls (KV-BATCH-*).

Legality is decided over arrays. The contract's checks then report what is wrong with an illegal
call.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, NoReturn

from kvspec.batched import Array, Ints, StepOutput, StepPlan, StepResult
from kvspec.blocks import KVCacheBlocks
from kvspec.checks import batch as contract
from kvspec.domains import COUNT_MAX, int_at_least
from kvspec.errors import InvalidArgumentError
from kvspec.interface import Capabilities
from kvspec.request import Request

from . import following, hot, objects
from .ahead import Ahead
from .checks import Checks
from .core import Core
from .entries import Entries
from .outputs import Outputs
from .registry import Registry
from .request import FastRequest
from .running import Running
from .steps import Steps
from .turn import Turn

MANY = 1 << 62  # as in running


class BatchCalls:
    """The batched calls of one manager, in a turn that was taken."""

    def __init__(self, core: Core, checks: Checks, turn: Turn, capabilities: Capabilities) -> None:
        self.core = core
        self.checks = checks
        self.turn = turn
        self.capabilities = capabilities
        self.num_groups = self.core.num_groups
        self.registry = Registry(core, turn)
        self.entries = Entries(self.registry)
        self.ahead = Ahead(core, turn, self.registry, self.entries, objects.Rows())
        self.running = Running(core, self.registry, self.entries, self.ahead)
        self.steps = Steps(core, self.registry, self.entries, self.running)
        self.outputs = Outputs(core, self.registry, self.entries, self.ahead)

    def leave(self) -> None:
        """End a call."""
        self.outputs.close()
        self.turn.give_back()

    def facade(self) -> Any:
        """Return the part of a batched manager that the contract's checks read."""
        handles = enumerate(self.registry.requests)
        requests = {h: request for h, request in handles if request is not None}
        implementation = SimpleNamespace(capabilities=self.capabilities)
        manager = SimpleNamespace(config=self.core.plan.config, get_blocks=self.blocks_of)
        return SimpleNamespace(requests=requests, manager=manager, implementation=implementation)

    def blocks_of(self, request: FastRequest) -> KVCacheBlocks:
        """Return the block lists of a request, in a call that already has its turn."""
        return self.core.lists_of(request)

    def illegal(self, field: str, value: object) -> NoReturn:
        """Raise for a value in which the contract's checks found nothing wrong."""
        raise InvalidArgumentError(field, value, "the same each time it is read")

    # Requests and their handles.

    def register(self, request: Request) -> int:
        """Return a handle for the request (KV-BATCH-4)."""
        registry = self.registry
        mine = self.checks.own(request)
        if mine.request_id in registry.handle_of_id:
            raise InvalidArgumentError("request", mine.request_id, "one that is not registered yet")
        self.turn.changes()
        handle = registry.add(mine)
        self.turn.changed()
        return handle

    def unregister(self, handles: Ints) -> None:
        """Forget requests that hold nothing (KV-BATCH-4)."""
        entries = self.entries
        self.chosen(handles)
        for i in range(entries.size):
            if self.core.allocator.holds_blocks(self.core.rows.of(entries.request_at(i))):
                allowed = "one that holds no blocks"
                raise InvalidArgumentError(f"handles[{i}]", entries.handles[i], allowed)
        self.turn.changes()
        for i in range(entries.size):
            self.registry.remove(entries.handles[i])
        self.turn.changed()

    def request_of(self, handle: int) -> Request:
        """Return the registered request."""
        registry = self.registry
        if type(handle) is int and 0 <= handle < len(registry.requests):
            request = registry.requests[handle]
            if request is not None:
                return request
        known = self.known()
        found: Request = known[contract.registered("handle", handle, known)]
        return found

    def known(self) -> dict[int, Any]:
        """Return the registered requests by handle."""
        requests: dict[int, Any] = self.facade().requests
        return requests

    def chosen(self, handles: Ints) -> None:
        """Fill the entries with these handles."""
        entries = self.entries
        entries.start_call()
        if not entries.add_handles(handles):
            contract.handles_of("handles", handles, self.known())
            self.illegal("handles", handles)

    def append(self, handles: Ints, token_ids: Ints, counts: Ints | int) -> None:
        """Append tokens to each request (KV-BATCH-12)."""
        entries = self.entries
        self.chosen(handles)
        if entries.size > 0 and self.core.is_given:  # KV-REQ-6
            raise InvalidArgumentError(
                "handles[0]", entries.handles[0], "one of a request with tokens"
            )
        if not entries.set_counts(0, counts, 0):
            contract.tokens_of(token_ids, counts, entries.size)
            self.illegal("counts", counts)
        wanted = 0
        for i in range(entries.size):
            wanted = min(wanted + entries.counts[i], MANY)
        num_tokens = entries.copy_in(token_ids, wanted + 1)
        legal = num_tokens == wanted
        for i in range(max(num_tokens, 0)):
            legal = legal and entries.handles[entries.size + i] >= 0
        if not legal:
            contract.tokens_of(token_ids, counts, entries.size)
            self.illegal("token_ids", token_ids)
        for i in range(entries.size):
            entries.request_at(i).reserve(entries.counts[i])
        self.turn.changes()
        at = entries.size
        for i in range(entries.size):
            request = entries.request_at(i)
            request.append_longs(entries.handles, at, entries.counts[i])
            at += entries.counts[i]
        self.turn.changed()

    def follow(
        self,
        handles: Ints,
        num_tokens: Ints | int,
        hashes: Sequence[bytes],
        num_prompt_tokens: Ints | int | None,
    ) -> None:
        """Set counts and add hashes of newly full blocks (KV-BATCH-14)."""
        entries = self.entries
        config = self.core.plan.config
        contract.check_follows(config, self.capabilities)
        self.chosen(handles)
        read = following.read_follow(entries, config, num_tokens, hashes, num_prompt_tokens)
        self.turn.changes()
        following.follow_all(entries, read[0], read[1])
        self.turn.changed()

    def rewind(self, handles: Ints, num_tokens: Ints | int) -> None:
        """Take back computed tokens of each request (KV-BATCH-12)."""
        entries = self.entries
        self.chosen(handles)
        if not entries.set_counts(0, num_tokens, 0) or not self.running.may_rewind():
            chosen = [entries.handles[i] for i in range(entries.size)]
            contract.rewinds_of(chosen, num_tokens, self.known())
            self.illegal("num_tokens", num_tokens)
        self.turn.changes()
        self.running.rewind_all()
        self.turn.changed()

    def lookup(self, handles: Ints) -> array[int]:
        """Return the hit lengths in tokens (KV-BATCH-12)."""
        entries = self.entries
        self.chosen(handles)
        for i in range(entries.size):
            if not self.running.is_scheduled(entries.request_at(i)):
                contract.check_scheduling(f"handles[{i}]", entries.request_at(i))
                self.illegal(f"handles[{i}]", entries.handles[i])
        found = array("q", bytes(8 * entries.size))
        view = found
        if self.core.reports_asked:  # KV-POL-25: finding is telling
            self.turn.changes()
        for i in range(entries.size):
            view[i] = self.steps.find_hit(entries.request_at(i))
        self.turn.changes()
        for i in range(entries.size):
            if not self.core.counts_admitted:  # KV-POL-18
                self.steps.count_hit(entries.request_at(i), view[i])
        self.turn.changed()
        return found

    # Steps.

    def admit(
        self,
        handles: Ints,
        max_new: Ints | int,
        budget: int,
        lookahead: int,
        whole_must_fit: bool,
        reserved: int,
        stops: bool,
        output: StepOutput | None,
    ) -> StepResult:
        """Make a step of new requests only, without a plan, which would take longer to make."""
        entries = self.entries
        self.core.ask_clock()
        self.outputs.open(output)
        self.read_options(budget, lookahead, reserved, whole_must_fit, stops)
        entries.start_call()
        entries.end_finished = entries.end_preempted = entries.end_running = 0
        legal = entries.add_handles(handles) and entries.set_counts(0, max_new, 1)
        if not legal or not self.steps.all_legal():
            plan = StepPlan(new=handles, max_new_tokens=max_new, starts_step=False)
            contract.check_step(self.facade(), plan, None)
            self.illegal("new", handles)
        return self.done(False)

    def decode(
        self,
        handles: Ints,
        num_new_tokens: Ints | int,
        num_lookahead_tokens: int,
        output: StepOutput | None,
    ) -> StepResult:
        """Make a step of decoding requests only, without a plan, which would take longer."""
        entries = self.entries
        self.core.ask_clock()
        self.outputs.open(output)
        self.steps.budget = COUNT_MAX
        self.ahead.lookahead = self.checks.counted("num_lookahead_tokens", num_lookahead_tokens)
        entries.start_call()
        entries.end_finished = entries.end_preempted = 0
        legal = entries.add_handles(handles) and entries.set_counts(0, num_new_tokens, 1)
        entries.end_running = entries.size
        if not legal or not self.steps.all_legal():
            plan = StepPlan(decoding=handles, decode_tokens=num_new_tokens, starts_step=False)
            contract.check_step(self.facade(), plan, None)
            self.illegal("decoding", handles)
        return self.done(False)

    def free(self, handles: Ints) -> None:
        """Make a step of finished requests only."""
        self.give_all_back(handles, False)

    def preempt(self, handles: Ints) -> None:
        """Make a step of preempted requests only."""
        self.give_all_back(handles, True)

    def give_all_back(self, handles: Ints, preempts: bool) -> None:
        """Make a step of finished, or of preempted requests, without a plan."""
        entries = self.entries
        entries.start_call()
        legal = entries.add_handles(handles)
        entries.end_finished = 0 if preempts else entries.size
        entries.end_preempted = entries.end_running = entries.size
        if not legal or not self.steps.all_legal():
            finished, preempted = ((), handles) if preempts else (handles, ())
            plan = StepPlan(finished=finished, preempted=preempted, starts_step=False)
            contract.check_step(self.facade(), plan, None)
            self.illegal("preempted" if preempts else "finished", handles)
        self.turn.changes()
        self.steps.perform()
        self.turn.changed()

    def step(self, plan: StepPlan, output: StepOutput | None) -> StepResult:
        """Handle finished, preempted, decoding, prefilling, new in turn (KV-BATCH-1)."""
        if not isinstance(plan, StepPlan):
            raise InvalidArgumentError("plan", plan, "a StepPlan")
        self.core.ask_clock()
        self.outputs.open(output)
        self.read_options(
            plan.token_budget,
            plan.num_lookahead_tokens,
            plan.reserved_blocks,
            plan.full_sequence_must_fit,
            plan.stops_at_refusal,
        )
        starts_step = plan.starts_step
        self.checks.check_flag("starts_step", starts_step)
        if not self.read_entries(plan) or not self.steps.all_legal():
            contract.check_step(self.facade(), plan, output)
            self.illegal("plan", plan)
        return self.done(starts_step)

    def done(self, starts_step: bool) -> StepResult:
        """Do a legal step if its outputs have room; returns its result."""
        steps, outputs = self.steps, self.outputs
        if outputs.slots:
            try:
                outputs.check_room(steps.most_slots())
            except BaseException:
                self.ahead.undo()
                raise
        self.turn.changes()
        if starts_step:
            self.core.forget_step()
        entries, results = self.entries, steps.results
        results.start(entries.size - entries.end_preempted, entries.size - entries.end_running)
        steps.perform()
        written = outputs.write()
        result = results.told(self.running.granted, written, outputs.rows_left)
        self.turn.changed()
        return result

    def read_options(
        self, budget: int, lookahead: int, reserved: int, whole_must_fit: bool, stops: bool
    ) -> None:
        """Read the options that apply to all entries of a step."""
        checks = self.checks
        self.steps.budget = checks.counted("token_budget", budget)
        self.ahead.lookahead = checks.counted("num_lookahead_tokens", lookahead)
        self.steps.reserved = checks.counted("reserved_blocks", reserved)
        checks.check_flag("full_sequence_must_fit", whole_must_fit)
        checks.check_flag("stops_at_refusal", stops)
        self.steps.whole_must_fit = whole_must_fit
        self.steps.stops_at_refusal = stops

    def read_entries(self, plan: StepPlan) -> bool:
        """Read the handles and counts of a plan; returns False if they are illegal."""
        entries = self.entries
        entries.start_call()
        if not entries.add_handles(plan.finished):
            return False
        entries.end_finished = entries.size
        if not entries.add_handles(plan.preempted):
            return False
        entries.end_preempted = entries.size
        if not entries.add_handles(plan.decoding) or not entries.set_counts(
            entries.end_preempted, plan.decode_tokens, 1
        ):
            return False
        end = entries.size
        if not entries.add_handles(plan.prefilling) or not entries.set_counts(
            end, plan.prefill_tokens, 1
        ):
            return False
        entries.end_running = entries.size
        return entries.add_handles(plan.new) and entries.set_counts(
            entries.end_running, plan.max_new_tokens, 1
        )

    # The reporting of block lists.

    def take_deltas(self, block_deltas: Array) -> int:
        """Report what was not reported yet, of all requests (KV-BATCH-11)."""
        self.outputs.rows.open(block_deltas)
        registry, num_rows = self.registry, 0
        self.turn.changes()
        for handle in range(len(registry.requests)):
            request = registry.requests[handle]
            if request is not None and registry.fields[hot.STRIDE * handle + hot.RUNS] <= 1:
                num_rows = self.outputs.report(handle, self.core.rows.of(request), num_rows)
        self.turn.changed()
        return num_rows

    def num_pending_deltas(self) -> int:
        """Count the entries of all requests not yet reported."""
        registry = self.registry
        return sum(
            registry.num_unreported(handle, self.core.rows.of(request))
            for handle, request in enumerate(registry.requests)
            if request is not None
        )

    def next_free_blocks(self, num_blocks: int, after: int | None) -> array[int]:
        """Return the front of the free queue, or what follows (KV-BATCH-13, KV-BATCH-15)."""
        int_at_least("num_blocks", num_blocks, 0, error=InvalidArgumentError)
        left = 0
        if after is not None:
            left = self.checks.checked_block(after)
            if left == 0 or self.core.pool.refs(left) > 0:
                raise InvalidArgumentError("after", left, "a block in the free queue")
        return array("i", self.core.pool.first_free(num_blocks, left))

    def list_lengths(self, handles: Ints) -> array[int]:
        """Return the lengths of block lists, by handle, then by group (KV-BATCH-13)."""
        entries = self.entries
        self.chosen(handles)
        found = array("i", bytes(4 * entries.size * self.num_groups))
        view = found
        tables = self.core.tables
        for i in range(entries.size):
            row = self.core.rows.of(entries.request_at(i))
            for g in range(self.num_groups if row >= 0 else 0):
                view[i * self.num_groups + g] = tables.length[row * self.num_groups + g]
        return found
