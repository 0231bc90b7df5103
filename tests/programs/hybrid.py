"""Stories of the search for a common hit (KV-COORD), mostly the examples of its chapter."""

from __future__ import annotations

from kvcheck.play.illegal_operations import ILLEGAL_OPERATIONS
from kvcheck.play.steps import (
    Admit,
    Arrive,
    Ask,
    Break,
    Evict,
    FailLoad,
    FinishLoad,
    NewStep,
    Program,
    Release,
    Run,
)
from kvspec.specs import MLAAttentionSpec
from tests.programs.building import flagged, only, prompt, roomy
from tests.programs.groups import chunked, mamba, window
from tests.programs.single import configure, full, story

BEGIN = (Arrive(prompt(60)), Admit(), NewStep(), Release(again=True))
"""Everything is cached, and free."""

LOOK = (Admit(), Ask(), Ask(num_tokens=47), Run(), Release())
"""The first request comes again; it is asked what each group has."""

THREE = (full(4), window(6, 4), mamba("all", 8))
HOLES = (*only(0, range(14), 15), *only(1, (*range(2, 8), 10, 11), 15),
         *only(2, (*range(5), 6), 7))  # fmt: skip
LATENT = MLAAttentionSpec(4, 1, 8, "float16")

SHORT_LIST = [each.name for each in ILLEGAL_OPERATIONS].index("a short list without a load")
NOW = (Admit(external_tokens=6, chunk_tokens=5, own_hits=True), Ask(), Run(), Release(again=True),
       Admit(), Ask())  # fmt: skip
"""Each group brings its own hit; a load fills up what some lack, and tokens follow it."""
LATER = (Admit(external_tokens=6, load_later=True, own_hits=True), Ask(), FinishLoad(), Ask(),
         Run(), NewStep(), Release(again=True), Admit(), Ask())  # fmt: skip
"""The same by a load that arrives later, alone."""

AGREED: tuple[Program, ...] = (
    story("equal windows answer together", ("KV-COORD-4", "KV-COORD-12"),
          roomy(window(6, 4), window(6, 4), mamba("all", 4)), *BEGIN, *only(0, (2, 3, 8, 9), 15),
          *only(1, (2, 3, 5, 6), 15), *LOOK),
    story("windows are asked after states that come first", ("KV-COORD-4", "KV-COORD-12"),
          roomy(full(4), mamba("all", 4), window(6, 4), mamba("all", 4)), *BEGIN,
          *only(1, (1, 9), 15), *only(3, (1, 9), 15), *only(2, (0, 1), 15), *LOOK),
    story("full attention is cut and not asked again", ("KV-COORD-6",),
          flagged(roomy(full(4), window(6, 4), window(10, 4)), 0), *BEGIN,
          *only(0, range(13), 15), *only(1, (1, 2, 3, 4, 7, 8, 9), 15),
          *only(2, (1, 2, 3, 4, 8, 9), 15), *LOOK),
    story("states are marked like others", ("KV-COORD-8",),
          flagged(roomy(full(4), mamba("all", 4), window(6, 4)), 1, 2), *BEGIN,
          *only(0, range(13), 15), *only(1, (2, 4, 6, 10), 15),
          *only(2, (1, 2, 3, 5, 6, 9, 10, 11), 15), *LOOK),
    story("equal specs are looked up jointly", ("KV-COORD-4", "KV-CFG-8"),
          flagged(roomy(window(6, 4), full(4), window(6, 4), mamba("all", 4), full(4)), 2),
          *BEGIN, *only(0, (2, 3, 4, 8, 9, 10), 15), *only(1, range(12), 15),
          *only(2, (1, 2, 3, 4, 6, 7, 8, 9), 15), *only(4, range(13), 15), *LOOK),
    story("full attention first, else the order of first members", ("KV-COORD-4",),
          roomy(window(6, 4), mamba("all", 4), window(10, 4), full(4), mamba("all", 4)), *BEGIN,
          *only(0, (1, 2, 5, 6, 9, 10), 15), *only(1, (2, 5, 6, 10, 12), 15),
          *only(2, (0, 1, 2, 4, 5, 6, 8, 9), 15), *only(3, range(13), 15),
          *only(4, (2, 6, 10, 12), 15), *LOOK),
    story("two groups without full attention go on", ("KV-COORD-10",),
          roomy(window(6, 4), window(10, 4)), *BEGIN, *only(0, (1, 2, 6, 7), 15),
          *only(1, (0, 1, 2, 4, 5, 6), 15), *LOOK),
    story("a search of four rounds", ("KV-COORD-10",),
          roomy(full(4), window(6, 4), window(10, 4)), *BEGIN,
          *only(1, (1, 2, 4, 5, 8, 9, 12, 13), 15),
          *only(2, (0, 1, 2, 3, 4, 6, 7, 8, 10, 11, 12), 15), *LOOK),
    story("states look no further than the length", ("KV-COORD-8",),
          flagged(roomy(full(4), mamba("all", 8)), 0, 1), *BEGIN, *only(0, range(13), 15),
          *only(1, (4, 6), 7), *LOOK),
    story("all lists of full attention are cut", ("KV-COORD-11",),
          roomy(full(4), full(8), window(6, 4)), *BEGIN, *only(0, range(14), 15),
          *only(2, range(2, 6), 15), *LOOK),
    story("an eagle group is cached a block further", ("KV-COORD-13",),
          flagged(roomy(full(16), window(4, 4)), 1), Arrive(prompt(40)), Admit(chunk_tokens=14),
          Run(chunk_tokens=4), Run(chunk_tokens=4), Run(chunk_tokens=6), Run(chunk_tokens=4),
          Run(), Release(again=True), Admit(), Ask()),
    story("nothing is cached beyond the alignment", ("KV-COORD-13",),
          roomy(full(16), window(4, 4)), Arrive(prompt(22)), Admit(chunk_tokens=14), Run(), Ask(),
          Release(again=True), Arrive(prompt(22)), Admit(), Ask()),
    story("one group's hits end on its blocks", ("KV-COORD-2", "KV-FULL-2"),
          roomy(full(2), dcp_world_size=2), Arrive(prompt(12)), Admit(), Release(),
          Arrive(prompt(11)), Admit(), Ask(), Run()),
    story("lists of full attention end on the alignment", ("KV-FULL-4",),
          flagged(roomy(full(4), LATENT, window(5, 8)), 0), *BEGIN, *only(0, range(10), 15),
          *only(1, range(9), 15), *LOOK),
    story("chunks beside full attention", ("KV-COORD-5", "KV-CHUNK-2"),
          roomy(full(4), chunked(16, 4)), *BEGIN, *only(0, range(9), 15), *only(1, (5, 8), 15),
          *LOOK, Arrive(prompt(24)), Evict(group=1, index=4), Admit(), Ask()),
)  # fmt: skip

