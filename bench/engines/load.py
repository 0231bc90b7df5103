"""Loads for a scheduler of vLLM's, and one round of each, timed by phases.

Times are the thread's processor time: what others do on the machine meanwhile is not in them.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from time import thread_time
from typing import Any

from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput

from examples.vllm.engine import Prompt, Setup, layer, make_scheduler, states, vllm_config
from kvfast.engines.vllm import request_block_hasher, schedulers
from kvfast.engines.vllm.versions import is_since

BLOCK = 16
FULL = (layer("FullAttentionSpec", BLOCK),)
WIDE = 33 * BLOCK
HYBRID = (layer("FullAttentionSpec", WIDE), *[states(WIDE, "align")] * 3)
"""A layer of full attention to three with states, in pages of one size, as Qwen3-Next's."""
CHURN = {16: 128, 64: 512, 256: 256, 1024: 512, 4096: 512}
CONSTANT = {1: 0, 16: 0, 256: 0, 1024: 0}
"""Requests at a time, and `Case.mean_output`."""
PHASES = ("making requests", "schedule", "update")


@dataclass(frozen=True)
class Case:
    """A load. `decoding`: this many requests decode all the time; else `story` yields arrivals.

    `mean_output`: tokens after which one of them ends, at random between a quarter of it and seven
    quarters, and another replaces it; 0: all continue for ever, unlike on a server. `is_long`: not
    part of a quick run.
    """

    name: str
    setup: Setup
    decoding: int = 0
    mean_output: int = 0
    story: Callable[[], Iterator[list[Prompt]]] | None = None
    is_long: bool = False


def cases(trace: Path | None) -> list[Case]:
    """Return all loads; the trace's only if it is given."""
    found = [*_running(CHURN)]
    served = Setup(
        FULL,
        40_000,
        BLOCK,
        BLOCK,
        max_model_len=200_000,
        max_num_seqs=64,
        max_num_batched_tokens=8192,
    )
    found.append(Case("chats, 32 of 8 turns", served, story=chats))
    found.append(Case("long prompts, 8 tokens each", served, story=prompts))
    if trace is not None:
        found.append(Case(f"Mooncake, {REQUESTS} requests", served, story=mooncake(trace)))
    return [*found, *_running(CONSTANT)]


def _running(loads: Mapping[int, int]) -> Iterator[Case]:
    """Yield loads of this many requests at a time, sync and async; the middle ones also with
    drafts.
    """
    for number, mean in loads.items():
        plain = Setup(
            FULL,
            number * 64 + 4000,
            BLOCK,
            BLOCK,
            max_model_len=4096,
            max_num_seqs=number,
            max_num_batched_tokens=8192,
        )
        name = f"{number:,} running, {mean} tokens each" if mean else f"{number:,} decodes"
        for drafts in (0, 2) if number == 256 else (0,):
            for is_async in (False, True):
                words = [name, *["2 drafts"] * bool(drafts), *["async"] * is_async]
                setup = replace(plain, num_drafts=drafts, is_async=is_async)
                yield Case(", ".join(words), setup, number, mean, is_long=number > 256)
                if mean and number == 256 and not drafts and is_since(33):
                    words.insert(1, "states")
                    hybrid = replace(setup, specs=HYBRID, block_size=WIDE, mamba_mode="align")
                    yield Case(", ".join(words), hybrid, number, mean)


REQUESTS = 100


def chats() -> Iterator[list[Prompt]]:
    """Yield turn after turn of all chats: the conversation so far, and some new tokens."""
    rng = Random(5)
    said = [tuple(rng.randrange(500) for _ in range(600)) for _ in range(32)]
    for turn in range(8):
        said = [each + tuple(rng.randrange(500) for _ in range(150)) for each in said]
        yield [Prompt(f"c{i}.{turn}", tokens, 48) for i, tokens in enumerate(said)]


def prompts() -> Iterator[list[Prompt]]:
    """Yield new prompts with short outputs."""
    rng = Random(6)
    yield [
        Prompt(f"p{i}", tuple(rng.randrange(500) for _ in range(rng.randint(1000, 6000))), 8)
        for i in range(64)
    ]


def mooncake(trace: Path) -> Callable[[], Iterator[list[Prompt]]]:
    """Yield the first requests of the trace, ten at a time; equal ids are equal runs of 512
    tokens.
    """

    def story() -> Iterator[list[Prompt]]:
        with gzip.open(trace, "rt") as lines:
            read = [json.loads(line) for line, _ in zip(lines, range(REQUESTS), strict=False)]
        for first in range(0, len(read), 10):
            made = []
            for number, each in enumerate(read[first : first + 10], first):
                tokens = tuple(1000 * run + i for run in each["hash_ids"] for i in range(512))
                length = min(each["input_length"], len(tokens))
                made.append(Prompt(f"m{number}", tokens[:length], min(each["output_length"], 64)))
            yield made

    return story


@dataclass
class Round:
    """Seconds of each phase, and what was planned, to be compared."""

    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    steps: int = 0
    requests: int = 0
    planned: list[int] = field(default_factory=list)


