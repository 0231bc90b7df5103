"""What is done to a manager in each case, and which part of it is timed.

Prompts, round by round: hash, look up, allocate (which caches, too), free. Decoding, step by step:
append (which hashes what it completes), allocate. Everything between is not timed: tokens, inputs,
`num_computed_tokens`, reading the answers, and the look-up just before an allocation.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol

from kvspec.bench.calls import Calls
from kvspec.bench.cases import BLOCK_SIZE_TOKENS, Case, DecodeCase, PromptCase
from kvspec.bench.errors import UnequalWorkError

HASH = "hash"
LOOK_UP = "look up"
ALLOCATE = "allocate + cache"
FREE = "free"
APPEND = "append"
DECODE = "decode step"

FILL_CHUNK_BLOCKS = 8
"""A full pool's prompts are laid out in pieces of this many blocks, in random order."""


class Timed(Protocol):
    """Times `work` as a part of `phase`; checks the answers, made from its result by `read`."""

    def __call__(
        self, phase: str, units: int, work: Callable[[], Any], read: Callable[[Any], Sequence[Any]]
    ) -> Any: ...


class Tokens:
    """Random tokens of 16 bits, the same for every manager: they depend on seed and order only."""

    def __init__(self, seed: str) -> None:
        self.random = Random(seed)
        # One object per value: a pool of a million blocks has 16 million tokens.
        self._values = tuple(range(1 << 16))

    def take(self, num_tokens: int) -> list[int]:
        """The next tokens."""
        drawn = array("H", self.random.randbytes(2 * num_tokens))
        return list(map(self._values.__getitem__, drawn))


@dataclass(frozen=True)
class Demands:
    """What a case is about has to be so, even where all managers agree that it is not."""

    name: str
    label: str

    def hits(self, lengths_tokens: Sequence[int], wanted_tokens: int) -> None:
        """What is called 97% cached is that."""
        for length in lengths_tokens:
            if length != wanted_tokens:
                raise self._error(LOOK_UP, wanted_tokens, length)

    def room(self, phase: str, answers: Sequence[Any]) -> None:
        """Everyone got blocks: the times are not those of refusals."""
        if None in answers:
            raise self._error(phase, "room", None)

    def _error(self, phase: str, wanted: object, got: object) -> UnequalWorkError:
        return UnequalWorkError(phase, self.label, "the case", self.name, wanted, got)


