"""Followed requests, held blocks and facts: kvfast, both builds, beside kvref, call by call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from random import Random
from typing import Any

import pytest

import kvref
from kvcheck.play.random_configs import random_config
from kvspec.config import ManagerConfig
from kvspec.errors import KVSpecError
from kvspec.following import FollowedInput
from kvspec.interface import Implementation
from kvspec.sequential import batched_of
from tests.lockstep.test_lockstep import fast
from tests.mistakes import mistaken

__all__ = ["fast"]  # the fixture

REFERENCE = kvref.implementation()
NUM_ENGINES = 30
NUM_CALLS = 40
SIZE_BYTES = 16


class DifferentError(Exception):
    """The two sides answered differently."""


class Engine:
    """Tells two implementations of the same requests, and compares all that they answer."""

    def __init__(self, config: ManagerConfig, sides: tuple[Any, Any], random: Random) -> None:
        self.sides, self.random = sides, random
        self.managers = [each.create(config, check_invariants=False) for each in sides]
        self.batches = [batched_of(*pair) for pair in zip(sides, self.managers, strict=True)]
        self.config = self.managers[0].config
        self.size = (self.config.hash_block_size_tokens or 0) if config.enable_caching else 0
        self.requests: list[tuple[Any, Any]] = []
        self.texts: list[int] = []
        self.held: list[int] = []

    def both(self, call: Callable[[int], Any]) -> Any:
        """One call on both sides: the same answer or error, and the same state after it."""
        told: list[Any] = []
        for side in (0, 1):
            try:
                told.append(call(side))
            except KVSpecError as error:
                told.append((type(error), getattr(error, "field", None)))
        if told[0] != told[1] and not hasattr(told[0], "request_id"):
            raise DifferentError(f"{told[0]} and {told[1]}")
        states = [self.seen(side) for side in (0, 1)]
        if states[0] != states[1]:
            raise DifferentError("the states")
        return told

    def seen(self, side: int) -> object:
        """All that is to be seen of one side."""
        requests = [pair[side] for pair in self.requests]
        members = [
            (r.num_tokens, r.num_prompt_tokens, list(r.block_hashes), r.num_computed_tokens)
            for r in requests
        ]
        manager = self.managers[side]
        return manager.snapshot(), members, manager.take_events(), manager.take_new_block_ids()

    def hashes(self, text: int, first: int, end: int) -> list[bytes]:
        """Of a text: all begin alike, and part at the third hash."""
        named = [f"{text if number > 1 else 0} {number}" for number in range(first, end)]
        return [sha256(name.encode()).digest()[:SIZE_BYTES] for name in named]

    def full(self, num_tokens: int) -> int:
        return num_tokens // self.size if self.size else 0

    def arrive(self) -> None:
        random, text, number = self.random, self.random.randrange(4), len(self.requests)
        num_tokens = random.randint(1, min(60, self.config.max_model_len_tokens - 8))
        wrong = random.choice([0, 0, 0, 1])
        hashes = self.hashes(text, 0, self.full(num_tokens) + wrong)
        prompt = random.randint(1, num_tokens)
        given = FollowedInput(f"r{number}", num_tokens, prompt, hashes, random.random() < 0.1)
        made = self.both(lambda side: self.sides[side].make_followed(self.managers[side], given))
        if hasattr(made[0], "request_id"):
            self.both(lambda side: self.batches[side].register(made[side]))
            self.requests.append((made[0], made[1]))
            self.texts.append(text)
            self.both(lambda side: self.step(side, "admit", [number]))

    def step(self, side: int, name: str, handles: list[int]) -> object:
        """A step of these, or the error that it ends with."""
        result = getattr(self.batches[side], name)(handles)
        return result and (result.num_scheduled_tokens, result.hit_tokens)

    def follow(self) -> None:
        """One or all grow, seldom shrink, now and then with a hash or a count that is wrong."""
        chosen = [h for h in range(len(self.requests)) if self.random.random() < 0.5]
        tokens, hashes = [], []
        for handle in chosen:
            request = self.requests[handle][0]
            less = self.random.random() < 0.2
            grown = request.num_tokens + self.random.randint(0, 5)
            tokens.append(max(1, request.num_computed_tokens) if less else grown)
            have = len(request.block_hashes)
            hashes += self.hashes(self.texts[handle], have, self.full(tokens[-1]))
        wrong = self.random.choice(["", "", "", "", "", "", "a hash", "a count"])
        if wrong == "a hash":
            hashes.append(b"1234")
        elif wrong:
            tokens.append(7)
        prompts = self.random.choice([None, None, 1])
        kind = self.random.choice([list, tuple])
        if len(chosen) == 1 and len(tokens) == 1 and self.random.random() < 0.7:
            pair = self.requests[chosen[0]]
            self.both(
                lambda side: self.sides[side].follow(
                    self.managers[side], pair[side], tokens[0], hashes, num_prompt_tokens=prompts
                )
            )
            return
        self.both(
            lambda side: self.batches[side].follow(
                chosen, tokens, kind(hashes), num_prompt_tokens=prompts
            )
        )

    def run(self) -> None:
        """Each request decodes or ends."""
        under_way = [
            handle
            for handle, (request, _) in enumerate(self.requests)
            if 0 < request.num_computed_tokens < self.config.max_model_len_tokens
        ]
        name = self.random.choice(["decode", "decode", "decode", "preempt", "free"])
        if name != "decode":
            under_way = under_way[:1]
        self.both(lambda side: self.step(side, name, under_way))

    def admit(self) -> None:
        waiting = [h for h, (r, _) in enumerate(self.requests) if not r.num_computed_tokens]
        self.both(lambda side: self.step(side, "admit", waiting))

    def ask(self) -> None:
        """Single calls on one request, legal ones and others."""
        random = self.random
        if not self.requests:
            return
        pair = random.choice(self.requests)
        group, num_tokens = random.randrange(3), random.randint(0, 30)
        calls: tuple[tuple[str, tuple[Any, ...]], ...] = (
            ("cache_partial_block", (group, num_tokens)),
            ("cache_partial_block", (group, num_tokens // 2 * 2)),
            ("cache_blocks", (num_tokens,)),
            ("find_longest_cache_hit_per_group", (num_tokens,)),
            ("get_computed_blocks", ()),
            ("get_unhashed_block_ids", ()),
            ("allocate_slots", (num_tokens,)),
        )
        name, given = random.choice(calls)
        self.both(lambda side: getattr(self.managers[side], name)(pair[side], *given))
        self.both(lambda side: self.sides[side].append_tokens(self.managers[side], pair[side], [1]))

    def hold(self) -> None:
        """Any blocks, null and now and then one that does not exist among them."""
        ids = [self.random.randrange(self.config.kv_cache.num_blocks) for _ in range(3)]
        if self.random.random() < 0.1:
            ids.append(self.config.kv_cache.num_blocks)
        if self.both(lambda side: self.managers[side].hold_blocks(ids))[0] is None:
            self.held += ids
        for block in ids:
            self.look_at(block)

    def look_at(self, block: int) -> None:
        """One block, and those behind it in the queue."""
        self.both(lambda side: self.managers[side].get_block(block))
        self.both(lambda side: self.batches[side].next_free_blocks(3, after=block))

    def give_back(self) -> None:
        count = self.random.randint(0, len(self.held))
        given, self.held = self.held[:count], self.held[count:]
        self.both(lambda side: self.managers[side].free_blocks(given))
        self.both(lambda side: self.managers[side].reset_prefix_cache())


def play(first: Implementation, second: Implementation, num_engines: int = NUM_ENGINES) -> None:
    """Engines on random configurations."""
    often = (Engine.arrive, Engine.follow, Engine.run)
    calls = (*often, *often, Engine.admit, Engine.ask, Engine.hold, Engine.give_back)
    for seed in range(num_engines):
        random = Random(seed)
        config = replace(random_config(random), hash_function=f"given_{SIZE_BYTES}")
        engine = Engine(config, (first, second), random)
        for _ in range(NUM_CALLS):
            random.choice(calls)(engine)


@pytest.mark.rule("KV-REQ-7", "KV-REQ-8", "KV-BATCH-14", "KV-POOL-19", "KV-POOL-20", "KV-BATCH-15")
def test_both_twins_follow_alike(fast: Implementation) -> None:
    play(fast, REFERENCE)


@pytest.mark.parametrize(
    "name",
    ["GivenHashesAreTurned", "HashesOutliveTheirTokens", "PromptsAreForgotten",
     "RangesHaveNoBlocks", "HeldBlocksStayInTheQueue", "FactsHaveTheWholeKey"],
)  # fmt: skip
def test_the_engine_sees_what_is_wrong(name: str) -> None:
    with pytest.raises((DifferentError, AssertionError, ValueError, IndexError)):
        play(mistaken(name), REFERENCE)
