"""The work done on a manager in each case, and the part of it that is timed.

Prompts, round by round: hash, look up, look up again, allocate (which also caches), free; then
other prompts, which are looked up and allocated at once; where nothing is cached, then further
ones, which have their first block and get the rest. Decoding, step by step: append (which hashes
what it completes), allocate. Everything between is not timed: inputs, `num_computed_tokens`,
reading the results, taking the blocks to be zeroed, and the look-ups just before an allocation and
before those made again. As that displaces data from the processor's caches, tokens are drawn before
the round, and results are compared after it.
"""

from __future__ import annotations

from array import array
from random import Random
from typing import Any

from kvcheck.tools.bench.cases import BLOCK_SIZE_TOKENS, DecodeCase, PromptCase
from kvcheck.tools.bench.stopwatch import Turn
from kvcheck.tools.bench.work import BatchedWork, Work

HASH = "hash"
LOOK_UP = "look up"
LOOK_UP_AGAIN = "look up again"
FIND = "hash + look up"
ALLOCATE = "allocate + cache"
ADMIT = "admit"
CHUNK = "prefill chunk"
FREE = "free"
APPEND = "append"
DECODE = "decode step"

PROMPT_PHASES = (HASH, LOOK_UP, FIND, LOOK_UP_AGAIN, ALLOCATE, ADMIT, CHUNK, FREE)
DECODE_PHASES = (APPEND, DECODE)

FILL_CHUNK_BLOCKS = 8
"""A full pool's prompts are laid out in pieces of this many blocks, in random order."""

PASSES = 2
"""How often a round of a full pool looks up cached beginnings."""


class Tokens:
    """Random tokens of 16 bits, the same for every manager: they depend on seed and order only."""

    def __init__(self, seed: str) -> None:
        self.random = Random(seed)
        # One object per value: a pool of a million blocks has 16 million tokens.
        self._values = tuple(range(1 << 16))

    def draw(self, num_tokens: int) -> array[int]:
        """Draw the next tokens in their most compact form."""
        return array("H", self.random.randbytes(2 * num_tokens))

    def take(self, num_tokens: int) -> list[int]:
        return list(map(self._values.__getitem__, self.draw(num_tokens)))


