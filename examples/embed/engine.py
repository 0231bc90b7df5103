"""A small engine on batched calls: continuous batching, chunked prefill, preemption, drafts, loads.

docs/embed.md explains it, `workers.py` simulates the device, `demo.py` serves two requests.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field
from itertools import takewhile
from operator import attrgetter

import numpy as np

from examples.embed.workers import Batch, Store, Workers
from kvspec.batched import BatchedManager, StepOutput, StepPlan, StepResult
from kvspec.errors import InvalidArgumentError
from kvspec.request import Request, RequestStatus


@dataclass(eq=False)
class Sequence:
    """A request that ends at `length_tokens`. `handle` is -1 until it is first registered.

    `number`: its place in the order of arrival. `may_load`: until a load of it has failed.
    """

    request: Request
    length_tokens: int
    number: int
    handle: int = -1
    may_load: bool = True
    drafts: list[int] = field(default_factory=list)

    @property
    def num_left(self) -> int:
        """Tokens known but not yet computed: 1 while decoding, 0 or less when done."""
        return self.request.num_tokens - self.request.num_computed_tokens


IN_ORDER = attrgetter("number")


class Engine:
    """Requests that are `running`, `loading` and `waiting`, each list in the order of arrival.

    Use it from one thread. `store` may have keys and values of prompts.

    `max_tokens`: of a step, at least `max_running * (1 + num_drafts)`. `max_deltas`: rows of a step
    that need no second call. Handles are below `2 * max_running`: a plan may contain both ending
    requests and their successors.
    """

    def __init__(
        self,
        batched: BatchedManager,
        workers: Workers,
        *,
        max_running: int,
        max_tokens: int,
        num_drafts: int = 0,
        max_deltas: int = 64,
        store: Store | None = None,
    ) -> None:
        self.batched, self.manager, self.workers = batched, batched.manager, workers
        self.store = store or Store(workers)
        self.max_running, self.max_tokens = max_running, max_tokens
        self.num_drafts = num_drafts
        self.running: list[Sequence] = []
        self.loading: list[Sequence] = []
        self.waiting: list[Sequence] = []
        self.failed: list[Sequence] = []  # loads that failed since the last step
        self.num_added = 0
        self.was_refused = False
        self.rows = np.empty((max_deltas, 4), np.int32)
        self.slots = np.empty(max_tokens, np.int64)

    def add(self, request: Request, max_new_tokens: int) -> None:
        """Queue a request. A request that would not fit alone would wait for ever, so it is
        refused.
        """
        config = self.manager.config
        room = (config.kv_cache.num_blocks - 1) * self.workers.block_size
        most = min(room, config.max_model_len_tokens) - request.num_tokens
        if not 1 <= max_new_tokens <= most:
            raise InvalidArgumentError("max_new_tokens", max_new_tokens, f"an int in 1 … {most}")
        length = request.num_tokens + max_new_tokens
        self.waiting.append(Sequence(request, length, self.num_added))
        self.num_added += 1

    def abort(self, request: Request) -> None:
        """End a request with the next step, or as soon as its load has ended."""
        for one in self.running + self.loading:
            if one.request is request:
                one.length_tokens = 0
        for one in [one for one in self.waiting if one.request is request]:
            self.waiting.remove(one)
            if one.handle >= 0:
                self.batched.unregister([one.handle])

    def step(self) -> list[Request]:
        """Plan, take blocks, compute, sample; return the requests that ended before it."""
        self.end_loads()
        finished = [one for one in self.running if one.request.num_tokens >= one.length_tokens]
        self.running = [one for one in self.running if one not in finished]
        plan, entries = self.planned([one.handle for one in finished])
        result = self.batched.step(plan, StepOutput(self.rows, [self.slots]))
        self.batched.unregister(plan.finished)
        scheduled = result.num_scheduled_tokens
        first_new = len(scheduled) - len(result.hit_tokens)
        self.was_refused = 0 in scheduled[:first_new]
        for _ in filter(None, scheduled[first_new:]):  # refusals come last: stops_at_refusal
            self.running.append(self.waiting.pop(0))
        granted = [one for one, num in zip(entries, scheduled, strict=True) if num]
        self.workers.run(self.batch(granted, result))
        self.store.run()  # behind the zeroing of the new blocks
        self.sample([one for one in granted if one.num_left <= 0])
        return [one.request for one in finished]

    def planned(self, finished: list[int]) -> tuple[StepPlan, list[Sequence]]:
        """Return the next step and its entries: decoding, then chunks of prompts, then new
        requests.
        """
        preempted = [one.handle for one in self.failed]
        if self.was_refused and not finished and len(self.running) > 1:
            youngest = self.running.pop()  # it makes room for those before it
            insort(self.waiting, youngest, key=IN_ORDER)
            preempted.append(youngest.handle)
        decoding = [one for one in self.running if one.num_left == 1]
        for one in decoding:
            most = min(self.num_drafts, one.length_tokens - one.request.num_tokens - 1)
            one.drafts = [one.request.token_ids[-1]] * most
        budget = self.max_tokens - sum(1 + len(one.drafts) for one in decoding)
        prefilling, chunks = [], []
        for one in self.running:
            if one.num_left > 1 and budget > 0:
                prefilling.append(one)
                chunks.append(min(one.num_left, budget))
                budget -= chunks[-1]
        new = [] if preempted or self.was_refused else self.admissible()
        for one in new:
            one.drafts = []
        plan = StepPlan(
            finished=finished,
            preempted=preempted,
            decoding=[one.handle for one in decoding],
            decode_tokens=[1 + len(one.drafts) for one in decoding],
            prefilling=[one.handle for one in prefilling],
            prefill_tokens=chunks,
            new=[one.handle for one in new],
            token_budget=self.max_tokens,
            full_sequence_must_fit=True,
            stops_at_refusal=True,
        )
        self.failed = []
        return plan, decoding + prefilling + new

    def admissible(self) -> list[Sequence]:
        """Start the loads of the first that wait; return those behind them that load nothing."""
        places = self.max_running - len(self.running) - len(self.loading)
        for one in self.waiting[:places]:
            if one.handle < 0:
                one.handle = self.batched.register(one.request)
        while places > 0 and self.waiting:
            is_loading = self.start_load(self.waiting[0])
            if is_loading is None:
                break
            if not is_loading:
                return []
            places -= 1
        new = self.waiting[: max(places, 0)]
        return new[:1] + list(takewhile(lambda one: not self.num_stored(one), new[1:]))

    def num_stored(self, one: Sequence) -> int:
        """Return how many of the first tokens the store has."""
        return self.store.num_stored(one.request.token_ids) if one.may_load else 0

    def start_load(self, one: Sequence) -> bool | None:
        """Take blocks for what the store has behind the hit.

        Return None if it has nothing more, and False if there are too few blocks.
        """
        request, num_stored = one.request, self.num_stored(one)
        if num_stored == 0:
            return None
        hit = self.manager.get_computed_blocks(request)
        if num_stored <= hit.hit_length_tokens:
            return None
        blocks = self.manager.allocate_slots(
            request,
            0,
            num_new_computed_tokens=hit.hit_length_tokens,
            new_computed_blocks=hit.blocks,
            num_external_computed_tokens=num_stored - hit.hit_length_tokens,
            delay_cache_blocks=True,
            full_sequence_must_fit=True,
            has_scheduled_reqs=bool(self.running),
        )
        if blocks is None:
            return False
        self.manager.record_prefix_cache_stats(request, hit.hit_length_tokens)
        request.num_computed_tokens = num_stored
        request.status = RequestStatus.RUNNING
        one.drafts = []
        self.waiting.remove(one)
        insort(self.loading, one, key=IN_ORDER)
        table = list(self.manager.get_blocks(request).groups[0])
        self.store.start(one.number, request.token_ids, table, hit.hit_length_tokens)
        return True

    def end_loads(self) -> None:
        """Run requests whose tokens have arrived (KV-LIVE-4); requeue those whose load failed."""
        for number, is_loaded in self.store.take_ended():
            one = next(one for one in self.loading if one.number == number)
            self.loading.remove(one)
            if is_loaded:
                self.manager.cache_blocks(one.request, one.request.num_computed_tokens)
            if is_loaded or one.length_tokens == 0:  # an aborted one ends with the next plan
                most = one.request.num_tokens - 1  # the last one is computed in any case
                one.request.num_computed_tokens = min(one.request.num_computed_tokens, most)
                insort(self.running, one, key=IN_ORDER)
            else:
                one.may_load = False
                self.failed.append(one)
                insort(self.waiting, one, key=IN_ORDER)

    def batch(self, granted: list[Sequence], result: StepResult) -> Batch:
        """Return a copy of what the workers need: the next step overwrites the buffers."""
        tokens: list[int] = []
        for one, num in zip(granted, filter(None, result.num_scheduled_tokens), strict=True):
            end = one.request.num_computed_tokens
            tokens += [*one.request.token_ids[end - num : end], *one.drafts]
        deltas = [self.rows[: result.num_deltas].copy()]
        while result.num_deltas_left and (num := self.batched.take_deltas(self.rows)):
            deltas.append(self.rows[:num].copy())
        slots = self.slots[: result.num_slots].copy()
        zeroed = self.manager.take_new_block_ids()
        return Batch(np.concatenate(deltas), zeroed, np.array(tokens, np.int64), slots)

    def sample(self, computed: list[Sequence]) -> None:
        """Append to each the drafts that were right and one token more; take back the others."""
        tokens, counts, rejected = list[int](), list[int](), list[int]()
        for one in computed:
            new = list[int]()
            while len(new) <= len(one.drafts) and new == one.drafts[: len(new)]:
                new.append(self.workers.next_token(one.handle, one.request.num_tokens + len(new)))
            tokens += new
            counts.append(len(new))
            rejected.append(1 + len(one.drafts) - len(new))
        handles = [one.handle for one in computed]
        self.batched.rewind(handles, rejected)
        self.batched.append(handles, tokens, counts)