class Side:
    """A scheduler under a case's load."""

    def __init__(self, case: Case, model: str, *, on_kvfast: bool) -> None:
        self.case = case
        self.model = model
        self.on_kvfast = on_kvfast
        stock = AsyncScheduler if case.setup.is_async else Scheduler
        ours = (
            schedulers.KvfastAsyncScheduler if case.setup.is_async else schedulers.KvfastScheduler
        )
        self.made_of = ours if on_kvfast else stock
        make_hasher: Any = request_block_hasher if on_kvfast else get_request_block_hasher
        self.hasher = make_hasher(BLOCK, sha256)
        self.begin()

    def begin(self) -> None:
        """Make a scheduler, empty or with decoding requests."""
        setup = self.case.setup
        self.scheduler = make_scheduler(self.made_of, setup, vllm_config(setup, self.model))
        self.rng = Random(7)
        self.flight: list[Any] = []
        if self.case.mean_output:
            self.begins = [self.tokens(256) for _ in range(8)]
            self.num_made = 0
            for _ in range(self.case.mean_output):
                self.fill(Round())
                self.step(Round())
        elif self.case.decoding:
            tokens = [
                tuple(self.rng.randrange(500) for _ in range(self.rng.randint(64, 96)))
                for _ in range(self.case.decoding)
            ]
            self.add([Prompt(f"r{i}", each, 4000) for i, each in enumerate(tokens)], Round())
            while self.scheduler.waiting:
                self.step(Round())
            for _ in range(4):
                self.step(Round())

    def round(self, num_steps: int) -> Round:
        """Do some steps of decoding, or the whole story from its beginning."""
        measured = Round()
        if self.case.story is None:
            for _ in range(num_steps):
                if self.case.mean_output:
                    self.fill(measured)
                self.step(measured)
            return measured
        self.begin()
        for arriving in self.case.story():
            self.add(arriving, measured)
            while self.scheduler.requests:
                self.step(measured)
        self.flight.clear()
        return measured

    def fill(self, measured: Round) -> None:
        """Replace the requests that ended; the first half of each prompt is one of eight."""
        mean, made = self.case.mean_output, []
        for _ in range(self.case.decoding - len(self.scheduler.requests)):
            self.num_made += 1
            tokens = self.begins[self.num_made % 8] + self.tokens(256)
            length = self.rng.randint(mean // 4, 7 * mean // 4)
            made.append(Prompt(f"r{self.num_made}", tokens, length))
        self.add(made, measured)

    def tokens(self, number: int) -> tuple[int, ...]:
        """Draw this many random tokens."""
        return tuple(self.rng.randrange(500) for _ in range(number))

    def add(self, arriving: list[Prompt], measured: Round) -> None:
        """Make requests, which hashes their prompts, and hand them over."""
        setup = replace(self.case.setup, enable_caching=False)  # without a hasher: see below
        for prompt in arriving:
            bare = prompt.request(setup)
            began = thread_time()
            bare._block_hasher = self.hasher
            bare.update_block_hashes()
            measured.seconds[PHASES[0]] += thread_time() - began
            measured.requests += 1
            self.scheduler.add_request(bare)

    def step(self, measured: Round) -> None:
        """Plan a step, and take in the tokens of the one that is done."""
        scheduler, setup = self.scheduler, self.case.setup
        began = thread_time()
        plan = scheduler.schedule()
        planned = thread_time()
        measured.seconds[PHASES[1]] += planned - began
        names = list(plan.num_scheduled_tokens)
        chunks = {name for name in names if scheduler.requests[name].is_prefill_chunk}
        cached = plan.scheduled_cached_reqs
        measured.planned.append(hash((tuple(plan.num_scheduled_tokens.items()), str(cached))))
        measured.planned.append(hash(str(cached.new_block_ids)))
        measured.steps += 1
        if names:
            self.flight.append((plan, names, chunks))
        if not self.flight or (setup.is_async and len(self.flight) < 2 and names):
            return
        plan, names, chunks = self.flight.pop(0)
        output = ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: place for place, name in enumerate(names)},
            sampled_token_ids=[
                [] if name in chunks else self.sampled(plan, name) for name in names
            ],
            # As vLLM's first runner makes them where requests start and end, else as its second.
            num_nans_in_logits={} if self.case.mean_output else None,
        )
        began = thread_time()
        scheduler.update_from_output(plan, output)
        measured.seconds[PHASES[2]] += thread_time() - began
        if setup.num_drafts and not setup.is_async:
            scheduler.update_draft_token_ids(
                DraftTokenIds(names, [[1] * setup.num_drafts for _ in names])
            )

    def sampled(self, plan: Any, name: str) -> list[int]:
        """Sample one token, and accept half of the drafts."""
        drafts = plan.scheduled_spec_decode_tokens.get(name, ())
        number = 1 + (self.rng.randint(0, len(drafts)) if drafts else 0)
        return [self.rng.randrange(500) for _ in range(number)]
