"""Stories at an edge of their rule: one token, one block or one event beside it all looks right."""

from __future__ import annotations

from kvcheck.play.steps import (
    Admit,
    Arrive,
    Ask,
    Break,
    CachePartial,
    NewStep,
    Program,
    Release,
    Run,
    Take,
)
from kvcheck.rules.scenarios.building import prompt
from kvcheck.rules.scenarios.groups import mamba, window
from kvcheck.rules.scenarios.single import LONG, A, C, configure, full, story

EDGE_SCENARIOS: tuple[Program, ...] = (
    story("nulls of a hit cost nothing", ("KV-MAMBA-7", "KV-GRP-4"), configure(3, mamba("align")),
          Arrive(prompt(6)), Admit(), NewStep(), Release(), Arrive(prompt(8)), Admit(), Run()),
    story("external tokens that no window reaches", ("KV-GRP-6",), configure(12, window(1, 4)),
          Arrive(prompt(8)), Admit(external_tokens=5), Ask()),
    story("a cap that ends with a block", ("KV-SW-7", "KV-MGR-5"),
          configure(5, window(3), max_num_batched_tokens=4), Arrive(prompt(12)),
          Admit(chunk_tokens=4, must_fit=True)),
    story("shared behind a block that is not", ("KV-FULL-7", "KV-POOL-13"), configure(12, full()),
          Arrive(A[:3]), Admit(), Arrive(A), Admit(look_up=False), Release(), Arrive(A), Admit(),
          Ask(), Ask(who=1)),
    story("an uncached look-up is not counted", ("KV-MGR-2", "KV-STAT-1"),
          configure(12, full(), enable_caching=False), Arrive(A), Admit(), Take()),
    story("a part of a block is no watermark", ("KV-MGR-9",), configure(8, full(), watermark=0.4),
          Arrive(A), Admit(), Arrive(C[:3]), Admit(others_scheduled=True), Arrive((8, 8)),
          Admit(who=1, others_scheduled=True)),
    story("the whole sequence leaves the watermark", ("KV-MGR-5", "KV-MGR-9"),
          configure(8, full(), watermark=0.4), Arrive(LONG[:10]),
          Admit(chunk_tokens=2, must_fit=True, others_scheduled=True)),
    story("a new step leaves the statistics", ("KV-MGR-19", "KV-STAT-3"), configure(12, full()),
          Arrive(A), Admit(), NewStep(), Take()),
    story("no external block before the last hit", ("KV-GRP-8",), configure(7, full(), window(4)),
          Arrive(prompt(6)), Admit(), Release(), Arrive(prompt(8)), Admit(external_tokens=1),
          Ask()),
    story("a refusal leaves the hits where they are", ("KV-MGR-6", "KV-MGR-7"),
          configure(7, full(), window(4)), Arrive(prompt(6)), Admit(), Release(),
          Arrive(prompt(13)), Admit(), Ask()),
    story("two drafts are two blocks", ("KV-HASH-4", "KV-REQ-2"), configure(12, full(1)),
          Arrive(A), Admit(), Run(drafts=(4, 5), accepted=2), Run()),
    story("a salt of any letters", ("KV-HASH-2", "KV-HASH-10"), configure(12, full()),
          Arrive(A, salt="Ümläut"), Admit(), Arrive(A, salt="ключ"), Admit()),
    story("an illegal call leaves the window", ("KV-ERR-2", "KV-MGR-3"), configure(12, window(3)),
          Arrive(LONG[:8]), Admit(), Break(call=0), Run()),
    story("a boundary is told once", ("KV-PART-4",), configure(40, full(4), window(8, 2)),
          Arrive(prompt(10)), Admit(), CachePartial(), CachePartial(), Ask()),
    story("a look-up that is skipped shows nothing", ("KV-MGR-2", "KV-COORD-12"),
          configure(30, full(), window(4)), Arrive(LONG), Admit(), Arrive(LONG), Admit(),
          Arrive(LONG, skip_reading=True), Admit(), Ask()),
)  # fmt: skip
