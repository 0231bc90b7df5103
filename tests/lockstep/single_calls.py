"""Whole steps written down once more from the rules, as an engine would: calls, and two tables.

Only legal plans: what is illegal is checked elsewhere. Nothing of `kvspec.sequential` is used.
"""

from __future__ import annotations

from array import array
from typing import Any

from kvspec.batched import StepOutput, StepPlan, StepResult
from kvspec.errors import InvalidArgumentError, UnknownBlockError
from kvspec.interface import Implementation, KVCacheManager
from kvspec.request import Request, RequestStatus


def counts(given: Any, length: int) -> list[int]:
    """One count for each."""
    return [given] * length if isinstance(given, int) else list(given)


class SingleCalls:
    """A scheduler without batches. `told[request_id]`: per group, the entries that were told."""

    def __init__(self, implementation: Implementation, manager: KVCacheManager) -> None:
        self.implementation = implementation
        self.manager = manager
        self.slots: list[Request | None] = []
        self.given_back: list[int] = []
        self.told: dict[str, list[list[int]]] = {}

    def register(self, request: Request) -> int:
        """The place that has been empty for longest, else one more."""
        if not self.given_back:
            self.slots.append(request)
            return len(self.slots) - 1
        handle, *self.given_back = self.given_back
        self.slots[handle] = request
        return handle

    def unregister(self, handles: Any) -> None:
        """Empty these places."""
        for handle in handles:
            self.told.pop(self.request_of(handle).request_id, None)
            self.slots[handle] = None
            self.given_back = [*self.given_back, handle]

    def request_of(self, handle: int) -> Request:
        """The request at this place."""
        request = self.slots[handle]
        if request is None:
            raise LookupError(handle)
        return request

    def append(self, handles: Any, token_ids: Any, counts_of: Any = 1) -> None:
        """Some tokens for each."""
        tokens = list(token_ids)
        for handle, number in zip(handles, counts(counts_of, len(handles)), strict=True):
            mine, tokens = tokens[:number], tokens[number:]
            self.implementation.append_tokens(self.manager, self.request_of(handle), mine)

    def follow(
        self, handles: Any, num_tokens: Any, hashes: Any = (), *, num_prompt_tokens: Any = None
    ) -> None:
        """New lengths, each with the hashes of its newly full blocks."""
        config, given = self.manager.config, list(hashes)
        implementation: Any = self.implementation
        for place, number in enumerate(counts(num_tokens, len(handles))):
            request = self.request_of(handles[place])
            prompt = num_prompt_tokens
            if isinstance(prompt, list):
                prompt = prompt[place]
            hashed = max(number - config.hash_lookahead_tokens, 0) if config.enable_caching else 0
            full = hashed // (config.hash_block_size_tokens or 1)
            missing = max(full - len(request.block_hashes), 0)
            mine, given = given[:missing], given[missing:]
            implementation.follow(self.manager, request, number, mine, num_prompt_tokens=prompt)

    def rewind(self, handles: Any, num_tokens: Any) -> None:
        """Fewer computed tokens for each."""
        for handle, number in zip(handles, counts(num_tokens, len(handles)), strict=True):
            self.request_of(handle).num_computed_tokens -= number

    def lookup(self, handles: Any) -> array[int]:
        """Lengths of hits."""
        hits = (self.manager.get_computed_blocks(self.request_of(handle)) for handle in handles)
        return array("q", (hit.hit_length_tokens for hit in hits))

    def step(self, plan: StepPlan, output: StepOutput | None = None) -> StepResult:
        """Calls in the order of the plan; then what was granted is written out."""
        if plan.starts_step:
            self.manager.new_step_starts()
        for handles, status in (
            (plan.finished, RequestStatus.WAITING),
            (plan.preempted, RequestStatus.PREEMPTED),
        ):
            for handle in list(handles):  # type: ignore[arg-type]
                request = self.request_of(handle)
                self.manager.free(request)
                request.num_computed_tokens = 0
                request.num_preemptions += int(status is RequestStatus.PREEMPTED)
                request.status = status
                self.told.pop(request.request_id, None)
        granted: list[tuple[int, int]] = []
        for given, numbers in (
            (plan.decoding, plan.decode_tokens),
            (plan.prefilling, plan.prefill_tokens),
        ):
            entries = list(given)  # type: ignore[arg-type]
            for handle, number in zip(entries, counts(numbers, len(entries)), strict=True):
                request = self.request_of(handle)
                answer = self.manager.allocate_slots(
                    request, number, num_lookahead_tokens=plan.num_lookahead_tokens
                )
                granted.append((handle, 0 if answer is None else number))
                request.num_computed_tokens += granted[-1][1]
        hits = self._admit(plan, granted)
        return self._written(granted, hits, output or StepOutput())

    def admit(self, handles: Any, most: Any) -> StepResult:
        """A step of new requests."""
        return self.step(StepPlan(new=handles, max_new_tokens=most, starts_step=False))

    def decode(self, handles: Any, numbers: Any) -> StepResult:
        """A step of running ones."""
        return self.step(StepPlan(decoding=handles, decode_tokens=numbers, starts_step=False))

    def free(self, handles: Any) -> None:
        """A step of those that end."""
        self.step(StepPlan(finished=handles, starts_step=False))

    def preempt(self, handles: Any) -> None:
        """A step of those that give way."""
        self.step(StepPlan(preempted=handles, starts_step=False))

    def _admit(self, plan: StepPlan, granted: list[tuple[int, int]]) -> list[int]:
        """New requests, first come first served."""
        entries, config = list(plan.new), self.manager.config  # type: ignore[arg-type]
        hits = []
        stopped = False
        for handle, most in zip(entries, counts(plan.max_new_tokens, len(entries)), strict=True):
            used = sum(number for _, number in granted)
            if used >= plan.token_budget or stopped:
                granted.append((handle, 0))
                hits.append(0)
                continue
            request = self.request_of(handle)
            hit = self.manager.get_computed_blocks(request)
            found = hit.hit_length_tokens
            number = min(most, request.num_tokens - found, plan.token_budget - used)
            answer = self.manager.allocate_slots(
                request,
                number,
                num_new_computed_tokens=found,
                new_computed_blocks=hit.blocks,
                num_lookahead_tokens=plan.num_lookahead_tokens,
                full_sequence_must_fit=plan.full_sequence_must_fit,
                reserved_blocks=plan.reserved_blocks,
                has_scheduled_reqs=used > 0,
            )
            if answer is None:
                granted.append((handle, 0))
                hits.append(0)
                stopped = plan.stops_at_refusal
            else:
                if config.policy.lookups_counted == "admitted":
                    self.manager.record_prefix_cache_stats(request, found)
                granted.append((handle, number))
                hits.append(found)
                request.num_computed_tokens = found + number
                request.status = RequestStatus.RUNNING
        return hits

    def _written(
        self, granted: list[tuple[int, int]], hits: list[int], output: StepOutput
    ) -> StepResult:
        config = self.manager.config
        for group, mapping in enumerate(output.slot_mappings or ()):
            size = config.kv_cache.groups[group].spec.block_size
            size *= config.dcp_world_size * config.pcp_world_size
            slots = []
            for handle, number in granted:
                request = self.request_of(handle)
                blocks = self.manager.get_blocks(request).groups[group]
                end = request.num_computed_tokens
                slots += [
                    blocks[p // size] * size + p % size
                    for p in range(end - number, end)
                    if mapping is not None
                ]
            for place, slot in enumerate(slots):
                mapping[place] = slot  # type: ignore[index]
        rows = 0
        if output.block_deltas is not None:
            served = [handle for handle, number in granted if number]
            rows = self._tell(served, output.block_deltas)
        left = sum(
            self._num_untold(handle)
            for handle, number in granted
            if number and output.block_deltas is not None
        )
        scheduled = array("q", [number for _, number in granted])
        return StepResult(scheduled, array("q", hits), sum(scheduled), rows, left)

    def take_deltas(self, block_deltas: Any) -> int:
        """What was not told, of all."""
        return self._tell([h for h, r in enumerate(self.slots) if r is not None], block_deltas)

    def num_pending_deltas(self) -> int:
        """How many entries were not told."""
        return sum(self._num_untold(h) for h, r in enumerate(self.slots) if r is not None)

    def next_free_blocks(self, num_blocks: int, after: int | None = None) -> array[int]:
        """The front of the queue, or what stands behind a block."""
        queue = self.manager.snapshot().free_queue
        if after is not None and not 0 <= after < self.manager.config.kv_cache.num_blocks:
            raise UnknownBlockError(after, self.manager.config.kv_cache.num_blocks)
        if after is not None and after not in queue:
            raise InvalidArgumentError("after", after, "a free block")
        start = 0 if after is None else queue.index(after) + 1
        return array("i", queue[start : start + num_blocks])

    def list_lengths(self, handles: Any) -> array[int]:
        """How long each list is."""
        lists = [now for handle in handles for now in self._lists(handle)[0]]
        return array("i", map(len, lists))

    def _lists(self, handle: int) -> tuple[list[list[int]], list[list[int]]]:
        """Block lists, and the part of them that was told."""
        request = self.request_of(handle)
        lists = self.manager.get_blocks(request).to_lists()
        return lists, self.told.setdefault(request.request_id, [[] for _ in lists])

    def _num_untold(self, handle: int) -> int:
        lists, told = self._lists(handle)
        return sum(len(now) - len(then) for now, then in zip(lists, told, strict=True))

    def _tell(self, handles: list[int], rows: Any) -> int:
        room = len(rows)
        number = 0
        for handle in handles:
            lists, told = self._lists(handle)
            for group, (now, then) in enumerate(zip(lists, told, strict=True)):
                for index in range(len(then), len(now)):
                    if number == room:
                        return number
                    for column, value in enumerate((handle, group, index, now[index])):
                        rows[number, column] = value
                    then.append(now[index])
                    number += 1
        return number
