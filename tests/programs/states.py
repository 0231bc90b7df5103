"""Stories of Mamba states: when they may be used, and how mode align moves them."""

from __future__ import annotations

from kvcheck.play.steps import (
    Admit,
    Arrive,
    Ask,
    Evict,
    NewStep,
    Program,
    Release,
    Run,
    Skip,
)
from tests.programs.building import flagged, only, prompt, roomy
from tests.programs.groups import mamba
from tests.programs.single import configure, full, story

AGAIN = (NewStep(), Release(again=True), Admit(), Ask(), Run())
"""The request comes again in a later step."""

DRAFTS = (5, 6, 7, 8, 9, 10, 11, 12)
PAGES = prompt(100)

ALL_MODES: tuple[Program, ...] = (
    *(
        story(f"only the state after the last token stays, {mode}", ("KV-MAMBA-1", "KV-GRP-2"),
              configure(20, mamba(mode, 4)), Arrive(prompt(14)), Admit(chunk_tokens=4), Skip(),
              Run(chunk_tokens=1), Skip(), Run(chunk_tokens=3), Skip(), Run(chunk_tokens=4), Skip(),
              Run(), Skip(), Ask())
        for mode in ("none", "all", "align")
    ),
    *(
        story(f"a state of this step is used in the next, {mode}", ("KV-MAMBA-2", "KV-MGR-19"),
              configure(20, mamba(mode, 4)), Arrive(prompt(8)), Admit(), Arrive(prompt(12)),
              Admit(), Admit(must_fit=True), NewStep(), Admit())
        for mode in ("none", "all", "align")
    ),
    story("the rightmost state on the alignment", ("KV-MAMBA-3",), roomy(full(8), mamba("all", 4)),
          Arrive(prompt(30)), Admit(), NewStep(), Release(again=True), *only(1, (1, 4), 7),
          Admit(), Ask()),
    story("the rightmost state of one group", ("KV-MAMBA-3",), roomy(mamba("all", 4)),
          Arrive(prompt(30)), Admit(), NewStep(), Release(again=True), *only(0, (1, 4), 7),
          Admit(), Ask()),
    story("an eagle group keeps its state", ("KV-MAMBA-3",),
          flagged(roomy(full(4), mamba("all", 4)), 0, 1), Arrive(prompt(30)), Admit(), NewStep(),
          Release(again=True), *only(1, (1, 4), 7), Admit(), Ask()),
    story("states of drafts take further blocks", ("KV-MAMBA-4", "KV-MAMBA-5"),
          configure(30, mamba("all", 4, drafted=2)), Arrive(prompt(9)), Ask(), Admit(), Ask(),
          *(Run(), Skip()) * 6, Run(drafts=(8, 8), accepted=1), Skip(), Ask(), Release()),
    story("drafts do not count for hits", ("KV-MAMBA-5", "KV-MAMBA-1"),
          configure(30, mamba("all", 4, drafted=2)), Arrive(prompt(17)), Admit(), NewStep(),
          Release(again=True), Admit(chunk_tokens=1), Skip(), Ask(), Run(), Skip(), Ask()),
    story("external tokens and drafts of states", ("KV-MAMBA-5", "KV-MAMBA-4"),
          configure(30, mamba("all", 4, drafted=2)), Arrive(prompt(17)),
          Admit(external_tokens=9, chunk_tokens=4), Ask(), Run(), Skip(), Ask()),
    story("states have no common prefix", ("KV-MAMBA-13", "KV-MGR-15"),
          configure(30, full(4), mamba("all", 4)), Arrive(prompt(9)), Admit(), NewStep(),
          Arrive((*prompt(8), 9, 9)), Admit(), Ask(), Ask(who=1)),
)  # fmt: skip


