"""Random programs about hits that end inside a block, for subjects that have them (KV-INSIDE-1).

Texts share beginnings of every length, pools are ample, and requests come and go within few steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random

from kvcheck.judge.random_programs import BATCH, LAST, Draw
from kvcheck.play import steps as st
from kvcheck.play.steps import Program, Step
from kvspec.config import KVCacheConfig, KVCacheGroup, ManagerConfig
from kvspec.specs import FullAttentionSpec, LayerSpec, MambaSpec, MLAAttentionSpec

OTHERS = (("full",), ("full",), ("full", "mamba"), ("mla",), ("full", "mla"))


def inside_programs(run_seed: int, batch: int, max_steps: int) -> Iterator[Program]:
    """Batch number `batch` of the programs of a run; the same for equal arguments."""
    random = Random(run_seed * 1_000_003 + batch + 500_000)
    for _ in range(BATCH):
        yield _program(random, max_steps)


def _config(random: Random) -> ManagerConfig:
    """Full attention beside states, hashes finer than the blocks of states."""
    h = random.choice((1, 2))
    size = h * random.choice((2, 4))
    kinds = (*random.choice(OTHERS), "mamba")
    specs = [_spec(random, kind, h, size) for kind in kinds]
    groups = tuple(KVCacheGroup((f"layer.{n}",), spec) for n, spec in enumerate(specs))
    return ManagerConfig(
        KVCacheConfig(len(specs) * random.choice((6, 12, 20, 30)), groups),
        max_model_len_tokens=random.choice((24, 48)),
        hash_block_size_tokens=h,
        log_stats=True,
        enable_events=True,
        hash_seed="0",
        retention_interval_tokens=random.choice((None, None, 0, 0, 0, 2 * size)),
        watermark=random.choice((0.0, 0.0, 0.0, 0.2)),
    )


def _spec(random: Random, kind: str, h: int, size: int) -> LayerSpec:
    if kind == "full":
        return FullAttentionSpec(random.choice((size, size, h)), 1, 8, "float16")
    if kind == "mla":
        return MLAAttentionSpec(size, 1, 16, "bfloat16")
    has_checkpoint = random.random() < 0.6
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
    config = _config(random)
    draw = Draw(random, config.max_model_len_tokens, long_texts=True)
    steps: list[Step] = []
    length = random.randint(max_steps // 2, max_steps)
    while len(steps) < length:
        steps += _habit(draw)
    return Program(config, tuple(steps[:max_steps]))


def _habit(draw: Draw) -> list[Step]:
    number = draw.random.randrange(12)
    if number < 4:  # somebody comes, and mostly goes on at once
        follows = [draw.run() for _ in range(draw.random.choice((0, 0, 1, 2)))]
        return [_arrival(draw), st.Admit(LAST, chunk_tokens=draw.chunk()), *follows]
    if number < 6:
        return [draw.run(), st.NewStep()]
    if number < 8:
        return [draw.release(), *[draw.eviction()] * draw.chance(0.2)]
    if number < 10:  # several begin in one step, all that they have or a part
        arrivals = [_arrival(draw) for _ in range(draw.random.choice((2, 2, 3)))]
        admissions = [st.Admit(chunk_tokens=draw.chunk()) for _ in arrivals]
        return [*[st.NewStep()] * draw.chance(0.8), *arrivals, *admissions]
    return [draw.admission() if draw.chance(0.5) else draw.rest(), st.NewStep()]


def _arrival(draw: Draw) -> Step:
    return replace(draw.arrival(), embedded=None)
