"""A case as a script: acts on numbered requests, the same for every contestant and call style.

Prompts, round by round: hash, look up, look up again, allocate (which also caches), free; then
other prompts, which are looked up and allocated at once; where nothing is cached, then further
ones, which have their first block and get the rest. Decoding, step by step: append (which hashes
what it completes), allocate. A trace (`replay.py`): what a scheduler did.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum, auto
from random import Random
from typing import Any, NamedTuple

from kvcheck.tools.bench import calls as phases
from kvspec.config import KVCacheConfig, KVCacheGroup, ManagerConfig
from kvspec.specs import FullAttentionSpec

BLOCK_SIZE_TOKENS = 16
HASH_FUNCTION = "sha256_cbor"

ROOM = "room"
"""The outcome of an allocation that was not refused; that of an admission is its hit in tokens."""

FILL_CHUNK_TOKENS = 8 * BLOCK_SIZE_TOKENS
"""A full pool's prompts are laid out in pieces of this length, in random order."""

PASSES = 2
"""How often a round of a full pool looks up cached beginnings."""


class Act(Enum):
    """An act on requests, or the reading of their last hashes."""

    MAKE = auto()
    LOOK_UP = auto()
    ALLOCATE = auto()
    ADMIT = auto()
    RUN = auto()
    APPEND = auto()
    PREEMPT = auto()
    FREE = auto()
    HASHES = auto()


class Do(NamedTuple):
    """One act, by one batched call or as many single ones as there are requests.

    `given`: for each the prompt, the number of tokens, or the token. `phase`: where its time
    counts, divided by `units`; none: it is not timed. `wants`: the outcome for each request, which
    no contestant may miss; allocations have it always.
    """

    act: Act
    requests: Sequence[int]
    given: Sequence[Any] = ()
    phase: str = ""
    units: int = 0
    wants: Sequence[Any] = ()


Step = Sequence[Do]
"""The acts of one step of an engine."""


@dataclass(frozen=True)
class Case:
    """`rounds(n)` yields the steps that prepare a pool, then those of each round, at most n.

    `kind`: of cases of which each is larger than the one before. `facts` describe it.
    `prompt_tokens`: most tokens of a request at first. `is_anew`: each round has its own pool.
    """

    kind: str
    label: str
    phases: Sequence[str]
    num_blocks: int
    prompt_tokens: int
    facts: Mapping[str, Any]
    rounds: Callable[[int], Iterator[Iterable[Step]]] = field(repr=False)
    is_anew: bool = False

    def config(self) -> ManagerConfig:
        """Return one group of full attention, with a fixed seed: all managers have equal hashes."""
        spec = FullAttentionSpec(
            block_size=BLOCK_SIZE_TOKENS, num_kv_heads=8, head_size=128, dtype="bfloat16"
        )
        return ManagerConfig(
            KVCacheConfig(self.num_blocks, (KVCacheGroup(("layer.0",), spec),)),
            max_model_len_tokens=2 * self.prompt_tokens,
            hash_function=HASH_FUNCTION,
            hash_seed="0",
        )


class Tokens:
    """Random tokens of 16 bits, the same for every manager: they depend on seed and order only."""

    def __init__(self, seed: str) -> None:
        self.random = Random(seed)
        # One object per value: a pool of a million blocks has 16 million tokens.
        self._values = tuple(range(1 << 16))

    def draw(self, num_tokens: int) -> array[int]:
        """Draw the next tokens in their most compact form."""
        return array("H", self.random.randbytes(2 * num_tokens))

    def spelled(self, drawn: Sequence[int]) -> list[int]:
        return list(map(self._values.__getitem__, drawn))


