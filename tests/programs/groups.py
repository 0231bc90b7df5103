"""Stories of windows, chunks, states and several groups."""

from __future__ import annotations

from kvcheck.play.steps import (
    Admit,
    Arrive,
    Ask,
    Evict,
    FinishLoad,
    NewStep,
    Program,
    Release,
    Run,
    Skip,
)
from kvspec.specs import (
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from tests.programs.single import LONG, A, C, configure, full, story


def window(tokens: int, block_size: int = 2) -> SlidingWindowSpec:
    """A small sliding-window layer."""
    return SlidingWindowSpec(block_size, 1, 8, "float16", sliding_window=tokens)


def chunked(tokens: int, block_size: int = 2) -> ChunkedLocalAttentionSpec:
    """A small chunked-local layer."""
    return ChunkedLocalAttentionSpec(block_size, 1, 8, "float16", attention_chunk_size=tokens)


def mamba(mode: str, block_size: int = 2, drafted: int = 0) -> MambaSpec:
    """A small Mamba layer."""
    return MambaSpec(
        block_size, ((2,),), ("float32",), mamba_cache_mode=mode, num_speculative_blocks=drafted
    )


CROSS = CrossAttentionSpec(2, 1, 8, "float16")
RUNS = (Run(), Run(), Run(), Run(), Run())

GROUP_SCENARIOS: tuple[Program, ...] = (
    story("blocks fall out of the window", ("KV-SW-1", "KV-GRP-2"), configure(10, window(4)),
          Arrive(A), Admit(), *RUNS, Skip(), Ask(), Release()),
    story("a refusal has released what fell out", ("KV-MGR-6",), configure(5, window(3)),
          Arrive(LONG[:7]), Admit(chunk_tokens=4), Arrive(C[:1]), Admit(), Run(chunk_tokens=3),
          Run(), Run(), Run(), Ask()),
    story("a hit fills a window, null before it", ("KV-SW-2", "KV-SW-3"), configure(20, window(4)),
          Arrive(LONG), Admit(), Release(), Arrive(LONG), Admit(), Ask(), Run()),
    story("a hole in the window is passed over", ("KV-SW-2", "KV-SW-4"), configure(20, window(4)),
          Arrive(LONG[:9]), Admit(), Release(again=True), Evict(index=3), Admit(), Ask(),
          Release(again=True), Evict(index=2), Evict(index=1), Admit(), Ask()),
    story("a window with drafting", ("KV-SW-5",), configure(20, window(4), use_eagle=True),
          Arrive(LONG), Admit(), Release(), Arrive(LONG), Admit(), Run()),
    story("admission counts a window once", ("KV-SW-7", "KV-MGR-5"),
          configure(6, window(4), max_num_batched_tokens=2), Arrive(LONG),
          Admit(chunk_tokens=2, must_fit=True), *(Run(chunk_tokens=2),) * 6),
    story("chunks begin anew", ("KV-CHUNK-1", "KV-CHUNK-2"), configure(20, chunked(4)),
          Arrive(LONG), Admit(chunk_tokens=6), Run(), *RUNS, Release(), Arrive(LONG), Admit(),
          Ask(), Arrive((*LONG[:4], 9, 9)), Admit(), Run()),
    story("a fresh prompt has null chunks", ("KV-CHUNK-2",), configure(20, chunked(4)),
          Arrive(LONG[:6]), Admit(), Ask(), Run()),
    story("align keeps one running state", ("KV-MAMBA-6", "KV-MAMBA-9", "KV-MAMBA-11"),
          configure(20, mamba("align")), Arrive((1, 2, 3, 4, 5, 6)), Admit(chunk_tokens=4), Run(),
          *RUNS, Ask(), Release()),
    story("align moves drafted states", ("KV-MAMBA-7", "KV-MAMBA-9"),
          configure(20, mamba("align", drafted=2)), Arrive(A), Admit(), *RUNS, Ask(), Release()),
    story("align with a load", ("KV-MAMBA-8",), configure(20, full(), mamba("align")),
          Arrive(LONG[:9]), Admit(external_tokens=5), Run(), Run(), Release(), NewStep(),
          Arrive(LONG[:9]), Admit(), Ask()),
    story("states in mode all", ("KV-MAMBA-1", "KV-MAMBA-3", "KV-MAMBA-4"),
          configure(30, mamba("all", drafted=1)), Arrive(LONG), Admit(), NewStep(), Release(),
          Arrive(LONG), Admit(), Run(), Ask()),
    story("cross attention is allocated once", ("KV-CROSS-1", "KV-CROSS-2"),
          configure(12, full(), CROSS, enable_caching=False), Arrive(A), Admit(), Run(), Run(),
          Ask(), Release()),
    story("three groups, several rounds", ("KV-COORD-5", "KV-COORD-12"),
          configure(40, full(), window(3), window(7)), Arrive(LONG), Admit(), Release(again=True),
          Evict(group=1, index=5), Evict(group=2, index=2), Admit(), Ask(), Release(again=True),
          Evict(group=2, index=3), Admit(), Ask()),
    story("unequal block sizes", ("KV-COORD-13", "KV-CFG-4", "KV-RET-1"),
          configure(40, full(4), window(4, block_size=2)), Arrive(LONG), Admit(), Release(),
          Arrive(LONG), Admit(), Ask(), *RUNS),
    story("drafting with several groups", ("KV-COORD-7", "KV-COORD-8"),
          configure(40, full(), window(4), window(6), use_eagle=True), Arrive(LONG), Admit(),
          Release(again=True), Evict(group=1, index=4), Admit(), Ask(), Run()),
    story("retention keeps the replay boundary", ("KV-RET-2", "KV-RET-4"),
          configure(30, full(), window(4), retention_interval_tokens=0), Arrive(LONG), Admit(),
          Release(), Arrive(LONG), Admit(), Ask(), Run()),
    story("retention keeps a tail now and then", ("KV-RET-3",),
          configure(40, full(), window(2), retention_interval_tokens=4), Arrive(LONG), Admit(),
          Release(), Arrive((*LONG[:9], 1, 1)), Admit(), Ask()),
    story("a load whose last token is computed again", ("KV-MGR-4", "KV-SW-1"),
          configure(20, full(), window(3)), Arrive((1, 2, 3, 4, 5, 6)),
          Admit(external_tokens=6, load_later=True), FinishLoad(), Run(), Ask()),
    story("one release call per group", ("KV-POOL-7",), configure(20, full(), window(4)),
          Arrive(A), Admit(), Arrive(C), Admit(), Release(), Release(), Arrive(LONG), Admit()),
)  # fmt: skip
