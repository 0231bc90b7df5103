"""The configurations to explore about hits inside a block (KV-INSIDE-*)."""

from __future__ import annotations

from kvcheck.explore.bounds import Call, Configuration, Step
from kvcheck.explore.managers import aligned_mamba, cache, checkpoints, inside
from kvcheck.rules.specs import full

INSIDE = Configuration(
    "inside",
    "full attention and Mamba in mode align over 6 blocks of 2 tokens, hits inside them; steps,"
    " before which copies are made",
    inside(cache(7, full(2), aligned_mamba(2), max_tokens=4)),
    ((0, 0, 0, 0),),
    calls=frozenset({Call.PREEMPT, Call.STEP}),
)
INSIDE_STATES = Configuration(
    "inside-states",
    "full attention with blocks of 1 token and Mamba with blocks of 2, which leaves states inside"
    " a chunk, over 9 blocks; steps",
    inside(cache(10, full(1), checkpoints(aligned_mamba(2)), max_tokens=5)),
    ((0, 0, 0, 0),),
    in_chunks=False,
    calls=frozenset({Call.PREEMPT, Call.STEP}),
)
INSIDE_BATCHED = Configuration(
    "inside-batched",
    "as inside, in whole steps: two requests begin inside one block in one step",
    inside(cache(7, full(2), aligned_mamba(2), max_tokens=4)),
    ((0, 0, 0, 0),),
    admissions=(),
    computations=(),
    steps=(Step(3), Step(8)),
    calls=frozenset(),
)
