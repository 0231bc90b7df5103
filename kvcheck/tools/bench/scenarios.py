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
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from kvcheck.tools.bench.calls import UnequalWorkError
from kvcheck.tools.bench.cases import BLOCK_SIZE_TOKENS, DecodeCase, PromptCase
from kvcheck.tools.bench.stopwatch import Stopwatch
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


@dataclass(frozen=True)
class Demands:
    """Checks that a case is what it claims, even if all managers agree that it is not."""

    name: str
    label: str

    def hits(self, lengths_tokens: Sequence[int], wanted_tokens: int) -> None:
        for length in lengths_tokens:
            if length != wanted_tokens:
                raise self._error(LOOK_UP, wanted_tokens, length)

    def room(self, phase: str, answers: Sequence[Any]) -> None:
        """Check that all requests got blocks, so that no refusals are timed."""
        if None in answers:
            raise self._error(phase, "room", None)

    def _error(self, phase: str, wanted: object, got: object) -> UnequalWorkError:
        return UnequalWorkError(phase, self.label, "the case", self.name, wanted, got)


class PromptScenario:
    """See `PromptCase`. `prefixes`: cached beginnings, used in turn."""

    phases = PROMPT_PHASES

    def __init__(self, name: str, work: Work, case: PromptCase, num_rounds: int) -> None:
        self.demands = Demands(name, case.label)
        self.work = work
        self.case = case
        self.num_rounds = num_rounds
        self.tokens = Tokens(case.label)
        self.made = 0
        self.prefixes: list[list[int]] = []
        self.next_prefix = 0

    def prepare(self) -> None:
        """Bring the pool into the state in which the first round finds it."""
        if self.case.cold:
            self._fill()
        elif self.case.hit_tokens:
            calls = self.work.calls
            drawn = [self.tokens.take(self.case.hit_tokens) for _ in range(self.case.num_requests)]
            requests = [calls.make_request(self._input(tokens)) for tokens in drawn]
            for request in requests:
                calls.allocate(request, self.case.hit_tokens)
            for request in requests:
                calls.free(request)
            self.prefixes = drawn
        else:
            self.prefixes = [[] for _ in range(self.case.num_requests)]

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

    def run_round(self, timed: Stopwatch) -> None:
        self._look_up_and_allocate(timed)
        self._admit(timed)
        if self.case.hit_tokens == 0:
            self._extend(timed)

    def _look_up_and_allocate(self, timed: Stopwatch) -> None:
        case, work = self.case, self.work
        blocks = case.num_requests * case.prompt_blocks
        requests, _ = timed(HASH, blocks, work.make(self._prompts()))
        _, hits = timed(LOOK_UP, case.num_requests, work.look_up(requests))
        timed.add_up(FIND, (HASH, LOOK_UP), case.num_requests)
        self.demands.hits([length for length, _ in hits], case.hit_tokens)
        work.look_up(requests).work()  # so that it is again for all, whatever reading took
        timed(LOOK_UP_AGAIN, case.num_requests, work.look_up(requests))
        if isinstance(work, BatchedWork):
            work.admit(requests, self._new_tokens()).work()  # no call works without a look-up
        else:
            for request in requests:
                self._allocate(timed, work, request)
        work.calls.end_step()
        timed(FREE, blocks, work.free(requests))

    def _allocate(self, timed: Stopwatch, work: Work, request: Any) -> None:
        """Allocate for one request; a hit is valid only until another request allocates."""
        case = self.case
        part = work.allocate(
            request, case.prompt_tokens - case.hit_tokens, work.calls.look_up(request)
        )
        _, answers = timed(ALLOCATE, case.prompt_blocks, part)
        self.demands.room(ALLOCATE, answers)

    def _admit(self, timed: Stopwatch) -> None:
        case, work = self.case, self.work
        requests = work.make(self._prompts()).work()
        part = work.admit(requests, self._new_tokens())
        _, answers = timed(ADMIT, case.num_requests * case.prompt_blocks, part)
        self.demands.room(ADMIT, answers)
        self.demands.hits([length for length, _ in answers], case.hit_tokens)
        work.calls.end_step()
        work.free(requests).work()

    def _extend(self, timed: Stopwatch) -> None:
        case, work = self.case, self.work
        requests = work.make(self._prompts()).work()
        first = [BLOCK_SIZE_TOKENS] * case.num_requests
        work.admit(requests, first).work()
        work.computed(requests, first)
        part = work.run(requests, case.prompt_tokens - BLOCK_SIZE_TOKENS)
        _, answers = timed(CHUNK, case.num_requests * (case.prompt_blocks - 1), part)
        self.demands.room(CHUNK, answers)
        work.calls.end_step()
        work.free(requests).work()

    def _new_tokens(self) -> list[int]:
        return [self.case.prompt_tokens - self.case.hit_tokens] * self.case.num_requests

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
    """See `DecodeCase`."""

    phases = DECODE_PHASES

    def __init__(self, name: str, work: Work, case: DecodeCase) -> None:
        self.demands = Demands(name, case.label)
        self.work = work
        self.case = case
        self.tokens = Tokens(case.label)
        self.requests: Any = None

    def prepare(self) -> None:
        """Let all requests run and compute their prompts."""
        case, work = self.case, self.work
        made: list[Any] = []
        for index in range(case.num_requests):
            length = case.length_tokens(index)
            given = work.calls.make_input(f"request-{index}", self.tokens.take(length))
            request = work.make([given]).work()
            part = work.admit(request, [length])
            self.demands.room(ADMIT, part.read(part.work()))
            work.calls.end_step()
            work.computed(request, length)
            made += request
        self.requests = work.group(made)

    def run_round(self, timed: Stopwatch) -> None:
        """Do as many steps as a block has tokens, so that each request completes one block."""
        count = self.case.num_requests
        drawn = [self.tokens.draw(count) for _ in range(BLOCK_SIZE_TOKENS)]
        for tokens in drawn:
            self._step(timed, tokens)
            self.work.computed(self.requests, 1)
        timed.keep(APPEND, self.work.last_hashes(self.requests))

    def _step(self, timed: Stopwatch, tokens: Sequence[int]) -> None:
        work, count = self.work, self.case.num_requests
        timed(APPEND, count, work.append(self.requests, tokens))
        _, answers = timed(DECODE, count, work.run(self.requests, 1))
        self.demands.room(DECODE, answers)
        work.calls.end_step()