@dataclass(frozen=True)
class Prompts:
    """Prompts that arrive together, are looked up, allocated and freed.

    `hit_percent`: how much of each prompt is cached, in whole blocks, rounded down. `cold`: the
    pool is full of other cached prompts, laid out and released in random order, and each round asks
    for prompts that no recent round asked for. Otherwise the same blocks are used in every round.
    """

    num_requests: int
    prompt_tokens: int
    hit_percent: int
    num_blocks: int
    cold: bool = False

    def case(self) -> Case:
        label = f"{self.num_requests} × {self.prompt_tokens:,} tokens, {self.hit_percent}% cached"
        label += f", a cold pool of {self.num_blocks:,}" if self.cold else ""
        sizes = self.num_blocks, self.prompt_tokens
        kind = "pool" if self.cold else "prompt"
        return Case(kind, label, phases.PROMPT_PHASES, *sizes, asdict(self), self.rounds)

    @property
    def prompt_blocks(self) -> int:
        return self.prompt_tokens // BLOCK_SIZE_TOKENS

    @property
    def hit_tokens(self) -> int:
        return self.prompt_blocks * self.hit_percent // 100 * BLOCK_SIZE_TOKENS

    def rounds(self, num_rounds: int) -> Iterator[Iterable[Step]]:
        """Look up what was released last, so that no look-up evicts another."""
        tokens, count, length = Tokens(str(self)), self.num_requests, self.hit_tokens
        if self.cold:
            count, length = (self.num_blocks - 1) // self.prompt_blocks, self.prompt_tokens
        drawn, order = [tokens.draw(length) for _ in range(count)], list(range(count))
        piece = min(length, FILL_CHUNK_TOKENS) if self.cold else length
        pieces = order * (length // piece if piece else 0)
        if self.cold:
            tokens.random.shuffle(pieces)
            tokens.random.shuffle(order)
            count = min(PASSES * self.num_requests * num_rounds, count // 2)
        prompts = ((index, tokens.spelled(prompt)) for index, prompt in enumerate(drawn) if prompt)
        yield _cached(prompts, pieces, piece, order)
        prefixes = itertools.cycle([drawn[index][: self.hit_tokens] for index in order[-count:]])
        del drawn
        names = itertools.count(len(order))
        for _ in range(num_rounds):
            yield self._round(tokens, prefixes, names)

    def _round(
        self, tokens: Tokens, prefixes: Iterator[array[int]], names: Iterator[int]
    ) -> Iterator[Step]:
        count, new = self.num_requests, self.prompt_tokens - self.hit_tokens
        blocks, hits, rest = count * self.prompt_blocks, (self.hit_tokens,) * count, (new,) * count

        def made(phase: str = "") -> Do:
            """Make prompts: each has a cached beginning and a new end."""
            prompts = [tokens.spelled(next(prefixes) + tokens.draw(new)) for _ in range(count)]
            return Do(Act.MAKE, [next(names) for _ in prompts], prompts, phase, blocks)

        make = made(phases.HASH)
        each, own = make.requests, (phases.ALLOCATE, self.prompt_blocks, hits[:1])
        yield [
            make,
            Do(Act.LOOK_UP, each, (), phases.LOOK_UP, count, hits),
            Do(Act.LOOK_UP, each),  # so that it is again for all, whatever reading took
            Do(Act.LOOK_UP, each, (), phases.LOOK_UP_AGAIN, count, hits),
            *(Do(Act.ALLOCATE, [one], rest[:1], *own) for one in each),
            Do(Act.FREE, each, (), phases.FREE, blocks),
        ]
        make = made()
        admit = Do(Act.ADMIT, make.requests, rest, phases.ADMIT, blocks, hits)
        yield [make, admit, Do(Act.FREE, make.requests)]
        if self.hit_tokens == 0:
            make, begin = made(), (BLOCK_SIZE_TOKENS,) * count
            yield [make, Do(Act.ADMIT, make.requests, begin, wants=hits)]
            chunk, room = (new - BLOCK_SIZE_TOKENS,) * count, (ROOM,) * count
            run = Do(Act.RUN, make.requests, chunk, phases.CHUNK, blocks - count, room)
            yield [run, Do(Act.FREE, make.requests)]


def _cached(
    prompts: Iterable[tuple[int, Any]], pieces: Sequence[int], piece: int, order: Sequence[int]
) -> Iterator[Step]:
    """Yield steps that lay out prompts piece by piece, and release them in this order."""
    for index, prompt in prompts:
        yield [Do(Act.MAKE, (index,), (prompt,))]
    begun: set[int] = set()
    for index in pieces:
        act, want = (Act.RUN, ROOM) if index in begun else (Act.ADMIT, 0)
        begun.add(index)
        yield [Do(act, (index,), (piece,), wants=(want,))]
    for index in order if pieces else ():
        yield [Do(Act.FREE, (index,))]


@dataclass(frozen=True)
class Decoding:
    """Running requests that get one token each per step, until each has filled one more block.

    Their prompts are of `prompt_tokens` and up to 15 more, so that as many complete a block, and
    begin one, in each step.
    """

    num_requests: int
    prompt_tokens: int
    num_blocks: int

    def case(self) -> Case:
        label = f"{self.num_requests:,} running, from {self.prompt_tokens} tokens each"
        sizes = self.num_blocks, self.prompt_tokens
        return Case("decode", label, phases.DECODE_PHASES, *sizes, asdict(self), self.rounds)

    def rounds(self, num_rounds: int) -> Iterator[Iterable[Step]]:
        """Let all requests run and compute their prompts; then each completes a block a round."""
        tokens, every, count = Tokens(str(self)), range(self.num_requests), self.num_requests
        lengths = [self.prompt_tokens + index % BLOCK_SIZE_TOKENS for index in every]
        yield (
            [
                Do(Act.MAKE, [name], [tokens.spelled(tokens.draw(lengths[name]))]),
                Do(Act.ADMIT, [name], [lengths[name]], wants=[0]),
            ]
            for name in every
        )
        run = Do(Act.RUN, every, (1,) * count, phases.DECODE, count, (ROOM,) * count)
        for _ in range(num_rounds):
            drawn = [tokens.draw(count) for _ in range(BLOCK_SIZE_TOKENS)]
            appends = (Do(Act.APPEND, every, each, phases.APPEND, count) for each in drawn)
            yield [*([append, run] for append in appends), [Do(Act.HASHES, every)]]


SECTIONS = ("prompts", "pools", "decode", "replay")
"""The parts that a plan may be reduced to."""


@dataclass(frozen=True)
class Plan:
    """The cases and how often each is measured; one further round before them is not counted."""

    cases: tuple[Case, ...]
    num_rounds: int


def full_plan(sections: Collection[str] = SECTIONS) -> Plan:
    """Plan prompts of 512 to 128k tokens, pools of 1k to 4M blocks, 1 to 4096 requests."""
    sizes, pools = ((64, 512), (16, 8192), (1, 131072)), [4**power for power in range(5, 12)]
    return _plan(sections, 9, sizes, (0, 50, 97), pools, (1, 16, 256, 1024, 4096))


def quick_plan(sections: Collection[str] = SECTIONS) -> Plan:
    """Return a small plan that takes seconds instead of minutes."""
    return _plan(sections, 5, ((16, 512), (1, 8192)), (0, 97), (1024, 8 * 1024), (1, 64))


def _plan(
    sections: Collection[str],
    rounds: int,
    prompts: Iterable[tuple[int, int]],
    hits: Sequence[int],
    pools: Iterable[int],
    running: Iterable[int],
) -> Plan:
    """Hot pools are twice what the prompts need, so that no hit is evicted; cold ones grow."""
    cases: list[Prompts | Decoding] = []
    if "prompts" in sections:
        for count, tokens in prompts:
            size = 2 * count * tokens // BLOCK_SIZE_TOKENS + 1
            cases += [Prompts(count, tokens, percent, size) for percent in hits]
    if "pools" in sections:
        cases += [Prompts(4, 1024, 50, size, cold=True) for size in pools]
    if "decode" in sections:
        blocks = 512 // BLOCK_SIZE_TOKENS + rounds + 2
        cases += [Decoding(count, 512, count * blocks + 1) for count in running]
    return Plan(tuple(each.case() for each in cases), rounds)