def moving(drafted: int, num_blocks: int = 20) -> tuple[Program, ...]:
    """Lists of one request with so many drafted states, in steps of every kind."""
    config = configure(num_blocks, mamba("align", 4, drafted), max_model_len_tokens=200)
    usual = ("KV-MAMBA-9", "KV-MAMBA-7", "KV-MAMBA-6")
    return (
        story(f"within a block, then the next, S = {drafted}", usual, config, Arrive(PAGES),
              Ask(num_tokens=13), Admit(chunk_tokens=13), Ask(num_tokens=16), Ask(num_tokens=17),
              Run(chunk_tokens=3), Run(chunk_tokens=1), Ask(num_tokens=90), Run(chunk_tokens=4)),
        story(f"three blocks on, S = {drafted}", usual, config, Arrive(PAGES),
              Admit(chunk_tokens=13), Run(chunk_tokens=12), Ask(), Run(chunk_tokens=8), Ask()),
        story(f"two blocks on, S = {drafted}", usual, config, Arrive(PAGES),
              Admit(chunk_tokens=13), Run(chunk_tokens=8), Ask(), Run(chunk_tokens=5), Ask()),
        story(f"lookahead takes no entry, S = {drafted}", ("KV-MAMBA-6",), config, Arrive(PAGES),
              Admit(chunk_tokens=8, lookahead_tokens=7), Run(chunk_tokens=8, lookahead_tokens=3),
              Ask()),
        story(f"a free state is revived, S = {drafted}", ("KV-MAMBA-7", "KV-GRP-4"),
              configure(2 * drafted + 3, mamba("align", 4, drafted)), Arrive(prompt(4)), Admit(),
              NewStep(), Release(), Arrive(prompt(8)), Ask(), Admit(), Run(), Ask()),
        story(f"too few blocks to revive, S = {drafted}", ("KV-MAMBA-7",),
              configure(drafted + 2, mamba("align", 4, drafted)), Arrive(prompt(4)), Admit(),
              NewStep(), Release(), Arrive(prompt(8)), Ask(), Admit(), Admit(look_up=False)),
        story(f"a hit stays where it is, S = {drafted}", ("KV-MAMBA-9", "KV-MAMBA-3"), config,
              Arrive(prompt(8)), Admit(), NewStep(), Arrive(prompt(13)), Admit(), Run(who=1),
              Run(who=1), Ask(who=1)),
        story(f"external tokens and the need, S = {drafted}", ("KV-MAMBA-8",), config,
              Arrive(prompt(14)), Admit(external_tokens=10, chunk_tokens=3), Run(), Ask()),
        story(f"external tokens skip the hit, S = {drafted}", ("KV-MAMBA-8",), config,
              Arrive(prompt(4)), Admit(), NewStep(), Arrive(prompt(14)),
              Admit(external_tokens=6, chunk_tokens=3), Run(who=1), Ask(who=1)),
        story(f"external tokens behind a free hit, S = {drafted}", ("KV-MAMBA-8",), config,
              Arrive(prompt(8)), Admit(), NewStep(), Release(), Arrive(prompt(20)),
              Admit(external_tokens=8), Run(), Ask()),
        story(f"external tokens in the place of a free hit, S = {drafted}", ("KV-MAMBA-8",),
              configure(drafted + 3, mamba("align", 4, drafted)), Arrive(prompt(8)), Admit(),
              NewStep(), Release(), Arrive(prompt(20)), Admit(external_tokens=8), Ask()),
        *(
            story(f"external tokens in {blocks} blocks, S = {drafted}", ("KV-MAMBA-8",),
                  configure(blocks, mamba("align", 4, drafted)), Arrive(prompt(14)),
                  Admit(external_tokens=10, chunk_tokens=3), Run())
            for blocks in (drafted + 2, drafted + 3)
        ),
        story(f"a load that takes nothing new, S = {drafted}", ("KV-MAMBA-9", "KV-MAMBA-8"),
              config, Arrive(prompt(20)), Admit(external_tokens=8, chunk_tokens=0), Ask(),
              Run(chunk_tokens=1), Run(chunk_tokens=9), Ask()),
        story(f"preemption forgets the states, S = {drafted}", ("KV-MAMBA-12", "KV-MGR-17"),
              config, Arrive(PAGES), Admit(chunk_tokens=13), Run(chunk_tokens=12), Evict(index=2),
              Evict(index=5), NewStep(), Release(again=True), Ask(num_tokens=9),
              Admit(chunk_tokens=9), Ask(), Release(again=True, later=True), Ask(num_tokens=9),
              Admit(chunk_tokens=9), Run(chunk_tokens=4)),
        story(f"removal goes on past nulls, S = {drafted}", ("KV-MAMBA-11",),
              configure(20, mamba("align", 2, drafted), enable_caching=False), Arrive((1,)),
              Admit(), Run(drafts=(5,), accepted=0), Run(drafts=DRAFTS, accepted=8), Skip(), Run(),
              Skip(), Ask(), Release()),
        story(f"a state goes when the next boundary is behind, S = {drafted}",
              ("KV-MAMBA-1", "KV-MAMBA-5"),
              configure(20, mamba("align", 4, drafted), enable_caching=False), Arrive(PAGES[:60]),
              Admit(chunk_tokens=13), Run(chunk_tokens=7), Skip(),
              *(Run(chunk_tokens=1), Skip()) * 6),
    )  # fmt: skip


RIGHT_DRAFTS: tuple[Program, ...] = tuple(
    story(f"the next step reads the state of a right draft, S = {drafted}", ("KV-MAMBA-9",),
          configure(20, mamba("align", 4, drafted)), Arrive(prompt(5)), Admit(),
          Run(drafts=(8, 8)[:drafted], accepted=1), Run(drafts=(8, 8)[:drafted]), Ask())
    for drafted in (1, 2)
)  # fmt: skip

STATE_SCENARIOS: tuple[Program, ...] = (
    *ALL_MODES,
    *RIGHT_DRAFTS,
    *moving(0),
    *moving(1),
    *moving(2),
)
