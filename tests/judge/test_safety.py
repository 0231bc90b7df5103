"""Level safety: each way to serve wrong content is seen, without agreement on a policy."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from kvcheck.mistakes import find
from kvcheck.play.left_out import LeftOut
from kvcheck.play.shadow.content import Content
from kvcheck.play.shadow.content_check import ContentCheck
from kvcheck.play.steps import Admit, Arrive, Program, Release, Reset, Run, Step
from kvcheck.play.verdicts import Level, Violation, first_violation
from kvcheck.rules.directed import EXAMPLES
from kvcheck.rules.example import Example, example_violation
from kvcheck.rules.notation.setting import spec_of
from kvcheck.rules.notation.values import Reader
from kvcheck.rules.specs import SMALL
from kvspec.config import KVCacheConfig, KVCacheGroup, ManagerConfig
from kvspec.errors import InvariantViolation
from kvspec.interface import Feature, Implementation
from kvspec.policy import Policy
from kvspec.specs import CrossAttentionSpec, FullAttentionSpec, LayerSpec
from tests.cases import Case, cases, words
from tests.device.mistakes import planted
from tests.mistakes import mistaken
from tests.programs import CFG, SCENARIOS, A, configure
from tests.stand_ins import minimal

TWINS: tuple[tuple[str, Implementation], ...] = (
    ("eviction keeps the key", mistaken("KeepsKeysOfTakenBlocks", audits=True)),
    ("two owners", mistaken("GivesABlockTwice", audits=True)),
    ("a hit stays free", mistaken("TouchLeavesTheBlockFree", audits=True)),
    ("duplicates replace", mistaken("DuplicateReplacesTheFirst", audits=True)),
    ("the window ends early", mistaken("SkipsOneTokenMore")),
    ("a failed load is a hit", mistaken("KeepsWhatFailed")),
    ("a load is a hit before it arrived", mistaken("LoadsAreCachedAtOnce")),
    ("slots count as computed", mistaken("CachesWhatHasSlots")),
    ("embeddings are ignored", mistaken("ForgetsEmbeddings")),
    ("items are ignored", mistaken("ForgetsItems")),
)
"""Preemption, eviction, duplicates, windows, loads, drafts, and what else makes content differ."""


@pytest.mark.parametrize("subject", [t[1] for t in TWINS], ids=[t[0] for t in TWINS])
def test_examples_see_wrong_content(subject: Implementation) -> None:
    assert any(map(seen_in(subject), EXAMPLES))


def seen_in(subject: Implementation) -> Callable[[Example], bool]:
    def seen(example: Example) -> bool:
        with suppress(LeftOut):
            found = example_violation(example, subject, Policy(), level=Level.SAFETY)
            return example.is_watched and found is not None
        return False

    return seen


OTHERS = (
    ("NeverWaits", "KV-MAMBA-2"),
    ("SkipsTheLastState", "KV-MAMBA-1"),
    ("DraftsOnlyAtFirst", "KV-MAMBA-4"),
    ("DraftsAreSure", "KV-MAMBA-5"),
    ("ReplacesDraftedStates", "KV-MAMBA-9"),
    ("MovesNothing", "KV-MAMBA-9"),
    ("EncoderRoundsDown", "KV-CROSS-1"),
    ("HitsOfEncoders", "KV-CROSS-3"),
)
"""States that are read too early, or that went too early, and blocks that nobody wrote."""

STORIES = [
    program
    for program in SCENARIOS
    if any(rule.startswith(("KV-MAMBA-", "KV-CROSS-")) for rule in program.rules)
]


@pytest.mark.parametrize(("name", "rule"), OTHERS)
def test_directed_programs_name_what_is_wrong_with_states_and_encoders(
    name: str, rule: str
) -> None:
    subject = mistaken(name)
    found = (first_violation(program, subject, Level.SAFETY) for program in STORIES)
    assert next(violation.rule for violation in found if violation) == rule


@pytest.mark.parametrize("name", ["TakesFromTheBack", "LeftmostState", "AnyHitTooNew"])
def test_another_choice_of_blocks_or_of_states_is_no_offence(name: str) -> None:
    subject = mistaken(name)
    found = (first_violation(program, subject, Level.SAFETY) for program in STORIES)
    assert not any(found)


@pytest.mark.parametrize(
    ("mistake", "steps", "name"),
    [
        ("SaysItReset", (Arrive(A), Admit(), Reset()), "reset_only_when_idle"),
        ("KeepsKeysAtAReset", (Arrive(A), Admit(), Release(), Reset()), "reset_leaves_no_key"),
    ],
)
def test_a_reset_is_looked_at_from_both_sides(
    mistake: str, steps: tuple[Step, ...], name: str
) -> None:
    found = first_violation(Program(CFG, steps), mistaken(mistake), Level.SAFETY)
    assert found is not None
    assert (found.rule, found.name) == ("KV-POOL-11", name)


GROUP = KVCacheGroup(("layer",), FullAttentionSpec(2, 1, 8, "float16"))
CONFIG = ManagerConfig(KVCacheConfig(12, (GROUP,)), 64, policy=Policy(lookups_counted="asked"))
STEPS = (
    Arrive((0, 0, 0)),
    Arrive((0, 0, 0)),
    Arrive((1, 1, 1)),
    Admit(who=2),
    Admit(chunk_tokens=1),  # the first block of r0 is not full, and so nobody's copy
    Admit(),
    Run(),
    Run(),
    Release(),
)


SHARING = planted(Path(__file__).with_name("sharing.diff"))


def verdict(mistake: str, *features: Feature) -> Violation | None:
    subject = minimal(features=frozenset(features))
    with find(mistake, SHARING).make():
        return first_violation(Program(CONFIG, STEPS), subject, Level.SAFETY)


def test_a_block_with_the_same_content_may_take_the_place_of_another() -> None:
    assert first_violation(Program(CONFIG, STEPS), minimal(), Level.SAFETY) is None
    assert verdict("SharesDuplicates") is None


def test_who_promises_stable_lists_is_judged_by_them() -> None:
    found = verdict("SharesDuplicates", Feature.STABLE_LISTS)
    assert found is not None
    assert (found.rule, found.name) == ("KV-GRP-1", "a_list_only_grows_or_turns_null")


def test_a_block_with_other_content_is_found_all_the_same() -> None:
    found = verdict("SharesAnything")
    assert found is not None
    assert found.rule in ("KV-HASH-1", "KV-POOL-17")


TEXT = Content(b"r", range(100, 109))
OTHER = Content(b"r", (100, 101, 102, 203, 204, 205))
LONGER, LONGEST = (Content(b"r", range(100, end)) for end in (110, 111))
OTHERWISE = Content(b"r", (*range(100, 108), 1, 2, 3))
CONTENTS = {"other": OTHER, "longer": LONGER, "longest": LONGEST, "otherwise": OTHERWISE}


class Told(ContentCheck):
    def __init__(self, spec: LayerSpec) -> None:
        caching = not isinstance(spec, CrossAttentionSpec)
        super().__init__(configure(30, spec, max_model_len_tokens=12, enable_caching=caching))

    def wrote(
        self,
        blocks: list[int],
        new: int,
        start: int = 0,
        content: Content = TEXT,
        *,
        load: int = 0,
        encoder: int = 0,
        hits: list[int] | None = None,
    ) -> None:
        begins = None if hits is None else [hits]
        self.write_granted(
            "r", content, [blocks], start=start, num_external=load, num_new=new,
            num_encoder=encoder, hits=begins,
        )  # fmt: skip

    def hit(self, blocks: list[int], length: int, content: Content = TEXT) -> None:
        self.read_hit("q", content, [blocks], length)

    def held(self, blocks: list[int], length: int, content: Content = TEXT) -> None:
        self.read_held("r", "held", content, [blocks], length, "KV-HASH-1")

    def accept(self, blocks: list[int], start: int, end: int, content: Content = LONGEST) -> None:
        self.accept_drafts(content, [blocks], start, end)

    def step(self) -> None:
        self.new_step_starts()

    def lose(self, blocks: list[int]) -> None:
        self.shadow.lose(blocks)

    def forget(self, blocks: list[int]) -> None:
        self.shadow.forget(blocks)

    def early(self, *blocks: int) -> None:
        self.shadow.copied_early.update(blocks)


def listed(value: Any) -> Any:
    return CONTENTS.get(value, value) if isinstance(value, str) else value


@pytest.mark.parametrize("case", cases(__file__, "contents.txt"), ids=str)
def test_what_is_said_of_a_story(case: Case) -> None:
    group, *calls = case.name.split("; ")
    spec, _ = spec_of(Reader(group).values(), SMALL)
    told = Told(spec)
    found = "nothing"
    for number, call in enumerate(calls, 1):
        (verb, *given), named = words(call)
        try:
            getattr(told, verb)(*map(listed, given), **named)
        except InvariantViolation as error:
            found = str(error)
            assert number == len(calls)
    case.expect([found])
