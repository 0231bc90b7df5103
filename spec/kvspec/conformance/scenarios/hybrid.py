"""Stories of the search for a common hit (KV-COORD), mostly the examples of its chapter."""

from __future__ import annotations

from kvspec.conformance.scenarios.building import flagged, only, prompt, roomy
from kvspec.conformance.scenarios.groups import chunked, mamba, window
from kvspec.conformance.scenarios.single import full, story
from kvspec.conformance.steps import Admit, Arrive, Ask, Evict, NewStep, Program, Release, Run
from kvspec.specs import MLAAttentionSpec

BEGIN = (Arrive(prompt(60)), Admit(), NewStep(), Release(again=True))
"""Everything is cached, and free."""

LOOK = (Admit(), Ask(), Ask(num_tokens=47), Run(), Release())
"""The first request comes again; it is asked what each group has."""

THREE = (full(4), window(6, 4), mamba("all", 8))
HOLES = (*only(0, range(14), 15), *only(1, (*range(2, 8), 10, 11), 15),
         *only(2, (*range(5), 6), 7))  # fmt: skip
LATENT = MLAAttentionSpec(4, 1, 8, "float16")

HYBRID_SCENARIOS: tuple[Program, ...] = (
    story("a length that every group confirms", ("KV-COORD-5", "KV-COORD-12", "KV-COORD-9"),
          roomy(*THREE), *BEGIN, *HOLES, *LOOK),
    story("own hits drop without looking further", ("KV-COORD-9",),
          flagged(roomy(*THREE), 0, 1, 2), *BEGIN, *only(0, range(14), 15),
          *only(1, (*range(2, 8), 9, 10, 11), 15), *only(2, (*range(5), 6), 7), *LOOK,
          Arrive(prompt(30)), Ask(num_tokens=90), Ask(num_tokens=0)),
    story("marks keep a drop from being repeated", ("KV-COORD-7", "KV-COORD-8", "KV-COORD-12"),
          flagged(roomy(full(4), window(6, 4), window(10, 4)), 1), *BEGIN,
          *only(0, range(13), 15), *only(1, (*range(2, 6), *range(7, 12)), 15),
          *only(2, (*range(1, 7), 8, 9), 15), *LOOK),
    story("full attention is cut and not asked again", ("KV-COORD-6",),
          flagged(roomy(full(4), window(6, 4), window(10, 4)), 0), *BEGIN,
          *only(0, range(13), 15), *only(1, (1, 2, 3, 4, 7, 8, 9), 15),
          *only(2, (1, 2, 3, 4, 8, 9), 15), *LOOK),
    story("states look no further and drop nothing", ("KV-COORD-8", "KV-MAMBA-3"),
          flagged(roomy(full(4), mamba("all", 8)), 0, 1), *BEGIN, *only(0, range(13), 15),
          *only(1, range(5), 7), *LOOK),
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
    story("two groups end after one round", ("KV-COORD-10", "KV-COORD-11"),
          roomy(full(4), window(6, 4)), *BEGIN, *only(0, range(14), 15),
          *only(1, range(2, 6), 15), *LOOK),
    story("two groups without full attention go on", ("KV-COORD-10",),
          roomy(window(6, 4), window(10, 4)), *BEGIN, *only(0, (1, 2, 6, 7), 15),
          *only(1, (0, 1, 2, 4, 5, 6), 15), *LOOK),
    story("a search of four rounds", ("KV-COORD-10",),
          roomy(full(4), window(6, 4), window(10, 4)), *BEGIN,
          *only(1, (1, 2, 4, 5, 8, 9, 12, 13), 15),
          *only(2, (0, 1, 2, 3, 4, 6, 7, 8, 10, 11, 12), 15), *LOOK),
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
