"""A small engine on batched calls: continuous batching, chunked prefill, preemption, drafts.

docs/embed.md explains it, `workers.py` simulates the device, `demo.py` serves two requests.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from examples.embed.workers import Batch, Workers
from kvspec.batched import BatchedManager, StepOutput, StepPlan, StepResult
from kvspec.errors import InvalidArgumentError
from kvspec.request import Request


@dataclass(eq=False)
class Sequence:
    """A request that ends at `length_tokens`. `handle` is -1 until it first comes near a place."""

    request: Request
    length_tokens: int
    handle: int = -1
    drafts: list[int] = field(default_factory=list)

    @property
    def num_left(self) -> int:
        """Tokens that are known but not computed: 1 while decoding, at most 0 when all are."""
        return self.request.num_tokens - self.request.num_computed_tokens


class Engine:
    """Requests in the order of their arrival: `running`, then `waiting`. Use it from one thread.

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
    ) -> None:
        self.batched, self.manager, self.workers = batched, batched.manager, workers
        self.max_running, self.max_tokens = max_running, max_tokens
        self.num_drafts = num_drafts
        self.running: list[Sequence] = []
        self.waiting: deque[Sequence] = deque()
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
        self.waiting.append(Sequence(request, request.num_tokens + max_new_tokens))

    def step(self) -> list[Request]:
        """Plan, take blocks, compute, sample; return the requests that ended before it."""
        finished = [one for one in self.running if one.request.num_tokens >= one.length_tokens]
        self.running = [one for one in self.running if one not in finished]
        plan, entries = self.planned([one.handle for one in finished])
        result = self.batched.step(plan, StepOutput(self.rows, [self.slots]))
        self.batched.unregister(plan.finished)
        scheduled = result.num_scheduled_tokens
        first_new = len(scheduled) - len(result.hit_tokens)
        self.was_refused = 0 in scheduled[:first_new]
        for _ in filter(None, scheduled[first_new:]):  # refusals come last: stops_at_refusal
            self.running.append(self.waiting.popleft())
        granted = [one for one, num in zip(entries, scheduled, strict=True) if num]
        self.workers.run(self.batch(granted, result))
        self.sample([one for one in granted if one.num_left <= 0])
        return [one.request for one in finished]

    def planned(self, finished: list[int]) -> tuple[StepPlan, list[Sequence]]:
        """Return the next step and its entries: decoding, then chunks of prompts, then new
        requests.
        """
        preempted = []
        if self.was_refused and not finished:  # the youngest makes room for those before it
            self.waiting.appendleft(self.running.pop())
            preempted = [self.waiting[0].handle]
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
        new = [] if preempted else list(islice(self.waiting, self.max_running - len(self.running)))
        for one in new:
            one.drafts = []
            if one.handle < 0:
                one.handle = self.batched.register(one.request)
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
        return plan, decoding + prefilling + new

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