OWN: tuple[Program, ...] = (
    *(
        story(f"a load fills up what {which} lacks, {when}",
              ("KV-MGR-22", "KV-MGR-8", "KV-GRP-5", "KV-GRP-6", "KV-GRP-4"), roomy(*specs), *BEGIN,
              *only(0, range(first), 15), *only(1, second, 15), *steps)
        for when, steps in (("now", NOW), ("later", LATER))
        for which, specs, first, second in (
            ("full attention", (full(4), LATENT), 9, range(3)),
            ("the first group", (full(4), LATENT), 2, range(8)),
            ("a short window", (full(4), window(6, 4)), 10, (3, 4)),
            ("a long window", (full(4), window(30, 4)), 10, range(8)),
            ("full attention beside a window", (full(4), window(30, 4)), 3, range(9)),
            ("a chunk", (full(4), chunked(64, 4)), 10, range(7)),
            ("a group of states", (full(4), mamba("all", 4)), 10, (2, 6)),
            ("full attention beside states", (full(4), mamba("all", 4)), 5, (6,)),
            ("a group of running states", (full(4), mamba("align", 4)), 10, (4,)),
            ("a group of drafted states", (full(4), mamba("align", 4, 2)), 10, (4,)),
            ("a group without a hit", (full(4), window(6, 4)), 10, ()),
        )
    ),
    *(
        story(f"what a short list of a {kind} needs, with {reserved} blocks reserved",
              ("KV-MGR-22", "KV-MGR-8", "KV-GRP-4", "KV-MGR-7"), configure(9, full(2), spec),
              Arrive(prompt(9)), Admit(chunk_tokens=6), NewStep(), Release(again=True),
              *only(1, (0,), 3), Admit(external_tokens=2, load_later=True, own_hits=True,
              reserved_blocks=reserved), Ask(), FinishLoad(), Run(), Ask())
        for kind, spec, most in (("window", window(20), 0), ("state", mamba("all"), 3))
        for reserved in (most, most + 1)
    ),
    story("short lists without a load", ("KV-MGR-22", "KV-MGR-8", "KV-ERR-2"),
          roomy(full(4), LATENT), *BEGIN,
          *only(1, range(3), 15), Break(call=SHORT_LIST), Admit(), Ask()),
    story("a load for one list of four", ("KV-MGR-22", "KV-MGR-8", "KV-MAMBA-8"),
          configure(12, full(2), *(mamba("align"),) * 3), Arrive(prompt(7)),
          Admit(chunk_tokens=2), Run(chunk_tokens=2), NewStep(), Release(again=True),
          *(Evict(group=group, index=1) for group in (1, 2, 3)),
          Admit(external_tokens=2, load_later=True, own_hits=True), Ask(), FinishLoad(), Run(),
          Ask()),
    story("states too new in a short list", ("KV-MAMBA-2", "KV-MGR-22"),
          roomy(full(4), mamba("all", 4)), Arrive(prompt(20)), Arrive(prompt(20)),
          Admit(chunk_tokens=9), Evict(group=1, index=1),
          Admit(external_tokens=3, load_later=True, own_hits=True), NewStep(),
          Admit(external_tokens=3, load_later=True, own_hits=True), Ask(who=1)),
    story("short lists of blocks of several sizes, and drops", ("KV-MGR-22", "KV-COORD-9"),
          flagged(roomy(full(4), LATENT, window(14, 8)), 0, 2), *BEGIN, *only(0, range(9), 15),
          *only(1, range(5), 15), *only(2, (0, 1, 2, 3), 7), *LATER),
    story("a load that fills up short lists fails", ("KV-MGR-22", "KV-MGR-8", "KV-POOL-10"),
          roomy(full(4), LATENT), *BEGIN, *only(0, range(9), 15), *only(1, range(3), 15),
          Admit(external_tokens=9, load_later=True, own_hits=True), FailLoad(index=1), Ask(),
          Run(), Ask()),
    story("the whole sequence behind short lists", ("KV-MGR-5", "KV-MGR-22"),
          configure(14, full(4), LATENT), Arrive(prompt(24)), Admit(), Release(again=True),
          *only(1, (0,), 6), Admit(external_tokens=3, must_fit=True, own_hits=True), Ask(),
          Arrive((9,) * 3), Admit(), Admit(external_tokens=3, must_fit=True, own_hits=True)),
)  # fmt: skip

HYBRID_SCENARIOS: tuple[Program, ...] = AGREED + OWN
