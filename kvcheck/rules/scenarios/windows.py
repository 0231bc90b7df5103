"""Stories of windows, chunks and retention: which blocks are hit, kept and cached."""

from __future__ import annotations

from kvcheck.play.steps import Admit, Arrive, Ask, NewStep, Program, Release, Run, Skip
from kvcheck.rules.scenarios.building import flagged, latent_window, only, prompt, roomy
from kvcheck.rules.scenarios.groups import CROSS, chunked, mamba, window
from kvcheck.rules.scenarios.single import configure, full, story
from kvspec.specs import EncoderOnlyAttentionSpec

TWICE = (NewStep(), Release(again=True), Admit(), Ask(), Run())
"""The request comes again and hits what was kept of it."""

GROWN = (Run(chunk_tokens=8), Run(chunk_tokens=8), Run(chunk_tokens=8), Run(), Run(), Ask())
ENCODER = EncoderOnlyAttentionSpec(2, 1, 8, "float16")
BEGIN = (Arrive(prompt(40)), Admit(), NewStep(), Release(again=True))

HITS: tuple[Program, ...] = (
    story("the rightmost run that is long enough", ("KV-SW-2", "KV-SW-3"), roomy(window(6, 4)),
          *BEGIN, *only(0, (0, 2, 3, 5, 8), 10), Admit(), Ask(), Run()),
    story("a run of one block is enough for a window of five", ("KV-SW-2",), roomy(window(5, 4)),
          *BEGIN, *only(0, (0, 3, 6), 10), Admit(), Ask(), Run()),
    story("a run with the block that is dropped", ("KV-SW-2", "KV-SW-5"),
          roomy(window(6, 4), use_eagle=True), *BEGIN, *only(0, (0, 2, 3, 5, 6, 7), 10), Admit(),
          Ask(), Run()),
    story("a run ends on the alignment after its drop", ("KV-SW-2",),
          flagged(roomy(full(8), window(6, 4)), 1), *BEGIN, *only(1, (1, 2, 3, 4, 6, 7, 8), 10),
          Admit(), Ask(), Run()),
    story("a run ends on the alignment", ("KV-SW-2",), roomy(full(8), window(6, 4)), *BEGIN,
          *only(1, (2, 3, 5, 6), 10), Admit(), Ask(), Run()),
    story("few blocks from the start are a hit", ("KV-SW-4",), roomy(window(14, 4)), *BEGIN,
          *only(0, (0, 1, 3, 4), 10), Admit(), Ask(), Run()),
    story("blocks from the start are cut to the alignment", ("KV-SW-4",),
          roomy(full(8), window(22, 4)), *BEGIN, *only(1, (0, 1, 2, 5), 10), Admit(), Ask(), Run()),
    story("blocks from the start with a drop", ("KV-SW-5",), roomy(window(14, 4), use_eagle=True),
          *BEGIN, *only(0, (0, 1, 2), 10), Admit(), Ask(), Run()),
    *(
        story(f"{kept} blocks from the start, a drop, and the alignment", ("KV-SW-5", "KV-SW-4"),
              flagged(roomy(full(8), window(22, 4)), 1), *BEGIN, *only(1, range(kept), 10),
              Admit(), Ask(), Run())
        for kept in (2, 3, 4, 5)
    ),
    story("a window of one token caches nothing", ("KV-SW-6",), roomy(window(1, 4)),
          Arrive(prompt(20)), Admit(), Ask(), *TWICE),
    story("a window of one token with a drop", ("KV-SW-6",), roomy(window(1, 4), use_eagle=True),
          Arrive(prompt(20)), Admit(), Ask(), *TWICE),
    story("windows have no common prefix", ("KV-SW-8", "KV-CHUNK-6", "KV-MGR-15"),
          roomy(full(4), latent_window(30, 4), chunked(64, 4)), Arrive(prompt(13)), Admit(),
          Arrive((*prompt(9), 7)), Admit(), Ask(), Ask(who=1)),
    story("latents in a window", ("KV-SW-8",), configure(12, latent_window(4)), Arrive(prompt(9)),
          Admit(), Run(), Run(), Run(), *TWICE),
)  # fmt: skip

