"""Random programs about hits that end inside a block, and states saved inside a chunk.

Texts share prefixes of every length, pools are ample, and requests start and end within few steps.
Those at real sizes have prompts of thousands of tokens, blocks of 16 to 256, and pools of up to
thousands; few of them have hundreds of requests.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random

from kvcheck.judge.production import LongDraw
from kvcheck.play import steps as st
from kvcheck.play.random_programs import BATCH, LAST, Draw, withdrawing
from kvcheck.play.steps import Program, Step
from kvspec.config import KVCacheConfig, KVCacheGroup, ManagerConfig
from kvspec.policy import Policy
from kvspec.specs import FullAttentionSpec, LayerSpec, MambaSpec, MLAAttentionSpec

OTHERS = (("full",), ("full",), ("full", "mamba"), ("mla",), ("full", "mla"))


def inside_programs(run_seed: int, batch: int, max_steps: int) -> Iterator[Program]:
    """Yield batch number `batch` of the programs of a run; equal arguments give equal programs."""
    random = Random(run_seed * 1_000_003 + batch + 500_000)
    for _ in range(BATCH):
        yield _program(random, max_steps)


def large_inside_program(random: Random, max_steps: int) -> Program:
    """Draw one at real sizes; one of 500 has twenty times the steps and hundreds of requests."""
    has_many = random.random() < 0.002
    config = inside_config(random, is_large=True, room=20 if has_many else 2)
    draw = LongInsideDraw(random, config)
    steps: list[Step] = []
    length = random.randint(max_steps // 2, max_steps) * (20 if has_many else 1)
    while len(steps) < length:
        steps += _crowd(draw) if has_many and draw.chance(0.2) else draw.habit()
    return Program(config, withdrawing(random, steps[:length]), name="inside blocks at real sizes")


class InsideDraw(Draw):
    def habit(self) -> list[Step]:
        return _habit(self)


class LongInsideDraw(InsideDraw, LongDraw):
    """Prompts end at or near a few places of the texts, so that others begin where one ended."""

    def __init__(self, random: Random, config: ManagerConfig) -> None:
        LongDraw.__init__(self, random, config)
        self.h = config.hash_block_size_tokens or 1
        self.sizes = [self.h, *self.sizes]
        most = max(self.longest // self.h - 1, 2)
        first = [random.randrange(1000, 2**31) for _ in range(self.longest)]
        self.places = [self.h * random.randint(1, most) for _ in range(4)]
        self.places += [self.h * random.randint(1, min(most, 20)) for _ in range(2)]
        tails = [[own] * self.longest for own in (2, 3)]
        cuts = random.sample(self.places, 2)
        shared = [first[:cut] + tail[cut:] for cut, tail in zip(cuts, tails, strict=True)]
        self.texts = (first, shared[0], shared[1])

    def length_of(self, text: Sequence[int]) -> int:
        """Draw a length at one of the places, up to two blocks behind it, or anywhere."""
        place = self.random.choice(self.places)
        behind = (0, 1, 2, self.h // 2, self.h, self.h + 1, self.sizes[-1], 2 * self.sizes[-1] + 1)
        if self.chance(0.1):
            place = self.random.randint(1, len(text))
        return min(place + self.random.choice(behind), len(text))


def _crowd(draw: Draw) -> list[Step]:
    come = [each for _ in range(20) for each in (_arrival(draw), st.Admit(LAST))]
    return [*come, *[draw.run() for _ in range(20)], st.NewStep()]


def inside_config(random: Random, *, is_large: bool = False, room: int = 1) -> ManagerConfig:
    """Draw full attention beside states, hashes finer than the blocks of states or as large.

    Hashes are as large with states inside chunks. `room`: about how many of the longest requests
    fit a large pool.
    """
    h = random.choice((8, 16, 16, 32, 64) if is_large else (1, 2))
    size = min(h * random.choice((2, 4, 8) if is_large else (2, 4)), 256)
    size = h if random.random() < 0.15 else size
    kinds = (*random.choice(OTHERS), "mamba")
    specs = [_spec(random, kind, h, size) for kind in kinds]
    groups = tuple(KVCacheGroup((f"layer.{n}",), spec) for n, spec in enumerate(specs))
    longest = random.choice((1000, 2000, 4000, 8000)) if is_large else 0
    num_blocks = len(specs) * random.choice((6, 12, 20, 30))
    if is_large:
        share = random.choice((0.6, 1, 2, 4)) * room
        filled = int(share * sum(longest / spec.block_size for spec in specs))
        num_blocks = min(max(filled, num_blocks), 10_000)
    return ManagerConfig(
        KVCacheConfig(num_blocks, groups),
        max_model_len_tokens=longest or random.choice((24, 48)),
        hash_block_size_tokens=h,
        policy=Policy(hits_inside_blocks=True),
        log_stats=True,
        enable_events=not is_large or random.random() < 0.2,
        hash_seed="0",
        retention_interval_tokens=random.choice((None, None, 0, 0, 0, 2 * size)),
        watermark=random.choice((0.0, 0.0, 0.0, 0.2)),
        use_eagle=not is_large and random.random() < 0.2,
        hash_lookahead_tokens=0 if is_large else random.choice((0,) * 8 + (1, 3)),
    )


def _spec(random: Random, kind: str, h: int, size: int) -> LayerSpec:
    if kind == "full":
        return FullAttentionSpec(random.choice((size, size, h)), 1, 8, "float16")
    if kind == "mla":
        return MLAAttentionSpec(size, 1, 16, "bfloat16")
    has_checkpoint = size == h or random.random() < 0.6
    return MambaSpec(
        size,
        ((2,),),
        ("float32",),
        mamba_cache_mode="align",
        num_speculative_blocks=random.choice((0, 0, 0, 1, 2)),
        num_prefill_checkpoint_blocks=int(has_checkpoint),
        prefill_checkpoint_alignment=random.choice((1, h)) if has_checkpoint else None,
    )


def _program(random: Random, max_steps: int) -> Program:
    config = inside_config(random)
    draw = InsideDraw(random, config, long_texts=True)
    steps: list[Step] = []
    length = random.randint(max_steps // 2, max_steps)
    while len(steps) < length:
        steps += draw.habit()
    return Program(config, withdrawing(random, steps[:max_steps]))


def _habit(draw: Draw) -> list[Step]:
    number = draw.random.randrange(12)
    if number < 4:  # a request arrives, and mostly runs at once
        follows = [draw.run() for _ in range(draw.random.choice((0, 0, 1, 2)))]
        return [_arrival(draw), st.Admit(LAST, chunk_tokens=draw.chunk()), *follows]
    if number < 6:
        return [draw.run(), st.NewStep()]
    if number < 8:
        return [draw.release(), *[draw.eviction()] * draw.chance(0.2)]
    if number < 10:  # several begin in one step, with all their tokens or a part
        arrivals = [_arrival(draw) for _ in range(draw.random.choice((2, 2, 3)))]
        admissions = [st.Admit(chunk_tokens=draw.chunk()) for _ in arrivals]
        return [*[st.NewStep()] * draw.chance(0.8), *arrivals, *admissions]
    return [draw.admission() if draw.chance(0.5) else draw.rest(), st.NewStep()]


def _arrival(draw: Draw) -> Step:
    return replace(draw.arrival(), embedded=None)