class PromptScenario:
    """See `PromptCase`. `prefixes`: cached beginnings, used in turn."""

    phases = PROMPT_PHASES

    def __init__(self, work: Work, case: PromptCase, num_rounds: int) -> None:
        self.work = work
        self.case = case
        self.num_rounds = num_rounds
        self.tokens = Tokens(case.label)
        self.made = 0
        self.prefixes: list[list[int]] = []
        self.next_prefix = 0

    def prepare(self, timed: Turn) -> None:
        """Bring the pool into the state in which the first round finds it."""
        if self.case.cold:
            return self._fill()
        calls, length = self.work.calls, self.case.hit_tokens
        self.prefixes = [self.tokens.take(length) for _ in range(self.case.num_requests)]
        requests = [calls.make_request(self._input(tokens)) for tokens in self.prefixes if length]
        for request in requests:
            calls.allocate(request, length)
        for request in requests:
            calls.free(request)

    def _fill(self) -> None:
        """Cache prompts until the pool is full; release those that rounds will ask for last."""
        case, calls, shuffle = self.case, self.work.calls, self.tokens.random.shuffle
        count = (case.num_blocks - 1) // case.prompt_blocks
        kept = min(PASSES * case.num_requests * self.num_rounds, count // 2)
        drawn = [self.tokens.take(case.prompt_tokens) for _ in range(count)]
        requests = [calls.make_request(self._input(tokens)) for tokens in drawn]
        chunk = FILL_CHUNK_BLOCKS * BLOCK_SIZE_TOKENS
        pieces = list(range(count)) * (case.prompt_tokens // chunk)
        shuffle(pieces)
        for index in pieces:
            calls.allocate(requests[index], chunk)
            calls.end_step()
            requests[index].num_computed_tokens += chunk
        order = list(range(count))
        shuffle(order)
        for index in order:
            calls.free(requests[index])
        self.prefixes = [drawn[index][: case.hit_tokens] for index in order[-kept:]]

    def run_round(self, timed: Turn) -> None:
        self._look_up_and_allocate(timed)
        self._admit(timed)
        if self.case.hit_tokens == 0:
            self._extend(timed)

    def _look_up_and_allocate(self, timed: Turn) -> None:
        case, work, count = self.case, self.work, self.case.num_requests
        blocks = count * case.prompt_blocks
        requests, _ = timed(HASH, blocks, work.make(self._prompts()))
        _, hits = timed(LOOK_UP, count, work.look_up(requests))
        timed.add_up(FIND, (HASH, LOOK_UP), count)
        timed.demand(LOOK_UP, case.hit_tokens, [length for length, _ in hits])
        work.look_up(requests).work()  # so that it is again for all, whatever reading took
        timed(LOOK_UP_AGAIN, count, work.look_up(requests))
        new = case.prompt_tokens - case.hit_tokens
        if isinstance(work, BatchedWork):
            work.admit(requests, [new] * count).work()  # no call works without a look-up
        else:
            for request in requests:  # a hit is valid only until another request allocates
                part = work.allocate(request, new, work.calls.look_up(request))
                timed.demand_room(ALLOCATE, timed(ALLOCATE, case.prompt_blocks, part)[1])
        work.calls.end_step()
        timed(FREE, blocks, work.free(requests))

    def _admit(self, timed: Turn) -> None:
        case, work, count = self.case, self.work, self.case.num_requests
        requests = work.make(self._prompts()).work()
        part = work.admit(requests, [case.prompt_tokens - case.hit_tokens] * count)
        _, results = timed(ADMIT, count * case.prompt_blocks, part)
        timed.demand_room(ADMIT, results)
        timed.demand(LOOK_UP, case.hit_tokens, [length for length, _ in results])
        work.calls.end_step()
        work.free(requests).work()

    def _extend(self, timed: Turn) -> None:
        case, work, count = self.case, self.work, self.case.num_requests
        requests = work.make(self._prompts()).work()
        work.admit(requests, [BLOCK_SIZE_TOKENS] * count).work()
        work.computed(requests, BLOCK_SIZE_TOKENS)
        part = work.run(requests, case.prompt_tokens - BLOCK_SIZE_TOKENS)
        timed.demand_room(CHUNK, timed(CHUNK, count * (case.prompt_blocks - 1), part)[1])
        work.calls.end_step()
        work.free(requests).work()

    def _prompts(self) -> list[Any]:
        """Make this round's prompts: each has a cached prefix and a new end."""
        ends = self.case.prompt_tokens - self.case.hit_tokens
        prompts = []
        for _ in range(self.case.num_requests):
            prefix = self.prefixes[self.next_prefix % len(self.prefixes)]
            self.next_prefix += 1
            prompts.append(self._input(prefix + self.tokens.take(ends)))
        return prompts

    def _input(self, tokens: list[int]) -> Any:
        self.made += 1
        return self.work.calls.make_input(f"request-{self.made}", tokens)


class DecodeScenario:
    phases = DECODE_PHASES

    def __init__(self, work: Work, case: DecodeCase) -> None:
        self.work = work
        self.case = case
        self.tokens = Tokens(case.label)
        self.requests: list[Any] = []

    def prepare(self, timed: Turn) -> None:
        """Let all requests run and compute their prompts."""
        work = self.work
        for index in range(self.case.num_requests):
            length = self.case.length_tokens(index)
            given = work.calls.make_input(f"request-{index}", self.tokens.take(length))
            request = work.make([given]).work()
            part = work.admit(request, [length])
            timed.demand_room(ADMIT, part.read(part.work()))
            work.calls.end_step()
            work.computed(request, length)
            self.requests += request

    def run_round(self, timed: Turn) -> None:
        """Do as many steps as a block has tokens, so that each request completes one block."""
        work, count = self.work, self.case.num_requests
        drawn = [self.tokens.draw(count) for _ in range(BLOCK_SIZE_TOKENS)]
        for tokens in drawn:
            timed(APPEND, count, work.append(self.requests, tokens))
            timed.demand_room(DECODE, timed(DECODE, count, work.run(self.requests, 1))[1])
            work.calls.end_step()
            work.computed(self.requests, 1)
        timed.keep(APPEND, [hashes[-1:] for hashes in work.hashes(self.requests)])
