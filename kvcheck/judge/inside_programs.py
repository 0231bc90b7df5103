"""Random programs about hits that end inside a block, and states saved inside a chunk.

Texts share prefixes of every length, pools are ample, and requests start and end within few steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random

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


class InsideDraw(Draw):
    def habit(self) -> list[Step]:
        return _habit(self)


def inside_config(random: Random) -> ManagerConfig:
    """Draw full attention beside states, hashes finer than the blocks of states or as large.

    Hashes are as large with states inside chunks.
    """
    h = random.choice((1, 2))
    size = h * random.choice((2, 4))
    size = h if random.random() < 0.15 else size
    specs = specs_of(random, h, size)
    return ManagerConfig(
        KVCacheConfig(len(specs) * random.choice((6, 12, 20, 30)), grouped(specs)),
        max_model_len_tokens=random.choice((24, 48)),
        hash_block_size_tokens=h,
        policy=Policy(hits_inside_blocks=True),
        log_stats=True,
        enable_events=True,
        hash_seed="0",
        retention_interval_tokens=random.choice((None, None, 0, 0, 0, 2 * size)),
        watermark=random.choice((0.0, 0.0, 0.0, 0.2)),
        use_eagle=random.random() < 0.2,
        hash_lookahead_tokens=random.choice((0,) * 8 + (1, 3)),
    )


def specs_of(random: Random, h: int, size: int) -> list[LayerSpec]:
    """Draw groups, of which the last keeps states, with hashes of `h` tokens and larger blocks."""
    return [_spec(random, kind, h, size) for kind in (*random.choice(OTHERS), "mamba")]


def grouped(specs: Sequence[LayerSpec]) -> tuple[KVCacheGroup, ...]:
    return tuple(KVCacheGroup((f"layer.{n}",), spec) for n, spec in enumerate(specs))


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
        return [arrival_of(draw), st.Admit(LAST, chunk_tokens=draw.chunk()), *follows]
    if number < 6:
        return [draw.run(), st.NewStep()]
    if number < 8:
        return [draw.release(), *[draw.eviction()] * draw.chance(0.2)]
    if number < 10:  # several begin in one step, with all their tokens or a part
        arrivals = [arrival_of(draw) for _ in range(draw.random.choice((2, 2, 3)))]
        admissions = [st.Admit(chunk_tokens=draw.chunk()) for _ in arrivals]
        return [*[st.NewStep()] * draw.chance(0.8), *arrivals, *admissions]
    return [draw.admission() if draw.chance(0.5) else draw.rest(), st.NewStep()]


def arrival_of(draw: Draw) -> Step:
    return replace(draw.arrival(), embedded=None)
