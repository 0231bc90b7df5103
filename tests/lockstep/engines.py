"""Whole steps at the sizes of production: engines over kvref's loop and kvfast's own batches.

The first side is the loop of single calls over kvref. Every answer, row, slot, error and event is
compared, and the number of free blocks; the whole state now and then, as `looks_every` says.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import kvref
from kvcheck.judge.production import LongDraw, production_config
from kvcheck.rules.batch_sides import Batch, Outputs
from kvcheck.rules.random_batches import TOKEN_IDS, listed
from kvspec.batched import StepPlan
from kvspec.config import ManagerConfig
from kvspec.interface import Implementation
from kvspec.request import LoRA, MultimodalItem, PromptEmbeddings, RequestInput
from kvspec.sequential import SequentialManager, batched_of
from kvspec.specs import FullAttentionSpec
from tests.lockstep.following import Following
from tests.lockstep.tally import LONG_TOKENS, MANY_BLOCKS, MANY_REQUESTS

BLOCKS_PER_LOOK = 2000
"""With so many blocks more the state is looked at half as often."""


OFFERED = (*[4] * 15, None)
"""Of those that wait, so many are in a decoding engine's plan: each is checked, and few get in."""


ALONE = (0, 0, 1, 2, 6)
"""Single calls before a step of a decoding engine."""

ALL_ROWS = 40_000
"""Room for everything that a decoding engine has to report: then most requests only count."""


