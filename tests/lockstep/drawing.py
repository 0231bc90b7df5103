"""Random programs at the sizes of production, which small pools and short texts never reach.

Prompts of thousands of tokens, blocks of 1 to 512 tokens, pools of up to 100,000 blocks,
events, statistics and samples off as often as on. Lengths are drawn around multiples of the block
size that an implementation may treat differently: a memory word, a run of blocks, a batch of
hashes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

from kvcheck.play import steps as st
from kvcheck.play.random_configs import random_config
from kvcheck.play.random_programs import HABITS, LAST, WEIGHTS, Draw, holes, withdrawing
from kvcheck.play.steps import Program, Step
from kvspec.config import GIVEN_HASHES, KVCacheConfig, ManagerConfig
from kvspec.domains import COUNT_MAX
from kvspec.specs import (
    ChunkedLocalAttentionSpec,
    LayerSpec,
    SinkFullAttentionSpec,
    SlidingWindowSpec,
)

BLOCK_SIZES = (1, 2, 4, 8, 16, 16, 16, 32, 48, 64, 128, 256, 512)
LARGE_POOLS = (5_000, 20_000, 100_000)
LONGEST_TOKENS = 20_000
EDGES = (
    1, 2, 3, 8, 16, 31, 32, 33, 63, 64, 65, 127, 128, 255, 256, 257, 511, 512, 1023, 1024, 1025,
)  # fmt: skip
"""Numbers of blocks or tokens around which an implementation may switch its method."""

MOST_BLOCKS_OF_A_TEXT = 1100
"""Limit for most texts: the reference, which takes microseconds per block, then does hundreds of
calls a second."""


def production_program(random: Random, max_steps: int) -> Program:
    """Draw one program: texts that share beginnings, then the habits of schedulers.

    Some with mixtures begin with holes in the cache, with each group's own hit, or with many
    boundaries inside of blocks.
    """
    return program_under(production_config(random), random, max_steps)


def program_under(
    config: ManagerConfig, random: Random, max_steps: int, *begin: Callable[[LongDraw], list[Step]]
) -> Program:
    """Draw a program under a configuration; `begin`: its first steps, drawn if left out."""
    draw = LongDraw(random, config)
    boundaries = many_boundaries if draw.has_finer_hashes else _nothing
    usual: tuple[Callable[[LongDraw], list[Step]], ...] = (
        holes,
        asked_first,
        boundaries,
        boundaries,
    )
    if len(config.managed_specs) < 2:
        usual = (coming_back, _nothing, _nothing)
    first = random.choice(begin or usual)(draw)
    steps: list[Step] = [draw.arrival() for _ in range(random.choice((1, 2, 3)))]
    length = random.randint(max_steps // 2, max_steps)
    while len(steps) < length:
        steps += draw.habit()
    whole = withdrawing(random, (*first, *steps[:max_steps]))
    return Program(config, whole, name="random at real sizes")


def flood(draw: LongDraw) -> list[Step]:
    """Take all free blocks for one text; then let a request arrive."""
    text = tuple(range(2**20, 2**20 + draw.filling))
    whole = (st.Arrive(text), st.Admit(LAST, look_up=False, must_fit=False), st.Release(LAST))
    return [*whole, draw.arrival(), st.Admit(LAST)]


def coming_back(draw: LongDraw) -> list[Step]:
    """Let a text that fills the pool be preempted and return while another holds a few blocks."""
    whole = st.Arrive(tuple(range(draw.filling)))
    other = st.Arrive((2**20,) * min(3 * draw.sizes[0], draw.longest))
    way: tuple[Step, ...] = (st.Release(LAST, again=True), other, st.Admit(LAST))
    return [whole, st.Admit(LAST), *way, st.Admit(LAST), st.Run(LAST)]


def holding(draw: LongDraw) -> list[Step]:
    """Hold blocks while requests come or go; return some at once, others at the end."""
    between: list[Step] = [draw.release(), draw.admission(), draw.eviction(), draw.hold()]
    back = [st.ReturnPopped(draw.random.choice((1, 3, 99)))] if draw.chance(0.6) else []
    return [draw.hold(), draw.random.choice(between), *back]


def retelling(draw: LongDraw) -> list[Step]:
    """Replace tokens of a request, which may be preempted, by fewer or by a longer prompt."""
    way: list[Step] = [st.Release(draw.who(), again=True)] if draw.chance(0.4) else []
    return [*way, draw.retelling(), draw.admission(), draw.run()]


def asked_first(draw: LongDraw) -> list[Step]:
    """Ask each group for its own hit of a long text before any look-up of a common one."""
    again: list[Step] = [st.Release(again=True), st.Ask(), st.Admit()]
    whole: list[Step] = [st.Arrive(tuple(draw.texts[0])), st.Admit(LAST, look_up=False), st.Ask()]
    return whole if draw.chance(0.5) else [*whole, *again]


def _nothing(draw: Draw) -> list[Step]:
    return []


def many_boundaries(draw: LongDraw) -> list[Step]:
    """Cache a text, more and more boundaries inside of its blocks, and others that replace it."""
    random = draw.random
    group = random.choice((0, 0, 0, 1, 2))
    count = random.choice((3, 30, 63, 66, 70))

    def text(num_boundaries: int) -> list[Step]:
        inside = [st.CachePartial(LAST, group, number) for number in range(num_boundaries)]
        whole = st.Arrive(tuple(random.choice(draw.texts)[: draw.filling]))
        return [whole, st.Admit(LAST, look_up=draw.chance(0.5)), *inside]

    steps = [*text(count), st.Release(LAST, again=True)]
    if draw.chance(0.7):
        steps += [st.Evict(LAST, group, random.randrange(3), random.choice((1, 3))), st.Reset()]
    elif draw.chance(0.5):
        steps += flood(draw)
    return [*steps, *text(random.choice((3, 30))), st.Release(LAST)]


def production_config(random: Random, *, is_quick: bool = False) -> ManagerConfig:
    """Draw the mixtures and options of `random_config`, at the sizes of engines.

    `is_quick`: no pool is larger than the smallest large one, and few are as large; the reference's
    time for a call grows with them.
    """
    small = random_config(random, hybrid=random.random() < 0.2)
    base = random.choice(BLOCK_SIZES)
    specs = [_scaled(random, spec, base) for spec in _wider(random, small.managed_specs)]
    if len(specs) > 1 and all(spec == specs[0] for spec in specs):  # KV-COORD-3
        specs[-1] = replace(specs[-1], block_size=2 * specs[-1].block_size)
    sizes = [spec.block_size for spec in specs] or [base]
    alignment = max(sizes)
    of_a_text = LONGEST_TOKENS if random.random() < 0.03 else MOST_BLOCKS_OF_A_TEXT
    longest = min(LONGEST_TOKENS, of_a_text * min(sizes))
    longest = max(longest - random.randrange(base + 1), 4 * alignment)
    per_text = sum(-(-longest // size) for size in sizes)
    share = random.choice((0.3, 0.7, 1.0, 1.2, 2.5, 4.0))
    num_blocks = int(share * per_text) if random.random() < 0.7 else random.choice(EDGES)
    drawn = random.random()
    if drawn < 0.08:
        num_blocks = random.choice(LARGE_POOLS)
    if is_quick:  # Hypothesis draws 0 most often
        most = LARGE_POOLS[0] if 0 < drawn < 0.08 else MOST_BLOCKS_OF_A_TEXT
        num_blocks = min(num_blocks, most)
    set_aside = sum(s.num_sink_blocks for s in specs)
    groups = [
        replace(group, spec=spec) for group, spec in zip(small.kv_cache.groups, specs, strict=True)
    ]
    interval = small.retention_interval_tokens
    return replace(
        small,
        kv_cache=KVCacheConfig(max(num_blocks, 8) + set_aside, tuple(groups)),
        max_model_len_tokens=longest,
        max_num_batched_tokens=random.choice((None, 512, 2048, 8192)),
        scheduler_block_size_tokens=None,
        hash_block_size_tokens=random.choice(
            (None, max(min(sizes) // 2, 1), max(min(sizes) // 4, 1))
        ),
        retention_interval_tokens=alignment * random.choice((1, 4, 64)) if interval else interval,
        enable_events=random.random() < 0.4,
        log_stats=random.random() < 0.5,
        residency_sample_rate=random.choice((0.0, 0.5, 1.0)),
        hash_function=random.choice((*[small.hash_function] * 9, *GIVEN_HASHES)),
    )


def _wider(random: Random, specs: Sequence[LayerSpec]) -> list[LayerSpec]:
    """Make the largest of unequal block sizes many times the smallest."""
    largest = max((spec.block_size for spec in specs), default=1)
    factor = random.choice((1, 1, 4, 8))
    if all(spec.block_size == largest for spec in specs):
        factor = 1
    return [
        replace(spec, block_size=factor * spec.block_size) if spec.block_size == largest else spec
        for spec in specs
    ]


def _scaled(random: Random, spec: LayerSpec, base: int) -> LayerSpec:
    """Return the same kind of group with larger blocks and a window of many."""
    size = spec.block_size * base
    if isinstance(spec, SlidingWindowSpec):
        window = random.choice((base, 4 * base, 33 * base, 1024, 4096)) + random.choice(
            (-1, 0, 0, 1)
        )
        return replace(spec, block_size=size, sliding_window=max(window, 1))
    if isinstance(spec, ChunkedLocalAttentionSpec):
        chunk = size * random.choice((1, 4, 33, 64))
        return replace(spec, block_size=size, attention_chunk_size=chunk)
    if isinstance(spec, SinkFullAttentionSpec):
        return replace(spec, block_size=size, sink_len=size * random.choice((1, 2)))
    return replace(spec, block_size=size)


class LongDraw(Draw):
    """Texts of thousands of tokens; everything else as often as in short programs."""

    def __init__(self, random: Random, config: ManagerConfig) -> None:
        self.random, self.config = random, config
        self.sizes = sorted({spec.block_size for spec in config.managed_specs} or {1})
        self.longest = config.max_model_len_tokens - 1
        finest = config.hash_block_size_tokens or self.sizes[0]
        self.has_finer_hashes = config.enable_caching and finest < self.sizes[-1]
        per_token = sum(1 / spec.block_size for spec in config.managed_specs) or 1
        filling = int((config.kv_cache.num_blocks - 1) / per_token)  # what the pool has room for
        self.filling = max(min(filling, self.longest), 1)
        length = self.longest if self.chance(0.3) else self.length()
        first = list(range(length))  # numbers of one to three bytes, short to write down
        cut = min(self.length(), len(first))
        begin = random.choice((2**32, 2**32, 2**16 - 3, 2**32 - 3))
        tail = list(range(begin, begin + len(first) - cut))
        self.texts = (first, first[:cut] + tail, [3] * self.length())

    def habit(self) -> list[Step]:
        """Draw as in short programs, or blocks taken, held and retold."""
        habits: tuple[Callable[[LongDraw], list[Step]], ...] = (*HABITS, flood, holding, retelling)
        weights = (*WEIGHTS, 2, 2, 8 * (self.config.given_hash_bytes > 0))
        return self.random.choices(habits, weights)[0](self)

    def length(self) -> int:
        """Draw a number of tokens, mostly within one of an edge."""
        size = self.random.choice(self.sizes)
        length = self.random.choice(EDGES) * size + self.random.choice((-1, 0, 1))
        if self.chance(0.2):
            length = self.filling + self.random.choice((-size, -1, 0, size, 3 * size))
        if length > self.longest or self.chance(0.3):
            length = self.random.randint(1, self.longest)
        return max(length, 1)

    def length_of(self, text: Sequence[int]) -> int:
        """Draw all of a text, or a beginning of it."""
        return len(text) if self.chance(0.6) else min(self.length(), len(text))

    def arrival(self) -> st.Arrive:
        """Draw a request for much of a text; embeddings replace any number of its first tokens."""
        plain = super().arrival()
        if plain.embedded is None:
            return plain
        count = min(self.length(), len(plain.prompt))
        return replace(plain, embedded=tuple(place % 251 for place in range(count)))

    def batch(self) -> st.Batch:
        """Draw a whole step of more tokens, with more room."""
        random = self.random
        return replace(
            super().batch(),
            token_budget=random.choice((COUNT_MAX, COUNT_MAX, 8192, 512, 30)),
            rows=random.choice((0, 2, 7, 400, 400, 40_000)),
            lookahead_tokens=random.choice((0, 0, 2, 9, 65)),
        )

    def longest_item(self, num_tokens: int) -> int:
        """Return the length of the prompt, which ends before the item."""
        return num_tokens

    def chunk(self) -> int | None:
        """Draw the tokens of a step; None, in most cases, for all that are left."""
        return self.random.choice((None, None, None, 1, 512, 2048, self.length()))

    def admission(self) -> st.Admit:
        """Draw an admission; some of the request's tokens may come from elsewhere."""
        plain = super().admission()
        external = self.length() if plain.external_tokens else 0
        return replace(
            plain,
            external_tokens=external,
            lookahead_tokens=self.random.choice((0, 0, 0, 0, 5, 65)),
            reserved_blocks=self.random.choice((0, 0, 0, 0, 7)),
        )

    def rest(self) -> Step:
        plain = super().rest()
        if isinstance(plain, st.Ask) and plain.num_tokens is not None:
            return replace(plain, num_tokens=self.length())
        if isinstance(plain, st.CachePartial):
            return replace(plain, index=self.random.randrange(self.longest))
        return plain

    def eviction(self) -> st.Evict:
        plain = super().eviction()
        most = max(len(self.texts[0]) // self.sizes[0], 1)
        count = self.random.choice((1, 1, 3, 32, 33, 70))
        return replace(plain, index=self.random.randrange(most), count=count)