NEEDS: tuple[Program, ...] = (
    *(
        story(f"a window counts with its cap, {blocks} blocks", ("KV-SW-7", "KV-MGR-5"),
              configure(blocks + 1, window(6, 4), max_num_batched_tokens=8), Arrive(prompt(40)),
              Ask(num_tokens=100), Admit(chunk_tokens=8, must_fit=True),
              *(Run(chunk_tokens=8),) * 5)
        for blocks in (4, 5)
    ),
    *(
        story(f"a chunk counts with its cap, {blocks} blocks", ("KV-CHUNK-5", "KV-MGR-5"),
              configure(blocks + 1, chunked(16, 4), max_num_batched_tokens=8), Arrive(prompt(40)),
              Ask(num_tokens=100), Admit(look_up=False, chunk_tokens=8, must_fit=True),
              *(Run(chunk_tokens=8),) * 5)
        for blocks in (5, 6)
    ),
    story("every full block of a chunk is cached", ("KV-CHUNK-4", "KV-CHUNK-1"),
          roomy(full(4), chunked(16, 4), window(5, 4), retention_interval_tokens=8),
          Arrive(prompt(42)), Admit(look_up=False), Ask(), Skip(), Ask(), *TWICE),
    story("skipping is asked for", ("KV-MGR-14", "KV-GRP-2"),
          roomy(full(4), window(6, 4), chunked(8, 4)), Arrive(prompt(23)), Admit(), Skip(), Ask(),
          Skip(), Run(), Skip(), Release()),
    story("full attention skips nothing", ("KV-FULL-1", "KV-MGR-14"), roomy(full(2)),
          Arrive(prompt(31)), Admit(), Skip(), Run(), Skip(), Ask(), Release()),
    story("encoder tokens get their blocks once", ("KV-CROSS-1", "KV-CROSS-2"),
          configure(20, full(), CROSS, enable_caching=False), Arrive(prompt(5)), Ask(),
          Admit(encoder_tokens=5), Run(), Run(encoder_tokens=4), Run(encoder_tokens=9), Ask(),
          Release(), Arrive(prompt(9)), Admit(encoder_tokens=7, external_tokens=8), Ask(), Run(),
          Skip(), Release(later=True)),
    story("encoder tokens are no tokens of the text", ("KV-CROSS-2",),
          configure(20, CROSS, full(), enable_caching=False), Arrive(prompt(9)),
          Admit(encoder_tokens=1, chunk_tokens=2), Run(chunk_tokens=3), Skip(),
          Run(external_tokens=2), Run(), Ask()),
    story("layers of an encoder keep nothing", ("KV-CROSS-5",),
          configure(8, full(), ENCODER, enable_caching=False), Arrive(prompt(5)), Ask(),
          Admit(encoder_tokens=5), Ask(), Run(), Run(encoder_tokens=2), Release()),
)  # fmt: skip

RETENTION: tuple[Program, ...] = (
    *(
        story(f"what is worth caching of a window of {tokens}", ("KV-RET-1",),
              roomy(full(16), window(tokens, 4)), Arrive(prompt(54)), Admit(), Ask(), *TWICE)
        for tokens in (1, 5, 6, 14)
    ),
    story("an eagle group keeps one later", ("KV-RET-1", "KV-COORD-13"),
          flagged(roomy(full(16), window(6, 4)), 1), Arrive(prompt(54)), Admit(), Ask(), *TWICE),
    *(
        story(f"retention every {interval} tokens, flags {flags}", ("KV-RET-3", "KV-RET-4"),
              flagged(roomy(full(16), window(6, 4), retention_interval_tokens=interval), *flags),
              Arrive(prompt(54)), Admit(), Ask(), *TWICE, Release(), Arrive((*prompt(40), 7)),
              Admit(), Ask())
        for interval in (16, 32)
        for flags in ((), (1,))
    ),
    *(
        story(f"retention for the replay alone, flags {flags}", ("KV-RET-2", "KV-RET-4"),
              flagged(roomy(full(16), window(6, 4), retention_interval_tokens=0), *flags),
              Arrive(prompt(54)), Admit(), Ask(), *TWICE, Release(), Arrive((*prompt(40), 7)),
              Admit(), Ask())
        for flags in ((), (1,))
    ),
    *(
        story(f"the replay boundary of {length} tokens", ("KV-RET-4",),
              roomy(full(8), window(5, 4), retention_interval_tokens=0), Arrive(prompt(length)),
              Admit(), Ask(), *TWICE)
        for length in (8, 16, 17)
    ),
    *(
        story(f"states worth keeping every {interval} tokens", ("KV-RET-5",),
              flagged(roomy(full(16), mamba("all", 4), retention_interval_tokens=interval), *flags),
              Arrive(prompt(50)), Admit(), Ask(), *TWICE, Release(), Arrive((*prompt(40), 7)),
              Admit(), Ask())
        for interval, flags in ((None, ()), (0, ()), (16, ()), (32, (1,)))
    ),
    story("the count passes what is not cached", ("KV-RET-6", "KV-EVT-2"),
          roomy(window(5, 4), retention_interval_tokens=8), Arrive(prompt(14)),
          Admit(chunk_tokens=8), Run(), *GROWN, *TWICE),
    story("full attention is cached whatever is kept", ("KV-FULL-6",),
          roomy(full(4), window(5, 8), retention_interval_tokens=16), Arrive(prompt(41)), Admit(),
          Ask(), *TWICE),
)  # fmt: skip

WINDOW_SCENARIOS: tuple[Program, ...] = HITS + NEEDS + RETENTION