def looks_every(config: ManagerConfig, times: int = 1) -> int:
    """After how many operations the whole state is compared; `times`: so much less often."""
    return times * (1 + config.kv_cache.num_blocks // BLOCKS_PER_LOOK)


def is_plain(config: ManagerConfig) -> bool:
    """Whether it has one group, of full attention."""
    return [type(spec) for spec in config.managed_specs] == [FullAttentionSpec]


def sides(subject: Implementation) -> Sequence[tuple[Implementation, Batch]]:
    """The loop of single calls over kvref, and the subject's own steps."""
    return [(kvref.implementation(), SequentialManager), (subject, batched_of)]


def engines(seed: int) -> Iterator[Random]:
    """What each engine is drawn from."""
    for number in itertools.count():
        yield Random(seed * 1_000_003 + number)


class LongEngine(Following):
    """Everything an engine does. `looks`: state comparisons asked for so far."""

    is_small = False
    sizes: tuple[int, ...] = (6, 6, 80, 80, 300)
    """Requests at a time."""
    plain = 0.3
    """How often the model has one group, of full attention, whatever else is drawn."""

    def __init__(self, sides: Any, random: Random, *, times: int = 1) -> None:
        config = self.config_of(random)
        super().__init__(config, sides, random)
        self.draw = self.draw_of(random, config)
        self.most_requests = self.longest_prompt = self.looks = 0
        self.looks_every = looks_every(config, times)
        self.max_requests = random.choice(self.sizes)
        if self.max_requests > 6:
            self.arrivals = random.choice((0.8, 0.95))
            for _ in range(random.choice((0, 14, 14, 62, self.max_requests - 20))):
                self.arrive()

    def config_of(self, random: Random) -> ManagerConfig:
        """Draw one of production; most models have one group, of full attention."""
        config = production_config(random)
        if random.random() < self.plain:
            while not is_plain(config):
                config = production_config(random)
        return config

    def draw_of(self, random: Random, config: ManagerConfig) -> LongDraw:
        """What its texts are drawn from."""
        return LongDraw(random, config)

    def play(self, num_steps: int) -> None:
        """So many rounds; at the end the whole state."""
        super().play(num_steps)
        self.compare_all("at the end")

    def prompt(self) -> list[int]:
        """The beginning of a text that others begin with, too."""
        text = self.random.choice(self.draw.texts)
        length = self.prompt_length(text)
        if len(self.handles) >= 20:  # of many all but a few are short
            length = min(length, self.random.choice((9, 9, 70, length)))
        self.longest_prompt = max(self.longest_prompt, min(length, len(text)))
        return list(text[:length])

    def prompt_length(self, text: Sequence[int]) -> int:
        """How much of a text; it may be longer than that."""
        return self.draw.length()

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
        skips, reports = chance(0.04), self.num_requests % 2 == 1  # KV-EVT-11
        return RequestInput(name, prompt, salt, lora, items, embeddings, skips, reports)

    def between_steps(self) -> None:
        """Single calls on the same managers: blocks are evicted by id, or all that is cached."""
        super().between_steps()
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
        running = listed(plan.decoding) + listed(plan.prefilling)
        entries = len(running) + len(listed(plan.new))
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
        self.drew["entries"] += 1
        room = self.config.max_model_len_tokens - request.num_tokens
        count = min(self.draw.length(), room)
        if count > 0 and self.random.random() < 0.05:
            tokens = self.tokens(count)
            self.append([handle], tokens, count)
            self.drew["entries"] += 1

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

    def try_broken(self, plan: StepPlan) -> None:
        """Try illegal plans now and then: the whole state is compared, at its real size."""
        if self.draw.chance(0.1):
            self.note(**{"illegal plans": True})
            super().try_broken(plan)


class DecodingEngine(LongEngine):
    """Hundreds of requests that decode a token in each step: the cheapest form of many operations.

    Some end and others come; where the pool is full, those that were refused give way.
    """

    sizes = (16, 16, 64, 256, 512)
    quiet = 0.7
    """How often there are no events: blocks of several requests are taken at once."""
    plain = 0.7

    def __init__(self, sides: Any, random: Random, *, times: int = 1) -> None:
        self.running: dict[int, int] = {}
        super().__init__(sides, random, times=times)

    def play(self, num_steps: int) -> None:
        """As many requests as there may be, and then steps; at the end the whole state."""
        for _ in range(num_steps * (1 if self.max_requests > 64 else 6)):
            self.clock.now += self.random.randint(1, 9)
            while len(self.handles) < self.max_requests:
                self.arrive()
            for _ in range(self.random.choice(ALONE)):
                self.call_alone()
            self.decode()
        self.compare_all("at the end")

    def config_of(self, random: Random) -> ManagerConfig:
        """Draw one, mostly without events."""
        config = super().config_of(random)
        return replace(config, enable_events=False) if random.random() < self.quiet else config

    def call_alone(self) -> None:
        """Make a single call, which may admit a request, free one or give it a token."""
        super().call_alone()
        of = self.sides[0].batched.request_of
        self.running = {handle: of(handle).num_tokens for handle in self.standing()[1]}

    def decode(self) -> None:
        """One step: what is there decodes, some ends, all others are admitted if they can be."""
        longest, chance = self.config.max_model_len_tokens, self.draw.chance
        ends = [h for h, length in self.running.items() if length >= longest or chance(0.005)]
        decoding = [handle for handle in self.running if handle not in ends]
        new = [handle for handle in self.handles if handle not in self.running]
        new = new[: self.random.choice(OFFERED)]
        plan = StepPlan(
            finished=ends,
            decoding=decoding,
            decode_tokens=[1] * len(decoding),
            prefill_tokens=[],
            new=new,
            stops_at_refusal=True,
            num_lookahead_tokens=self.random.choice((0, 0, 9, 9)),
        )
        self.try_broken(plan)
        if self.drew["steps"] % 16 == 0:
            self.new_outputs(plan)
        else:
            num_rows = self.random.choice((0, 0, 400, ALL_ROWS, ALL_ROWS))
            for side in self.sides:
                side.outputs = Outputs(num_rows)
        result = self.both("KV-BATCH-1", "a step", lambda s: s.batched.step(plan, s.outputs.given))
        first, second = (side.outputs for side in self.sides)
        self.equal("KV-BATCH-9", "slot mappings", first.slots, second.slots)
        self.equal("KV-BATCH-10", "block deltas", first.rows, second.rows)
        self.compare("KV-BATCH-1", "after a step")
        self.settle(plan, dict(zip((*decoding, *new), result.num_scheduled_tokens, strict=True)))

    def settle(self, plan: StepPlan, granted: Mapping[int, int]) -> None:
        """Those that were granted get their next token; running ones that were not give way."""
        ends, decoding = listed(plan.finished), listed(plan.decoding)
        going = [handle for handle, number in granted.items() if number]
        tokens = self.random.choices(TOKEN_IDS, k=len(going))
        self.append(going, tokens)
        for handle in going:
            length = self.sides[0].batched.request_of(handle).num_tokens
            self.running[handle] = length
        away = [handle for handle in decoding if not granted[handle]]
        waiting = [handle for handle in listed(plan.new) if not granted[handle]]
        if not self.running:  # nobody who waits has room
            ends = [*ends, *waiting[:1]]
        self.both("KV-BATCH-5", "preempt", lambda side: side.batched.preempt(away))
        self.both("KV-BATCH-4", "unregister", lambda side: side.batched.unregister(ends))
        for handle in (*ends, *away):
            self.running.pop(handle, None)
        self.handles = [handle for handle in self.handles if handle not in ends]
        self.most_requests = max(self.most_requests, len(self.handles))
        self.drew["steps"] += 1
        asked = len(granted) - len(waiting[1:])  # after a refusal nobody is tried
        self.drew["entries"] += asked + len(going) + len(ends) + len(away)
        self.note(preemption=away, end=ends, refusal=len(going) < len(granted))
        self.note(**{"200 requests": len(self.handles) >= MANY_REQUESTS})


def steps_compared(
    random: Random,
    subject: Implementation,
    num_steps: int,
    *,
    times: int = 1,
    kind: type[LongEngine] = LongEngine,
) -> LongEngine:
    """One engine, its steps by kvfast's own batches and by single calls of kvref."""
    engine = kind(sides(subject), random, times=times)
    engine.play(num_steps)
    return engine
