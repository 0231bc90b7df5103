"""Continuous batching over a paged model: chunked prefill, prefix hits, preemption, drafts.

The manager decides, the tables on the device follow by deltas, the pools hold keys and values. The
plan of a step is that of `examples/embed`; here it is really computed.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import islice

import torch

from examples.tiny_engine.model import Model
from examples.tiny_engine.paged import PagedModel, Span, cache_config
from kvfast.device import Backend, HostTier, ResidentDecode
from kvspec.batched import StepOutput, StepPlan, StepResult
from kvspec.config import ManagerConfig
from kvspec.errors import InvalidArgumentError, UnsupportedError
from kvspec.interface import Implementation
from kvspec.request import Request, RequestInput
from kvspec.sequential import batched_of
from kvspec.tier import TieredImplementation


@dataclass(eq=False)
class Sequence:
    """A request that ends at `length_tokens`; `rows` are the logits of its generated tokens."""

    request: Request
    length_tokens: int
    num_prompt_tokens: int
    handle: int = -1
    drafts: list[int] = field(default_factory=list)
    rows: list[torch.Tensor] = field(default_factory=list)

    @property
    def num_left(self) -> int:
        """Tokens known but not yet computed: 1 while decoding."""
        return self.request.num_tokens - self.request.num_computed_tokens

    @property
    def generated(self) -> list[int]:
        """The tokens after the prompt."""
        return list(self.request.token_ids[self.num_prompt_tokens :])


@dataclass(frozen=True)
class EngineConfig:
    """Sizes of an engine.

    `max_tokens`: of a step, at least `max_running * (1 + num_drafts)`. `num_drafts`: guesses that a
    step checks per decoding request. `num_host_blocks`: of a second tier in host memory; 0: none.
    `num_resident_steps`: the most steps that the device decodes alone while there is nothing else
    to do (without drafts and a second tier); 0: none.
    """

    num_blocks: int
    block_size: int = 4
    max_running: int = 4
    max_tokens: int = 32
    max_model_len_tokens: int = 256
    num_drafts: int = 0
    num_host_blocks: int = 0
    num_resident_steps: int = 0
    check_invariants: bool = False
    backend: Backend | None = None
    device: str = "cpu"


class Engine:
    """Requests in the order of their arrival: `running`, then `waiting`. One thread owns it."""

    def __init__(self, model: Model, implementation: Implementation, config: EngineConfig) -> None:
        self.config = config
        manager_config = ManagerConfig(
            cache_config(model.config, config.num_blocks, config.block_size),
            config.max_model_len_tokens,
            max_num_batched_tokens=config.max_tokens,
            log_stats=True,
        )
        self.implementation = implementation
        self.manager = implementation.create(
            manager_config, check_invariants=config.check_invariants
        )
        self.batched = batched_of(implementation, self.manager)
        self.paged = PagedModel(
            model,
            manager_config,
            max_requests=2
            * config.max_running,  # a plan may contain both ending requests and their successors
            max_tokens=config.max_tokens,
            device=config.device,
            backend=config.backend,
        )
        self.host: HostTier | None = None
        if config.num_host_blocks:
            if not isinstance(implementation, TieredImplementation):
                raise UnsupportedError("a host tier", implementation.capabilities.name)
            self.host = HostTier(
                implementation,
                self.batched,
                self.paged.pools,
                num_host_blocks=config.num_host_blocks,
                backend=config.backend,
            )
        self.resident: ResidentDecode | None = None
        if config.num_resident_steps and not config.num_drafts and self.host is None:
            most = config.max_running * config.num_resident_steps * self._num_groups
            self.resident = ResidentDecode(self.paged.tables, max_blocks=most)
        self.running: list[Sequence] = []
        self.waiting: deque[Sequence] = deque()
        self.num_preemptions = self.num_chunks = self.num_accepted = self.num_rejected = 0
        self.num_resident_steps = 0
        self._was_refused = False
        self._rows = torch.zeros((config.num_blocks * 4, 4), dtype=torch.int32)

    def add(self, name: str, prompt: list[int], max_new_tokens: int) -> Sequence:
        """Queue a request. InvalidArgumentError for one that would wait for ever."""
        most = min(
            (self.config.num_blocks - 1) * self.config.block_size // self._num_groups,
            self.config.max_model_len_tokens,
        )
        if not 1 <= max_new_tokens <= most - len(prompt):
            allowed = f"an int in 1 … {most - len(prompt)}"
            raise InvalidArgumentError("max_new_tokens", max_new_tokens, allowed)
        request = self.implementation.make_request(self.manager, RequestInput(name, prompt))
        one = Sequence(request, len(prompt) + max_new_tokens, len(prompt))
        self.waiting.append(one)
        return one

    @property
    def _num_groups(self) -> int:
        return len(self.manager.config.kv_cache.groups)

    @property
    def is_idle(self) -> bool:
        """Whether no request is left; one more step releases those that finished last."""
        return not self.running and not self.waiting

    def run(self) -> None:
        """Step until nothing is left."""
        while not self.is_idle:
            self.step()

    def step(self) -> list[Sequence]:
        """Plan, take blocks, compute, sample; returns the requests that ended before it."""
        finished = [one for one in self.running if one.request.num_tokens >= one.length_tokens]
        self.running = [one for one in self.running if one not in finished]
        if self.resident is not None and not finished and self._decode_alone(self.resident):
            return finished
        if self.host is not None and not self._was_refused:
            self._load(self.host)
        plan, entries = self._planned([one.handle for one in finished])
        result = self.batched.step(plan, StepOutput(self._rows))
        self.batched.unregister(plan.finished)
        scheduled = result.num_scheduled_tokens
        first_new = len(scheduled) - len(result.hit_tokens)
        self._was_refused = 0 in scheduled[:first_new]
        for _ in filter(None, scheduled[first_new:]):  # refusals come last: stops_at_refusal
            self.running.append(self.waiting.popleft())
        self._compute(plan, result, entries)
        return finished

    def _decode_alone(self, resident: ResidentDecode) -> bool:
        """Let the device decode while no request can be admitted and none is in the middle of a
        prompt.
        """
        is_full = len(self.running) == self.config.max_running
        if not self.running or (self.waiting and not is_full) or self._was_refused:
            return False
        if any(one.num_left != 1 for one in self.running):
            return False
        handles = [one.handle for one in self.running]
        left = [one.length_tokens - one.request.num_tokens for one in self.running]
        num_steps = resident.begin(
            self.batched, handles, self.config.num_resident_steps, max_tokens=left
        )
        if num_steps == 0:
            return False
        device = self.paged.pools.device
        last = torch.tensor([one.request.token_ids[-1] for one in self.running], device=device)
        sampled, logits = [], []
        for _ in range(num_steps):  # nothing in here is read by the host
            step = resident.step()
            for group in range(self._num_groups):
                new = resident.new_blocks(group)
                if new is not None:
                    self.paged.pages.zero_blocks(new[: len(handles)], group=group)
            logits.append(self.paged.next_logits(last, step))
            last = logits[-1].argmax(dim=1)
            sampled.append(last)
        run = resident.end()
        resident.replay(run, self.batched, torch.stack(sampled).cpu())
        for number in range(run.num_steps):
            for place in run.places(number):
                self.running[place].rows.append(logits[number][place])
        self.num_resident_steps += run.num_steps
        return True

    def _load(self, host: HostTier) -> None:
        """Admit those at the head of the queue of which the host has something."""
        while self.waiting and len(self.running) < self.config.max_running:
            one = self.waiting[0]
            if one.handle < 0:
                one.handle = self.batched.register(one.request)
            num_tokens = host.load(one.request)
            if not num_tokens:  # nothing there, or no space: the plan tries again
                return
            self.paged.tables.set_lengths([one.handle], num_tokens)
            # A step reports only rows that it grants, and it may have no room for this one yet.
            for group, blocks in enumerate(self.manager.get_blocks(one.request).groups):
                self.paged.tables.set_row(one.handle, group, blocks)
            one.drafts = []
            self.running.append(self.waiting.popleft())

    def _planned(self, finished: list[int]) -> tuple[StepPlan, list[Sequence]]:
        """Return the next step and its entries: decoding, then chunks of prompts, then new
        requests.
        """
        preempted = []
        if self._was_refused and not finished:  # the youngest makes room for those before it
            self.waiting.appendleft(self.running.pop())
            preempted = [self.waiting[0].handle]
            self.num_preemptions += 1
        decoding = [one for one in self.running if one.num_left == 1]
        for one in decoding:
            most = min(self.config.num_drafts, one.length_tokens - one.request.num_tokens - 1)
            one.drafts = [one.request.token_ids[-1]] * most
        budget = self.config.max_tokens - sum(1 + len(one.drafts) for one in decoding)
        prefilling, chunks = [], []
        for one in self.running:
            if one.num_left > 1 and budget > 0:
                one.drafts = []
                prefilling.append(one)
                chunks.append(min(one.num_left, budget))
                budget -= chunks[-1]
                self.num_chunks += 1
        num_free = self.config.max_running - len(self.running)
        new = [] if preempted else list(islice(self.waiting, num_free))
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
            token_budget=self.config.max_tokens,
            full_sequence_must_fit=True,
            stops_at_refusal=True,
        )
        return plan, decoding + prefilling + new

    def _compute(self, plan: StepPlan, result: StepResult, entries: list[Sequence]) -> None:
        """Bring the device up to date, run the model, sample."""
        step = self.paged.tables.step(plan, result, self._rows)
        if self.host is not None:
            self.host.before_step(plan, result, self._rows)
        self.paged.pages.zero_blocks(self.manager.take_new_block_ids())
        pairs = zip(entries, result.num_scheduled_tokens, strict=True)
        granted = [(one, num) for one, num in pairs if num]
        if not granted:
            return
        tokens: list[int] = []
        spans = []
        for one, num in granted:
            end = one.request.num_computed_tokens
            tokens += [*one.request.token_ids[end - num : end], *one.drafts]
            spans.append(Span(one.handle, num, end))
        logits = self.paged.logits(tokens, spans, step)
        parts = logits.split([num for _, num in granted])
        done = [(one, part) for (one, _), part in zip(granted, parts, strict=True)]
        self._sample([(one, part) for one, part in done if one.num_left <= 0])
        if self.host is not None:
            self.host.after_step([one.handle for one, _ in granted])

    def _sample(self, computed: list[tuple[Sequence, torch.Tensor]]) -> None:
        """Append the drafts that were right and one token more; take back the others."""
        tokens, counts, rejected = list[int](), list[int](), list[int]()
        for one, logits in computed:
            rows = logits[len(logits) - 1 - len(one.drafts) :]
            best = rows.argmax(dim=1).tolist()
            new = list[int]()
            while len(new) <= len(one.drafts) and new == one.drafts[: len(new)]:
                one.rows.append(rows[len(new)])
                new.append(best[len(new)])
            tokens += new
            counts.append(len(new))
            rejected.append(1 + len(one.drafts) - len(new))
            self.num_accepted += len(new) - 1
            self.num_rejected += rejected[-1]
        handles = [one.handle for one, _ in computed]
        self.batched.rewind(handles, rejected)
        self.paged.tables.rewind(handles, rejected)
        self.batched.append(handles, tokens, counts)
