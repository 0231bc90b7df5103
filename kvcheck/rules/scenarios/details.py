"""Stories that tell neighbours of a rule from the rule: one detail each."""

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
    Reset,
    Run,
    Skip,
)
from kvcheck.rules.scenarios.building import flagged, prompt, roomy
from kvcheck.rules.scenarios.groups import chunked, mamba, window
from kvcheck.rules.scenarios.single import CFG, A, B, C, configure, full, story

QUEUE: tuple[Program, ...] = (
    story("the front is taken, cached or not", ("KV-POOL-3",), configure(6, full()), Arrive(A),
          Admit(), Release(again=True), Evict(index=0), Arrive(C), Admit(who=1), Arrive((8,)),
          Admit(who=1), Ask(who=1)),
    story("a hit leaves the order of the others", ("KV-POOL-5",), configure(12, full()),
          Arrive((1, 2, 3)), Admit(), Arrive(C), Admit(), Release(), Release(), Arrive((1, 2, 3)),
          Admit(), Ask(), Arrive((8,) * 18), Admit(), Ask(who=1)),
    story("a block goes back with its last reference", ("KV-POOL-6",), configure(12, full()),
          Arrive(A), Admit(lookahead_tokens=3), Arrive(B), Admit(lookahead_tokens=3), Release(),
          Ask(), Arrive(C), Admit(), Run(), Release(), Release(), Arrive(prompt(13)), Admit()),
    story("who was registered first answers", ("KV-POOL-13",), configure(12, full()), Arrive(A),
          Admit(external_tokens=4, load_later=True), Arrive(A), Admit(), FinishLoad(), Arrive(A),
          Admit(), Ask(who=2)),
    story("a copy that fell out of the window keeps its place", ("KV-POOL-13",), roomy(window(4)),
          Arrive(prompt(9)), Arrive(prompt(9)), Admit(look_up=False), Admit(look_up=False), Skip(),
          Arrive(prompt(7)), Admit(), Ask(who=2)),
    story("what fell out is one release call", ("KV-GRP-2", "KV-POOL-7"),
          configure(8, full(16), window(5, 4)), Arrive(prompt(20)), Admit(chunk_tokens=16), Skip(),
          Ask(), Release(), Arrive((9,) * 9), Admit()),
    story("what falls out serves the same step", ("KV-MGR-6",), configure(4, window(3)),
          Arrive(prompt(9)), Admit(look_up=False, chunk_tokens=6), Run(chunk_tokens=2), Run(),
          Ask()),
    story("windows are looked at where the step begins", ("KV-MGR-6",), roomy(window(4)),
          Arrive(prompt(20)), Admit(chunk_tokens=5), Run(chunk_tokens=6), Ask(), Run(), Ask()),
    story("null is no unhashed block", ("KV-POOL-1", "KV-GRP-1"), configure(12, window(3)),
          Arrive(prompt(8)), Admit(), Run(), Run(), Ask(), Release()),
    story("free releases every group", ("KV-MGR-12",), roomy(full(), window(4)), Arrive(A),
          Admit(), Release(), Reset()),
    story("a look-up moves nothing", ("KV-MGR-2",), configure(7, full()), Arrive(A), Admit(),
          Release(again=True), Admit(reserved_blocks=9), Arrive(C), Admit(who=1), Arrive((8,) * 3),
          Admit(who=1), Ask(who=1)),
)  # fmt: skip