class PromptScenario:
    """See `PromptCase`. `prefixes`: cached beginnings, used in turn."""

    def __init__(self, name: str, calls: Calls, case: PromptCase, num_rounds: int) -> None:
        self.demands = Demands(name, case.label)
        self.calls = calls
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
            drawn = [self.tokens.take(self.case.hit_tokens) for _ in range(self.case.num_requests)]
            requests = [self.calls.make_request(self._input(tokens)) for tokens in drawn]
            for request in requests:
                self.calls.allocate(request, self.case.hit_tokens)
            for request in requests:
                self.calls.free(request)
            self.prefixes = drawn
        else:
            self.prefixes = [[] for _ in range(self.case.num_requests)]

    def _fill(self) -> None:
        """Cache prompts until the pool is full; release those that rounds will ask for last."""
        case, calls, shuffle = self.case, self.calls, self.tokens.random.shuffle
        count = (case.num_blocks - 1) // case.prompt_blocks
        kept = min(case.num_requests * self.num_rounds, count // 2)
        drawn = [self.tokens.take(case.prompt_tokens) for _ in range(count)]
        requests = [calls.make_request(self._input(tokens)) for tokens in drawn]
        chunk = FILL_CHUNK_BLOCKS * BLOCK_SIZE_TOKENS
        pieces = list(range(count)) * (case.prompt_tokens // chunk)
        shuffle(pieces)
        for index in pieces:
            calls.allocate(requests[index], chunk)
            requests[index].num_computed_tokens += chunk
        order = list(range(count))
        shuffle(order)
        for index in order:
            calls.free(requests[index])
        self.prefixes = [drawn[index][: case.hit_tokens] for index in order[-kept:]]

    def run_round(self, timed: Timed) -> None:
        """One round."""
        calls, case = self.calls, self.case
        make, look_up, free = calls.make_request, calls.look_up, calls.free
        given = [self._input(tokens) for tokens in self._prompts()]
        blocks = case.num_requests * case.prompt_blocks
        requests = timed(
            HASH,
            blocks,
            lambda: [make(each) for each in given],
            lambda made: [calls.read_hashes(request) for request in made],
        )
        hits = timed(
            LOOK_UP,
            case.num_requests,
            lambda: [look_up(request) for request in requests],
            lambda found: [calls.read_hit(hit) for hit in found],
        )
        self.demands.hits([calls.read_hit(hit)[0] for hit in hits], case.hit_tokens)
        for request in requests:
            self._allocate(timed, request)
        timed(
            FREE,
            blocks,
            lambda: [free(request) for request in requests],
            lambda _: [calls.num_free_blocks()],
        )

    def _allocate(self, timed: Timed, request: Any) -> None:
        """One request; a hit is valid only until another request allocates."""
        calls, case = self.calls, self.case
        allocate, hit = calls.allocate_with_hit, calls.look_up(request)
        new_tokens = case.prompt_tokens - case.hit_tokens
        answer = timed(
            ALLOCATE,
            case.prompt_blocks,
            lambda: allocate(request, new_tokens, hit),
            lambda answer: [calls.read_blocks(answer)],
        )
        self.demands.room(ALLOCATE, [answer])

    def _prompts(self) -> list[list[int]]:
        """This round's prompts: a cached beginning each, and an end that was never seen."""
        ends = self.case.prompt_tokens - self.case.hit_tokens
        prompts = []
        for _ in range(self.case.num_requests):
            prefix = self.prefixes[self.next_prefix % len(self.prefixes)]
            self.next_prefix += 1
            prompts.append(prefix + self.tokens.take(ends))
        return prompts

    def _input(self, tokens: list[int]) -> Any:
        self.made += 1
        return self.calls.make_input(f"request-{self.made}", tokens)


class DecodeScenario:
    """See `DecodeCase`."""

    def __init__(self, name: str, calls: Calls, case: DecodeCase) -> None:
        self.demands = Demands(name, case.label)
        self.calls = calls
        self.case = case
        self.tokens = Tokens(case.label)
        self.length_tokens = case.prompt_tokens
        self.requests: list[Any] = []

    def prepare(self) -> None:
        """All requests run and have computed their prompts."""
        calls, case = self.calls, self.case
        for index in range(case.num_requests):
            tokens = self.tokens.take(case.prompt_tokens)
            request = calls.make_request(calls.make_input(f"request-{index}", tokens))
            self.demands.room(ALLOCATE, [calls.allocate(request, case.prompt_tokens)])
            request.num_computed_tokens = case.prompt_tokens
            self.requests.append(request)

    def run_round(self, timed: Timed) -> None:
        """As many steps as a block has tokens."""
        for _ in range(BLOCK_SIZE_TOKENS):
            self._step(timed)
            self.length_tokens += 1
            for request in self.requests:
                request.num_computed_tokens = self.length_tokens

    def _step(self, timed: Timed) -> None:
        calls, requests = self.calls, self.requests
        append, allocate = calls.append_tokens, calls.allocate
        pairs = [(request, self.tokens.take(1)) for request in requests]
        timed(
            APPEND,
            len(requests),
            lambda: [append(request, token) for request, token in pairs],
            lambda _: [calls.read_hashes(request)[-1:] for request in requests],
        )
        answers = timed(
            DECODE,
            len(requests),
            lambda: [allocate(request, 1) for request in requests],
            lambda answers: [calls.read_blocks(answer) for answer in answers],
        )
        self.demands.room(DECODE, answers)


Scenario = PromptScenario | DecodeScenario


def scenario_of(name: str, calls: Calls, case: Case, num_rounds: int) -> Scenario:
    """What is done in this case; `num_rounds`: those to come, the one not counted included."""
    if isinstance(case, DecodeCase):
        return DecodeScenario(name, calls, case)
    return PromptScenario(name, calls, case, num_rounds)
