"""Whole steps at the sizes of production: engines over kvref's loop and kvfast's own batches.

The first side is the loop of single calls over kvref. Every answer, row, slot, error and event is
compared, and the number of free blocks; the whole state now and then, as `looks_every` says.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import kvref
from kvcheck.judge.production import LongDraw, production_config
from kvcheck.rules.batch_sides import Batch
from kvcheck.rules.random_batches import Engine, listed
from kvspec.batched import StepPlan
from kvspec.config import ManagerConfig
from kvspec.interface import Implementation
from kvspec.request import LoRA, MultimodalItem, PromptEmbeddings, RequestInput
from kvspec.sequential import SequentialManager, batched_of
from tests.lockstep.tally import LONG_TOKENS, MANY_BLOCKS, MANY_REQUESTS

BLOCKS_PER_LOOK = 2000
"""With so many blocks more the state is looked at half as often."""


def looks_every(config: ManagerConfig, times: int = 1) -> int:
    """After how many operations the whole state is compared; `times`: so much less often."""
    return times * (1 + config.kv_cache.num_blocks // BLOCKS_PER_LOOK)


def sides(subject: Implementation) -> Sequence[tuple[Implementation, Batch]]:
    """The loop of single calls over kvref, and the subject's own steps."""
    return [(kvref.implementation(), SequentialManager), (subject, batched_of)]


def engines(seed: int) -> Iterator[Random]:
    """What each engine is drawn from."""
    for number in itertools.count():
        yield Random(seed * 1_000_003 + number)


class LongEngine(Engine):
    """Everything an engine does, without illegal plans.

    `drew`: how often each option was drawn. `looks`: state comparisons asked for so far.
    """

    sizes: tuple[int, ...] = (6, 6, 80, 80, 300)
    """Requests at a time."""

    def __init__(self, sides: Any, random: Random, *, times: int = 1) -> None:
        config = production_config(random)
        super().__init__(config, sides, random)
        self.draw = LongDraw(random, config)
        self.drew: Counter[str] = Counter()
        self.most_requests = self.longest_prompt = self.looks = 0
        self.looks_every = looks_every(config, times)
        self.max_requests = random.choice(self.sizes)
        if self.max_requests > 6:
            self.arrivals = random.choice((0.8, 0.95))
            for _ in range(random.choice((0, 14, 62, self.max_requests - 20))):
                self.arrive()

    def play(self, num_steps: int) -> None:
        """So many rounds; at the end the whole state."""
        super().play(num_steps)
        self.compare_all("at the end")

    def prompt(self) -> list[int]:
        """The beginning of a text that others begin with, too."""
        text = self.random.choice(self.draw.texts)
        length = self.draw.length()
        if len(self.handles) >= 20:  # of many all but a few are short
            length = min(length, self.random.choice((9, 9, 70, length)))
        self.longest_prompt = max(self.longest_prompt, min(length, len(text)))
        return list(text[:length])

    def request(self, name: str) -> RequestInput:
        """As in single calls: now and then more than tokens tells it apart."""
        prompt, chance = self.prompt(), self.draw.chance
        salt = "s" if chance(0.06) else None
        lora = LoRA("adapter", 1) if chance(0.06) else None
        items: tuple[MultimodalItem, ...] = ()
        if chance(0.06):
            items = (MultimodalItem("a", self.random.randrange(len(prompt)), len(prompt)),)
        embeddings = None
        if chance(0.04):
            count = min(self.draw.length(), len(prompt))
            embeddings = PromptEmbeddings(bytes(place % 251 for place in range(count)), 1)
        self.note(
            salt=salt,
            adapter=lora,
            items=items,
            embeddings=embeddings,
            **{"prompt of 16,000 tokens": len(prompt) >= LONG_TOKENS},
        )
        return RequestInput(name, prompt, salt, lora, items, embeddings, chance(0.04))

    def note(self, **options: object) -> None:
        """Count those that are there."""
        self.drew.update(name for name, value in options.items() if value)

    def plan(self) -> StepPlan:
        """The plan, and what is drawn in it; before it, single calls that others make."""
        self.between_steps()
        return super().plan()

    def between_steps(self) -> None:
        """Single calls on the same managers: blocks are evicted by id, or all that is cached."""
        if self.draw.chance(0.15):
            num_blocks = self.config.kv_cache.num_blocks
            count = self.random.choice((1, 3, 32, 33, 70))
            first = self.random.randrange(num_blocks)
            blocks = list(range(first, min(first + count, num_blocks)))
            self.note(**{"eviction of 32 blocks": len(blocks) >= MANY_BLOCKS})
            self.both("KV-POOL-10", "evicted", lambda side: side.manager.evict_blocks(blocks))
        if self.draw.chance(0.06):
            self.note(reset=True)
            self.both("KV-POOL-11", "reset", lambda side: side.manager.reset_prefix_cache())

    def step(self, plan: StepPlan) -> None:
        """Also: what was drawn."""
        self.most_requests = max(self.most_requests, len(self.handles))
        under_way = listed(plan.decoding) + listed(plan.prefilling)
        entries = len(under_way) + len(listed(plan.new))
        before = self.num_refused
        super().step(plan)
        self.drew["steps"] += 1
        self.drew["entries"] += entries
        self.note(
            preemption=len(listed(plan.preempted)),
            end=len(listed(plan.finished)),
            refusal=self.num_refused > before,
            **{
                "200 requests": len(self.handles) >= MANY_REQUESTS,
                "look-ahead": plan.num_lookahead_tokens,
                "blocks in reserve": plan.reserved_blocks,
                "all must fit": plan.full_sequence_must_fit,
            },
        )

    def sample(self, handle: int) -> None:
        """The step's tokens come back; now and then somebody answers at length."""
        request = self.sides[0].batched.request_of(handle)
        self.note(drafts=request.num_computed_tokens > request.num_tokens)
        super().sample(handle)
        room = self.config.max_model_len_tokens - request.num_tokens
        count = min(self.draw.length(), room)
        if count > 0 and self.random.random() < 0.05:
            tokens = self.tokens(count)
            self.both("KV-BATCH-12", "append", lambda s: s.batched.append([handle], tokens, count))

    def compare(self, rule: str, what: str) -> None:
        """The number of free blocks and the events; the whole state if it is its turn."""
        self.looks += 1
        if self.looks % self.looks_every == 0:
            super().compare(rule, what)
            return
        self.both(rule, f"free blocks {what}", lambda side: side.manager.num_free_blocks)
        self.both("KV-EVT-1", f"events {what}", lambda side: side.manager.take_events())

    def compare_all(self, what: str) -> None:
        """The whole state."""
        super().compare("KV-BATCH-1", what)

    def try_broken(self, plan: Any) -> None:
        """Not here: illegal plans do not depend on sizes."""


def steps_compared(
    random: Random, subject: Implementation, num_steps: int, *, times: int = 1
) -> LongEngine:
    """One engine, its steps by kvfast's own batches and by single calls of kvref."""
    engine = LongEngine(sides(subject), random, times=times)
    engine.play(num_steps)
    return engine