HITS: tuple[Program, ...] = (
    story("all but the last token may be a hit", ("KV-MGR-1",), CFG, Arrive(A), Admit(), Release(),
          Arrive(A), Admit(), Ask()),
    story("a gap ends the run", ("KV-FULL-2",), configure(12, full()), Arrive(prompt(9)), Admit(),
          Release(again=True), Evict(index=1), Admit(), Ask()),
    *(
        story(f"the last block is dropped once, flags {flags}", ("KV-FULL-3",),
              flagged(roomy(full(), window(5), window(9)), *flags), Arrive(prompt(17)), Admit(),
              Release(again=True), Evict(group=1, index=6), Evict(group=2, index=4), Admit(),
              Ask(), Release(), Arrive((7,) * 5), Admit())
        for flags in ((0,), (0, 1))
    ),
    story("the drop takes a block that is there", ("KV-FULL-3",),
          configure(12, full(), use_eagle=True), Arrive(A), Admit(), Arrive((*A[:4], *(9,) * 5)),
          Admit(), Ask(who=1), Arrive((9,) * 5), Admit()),
    story("own hits end with the text", ("KV-COORD-9",), roomy(full(4), chunked(8, 4)),
          Arrive(prompt(9)), Admit(), Ask(num_tokens=90), Arrive(prompt(30)), Ask(who=1,
          num_tokens=90)),
    story("alone without caching, no common prefix", ("KV-COORD-1", "KV-MGR-15"),
          configure(8, full(), enable_caching=False), Arrive(A), Admit(), Ask(), Run(), Ask()),
    story("a step starts in every group", ("KV-MGR-19",), roomy(full(4), mamba("all", 4)),
          Arrive(prompt(9)), Admit(), NewStep(), Arrive(prompt(9)), Admit(), Ask(who=1)),
    story("generated tokens have the adapter, too", ("KV-HASH-7", "KV-HASH-10", "KV-EVT-2"),
          CFG, Arrive((1, 2, 3), lora="x"), Admit(), Run(token=4), Run(token=5),
          Arrive((1, 2, 3, 4, 5), lora="x"), Admit()),
    story("the parent lies a block back", ("KV-EVT-3",), roomy(full(4), full(8)),
          Arrive(prompt(30)), Admit(chunk_tokens=9), Run(chunk_tokens=8), Run()),
    story("a removal names its group", ("KV-EVT-4",), roomy(full(), window(4)), Arrive(A), Admit(),
          Evict(group=1), Evict(group=0)),
)  # fmt: skip

NEEDS: tuple[Program, ...] = (
    story("revived hits are not free", ("KV-GRP-4",), configure(5, full()), Arrive(A), Admit(),
          Release(), Arrive((1, 2, 3, 4, *(8,) * 6)), Admit(), Arrive((1, 2, 3, 4, 8, 8, 8)),
          Admit(who=1)),
    *(
        story(f"external tokens behind hits that are skipped, {blocks} blocks",
              ("KV-GRP-4", "KV-GRP-5", "KV-GRP-6"), configure(blocks, window(4)),
              Arrive(prompt(8)), Admit(), Release(), Arrive(prompt(20)),
              Admit(external_tokens=9, chunk_tokens=1), Ask(), Run(chunk_tokens=1))
        for blocks in (4, 5, 6, 7, 20)
    ),
    story("hits that are skipped cost nothing", ("KV-GRP-4",), configure(4, window(4)),
          Arrive(prompt(8)), Admit(look_up=False, chunk_tokens=2), *(Run(chunk_tokens=2),) * 3,
          Release(), Arrive(prompt(20)), Admit(external_tokens=9, chunk_tokens=1), Ask()),
    *(
        story(f"hits of a window and a step of {chunk} tokens", ("KV-GRP-4", "KV-GRP-5"),
              configure(9, full(), window(4)), Arrive(prompt(9)), Admit(), Release(),
              Arrive(prompt(13)), Admit(chunk_tokens=chunk), Ask(), Run())
        for chunk in (1, 3, 5)
    ),
    story("external tokens get a block begun", ("KV-GRP-6", "KV-MGR-4"), configure(20, full()),
          Arrive(prompt(13)), Admit(external_tokens=3, chunk_tokens=1), Ask(), Run()),
    story("external tokens count as computed", ("KV-MGR-4", "KV-GRP-6"),
          configure(20, full(), window(4)), Arrive(prompt(13)), Admit(external_tokens=8), Ask(),
          Run(), Skip(), Ask()),
    story("a need is capped only when asked for", ("KV-SW-7", "KV-CHUNK-5", "KV-MGR-18"),
          roomy(window(6, 4), chunked(8, 4)), Arrive(prompt(30)), Ask(num_tokens=90),
          Admit(look_up=False, chunk_tokens=9), Ask(num_tokens=90)),
)  # fmt: skip

DETAIL_SCENARIOS: tuple[Program, ...] = QUEUE + HITS + NEEDS
