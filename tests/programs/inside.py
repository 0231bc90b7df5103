"""Stories of hits that end inside a block (KV-INSIDE-*), for subjects that have the feature.

They are beside the other stories, and judged at level safety, where they are chosen (KV-POL-24).
"""

from __future__ import annotations

from kvcheck.play.steps import Admit, Arrive, NewStep, Program, Release, Run
from kvspec.config import ManagerConfig
from kvspec.specs import MambaSpec
from tests.programs.single import configure, full, story


def states(alignment: int, block_size: int = 4) -> MambaSpec:
    """States that a step may also leave inside its chunk."""
    return MambaSpec(
        block_size, ((2,),), ("float32",), mamba_cache_mode="align",
        num_prefill_checkpoint_blocks=1, prefill_checkpoint_alignment=alignment,
    )  # fmt: skip


def finer(h: int, *, alignment: int = 1, retention: int | None = None) -> ManagerConfig:
    """Full attention and states with B = 4, hashes of `h` tokens."""
    return configure(
        60, full(4), states(alignment), hash_block_size_tokens=h,
        retention_interval_tokens=retention,
    )  # fmt: skip


A = tuple(range(1, 14))
OTHERS = (*A[:8], 50, 51, 52, 53, 54)

INSIDE_SCENARIOS: tuple[Program, ...] = (
    story("a hit ends inside a block", ("KV-INSIDE-1", "KV-INSIDE-3", "KV-INSIDE-4"),
          finer(2, alignment=64), Arrive(A[:7]), Admit(), Run(), Run(), Run(), NewStep(),
          Arrive((*A[:6], 90)), Admit(who=-1), Release(who=-1), NewStep(), Arrive(A[:9]), Admit(),
          Run(), Run(), Release(), Release(), NewStep(), Arrive(A[:9]), Admit(), Run(),
          Release(later=True)),
    story("a step goes past the block that it begins in", ("KV-INSIDE-2", "KV-INSIDE-5"), finer(1),
          Arrive(A[:6]), Admit(), Run(), NewStep(), Arrive(A), Admit(), NewStep(), Arrive(OTHERS),
          Admit(), Run(), NewStep(), Arrive((*A[:8], 60, 61)), Admit(), Run()),
    story("two requests begin inside one block in one step", ("KV-INSIDE-6",),
          finer(2, retention=0), Arrive(A[:3]), Admit(), Run(), Release(), NewStep(), Arrive(A),
          Arrive((*A[:4], 70, 71)), Admit(), Admit(), NewStep(), Run(), Run(who=1)),
)  # fmt: skip
