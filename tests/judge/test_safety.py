"""Level safety sees each way to serve wrong content, without agreement on a policy."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest

from kvcheck.play.left_out import LeftOut
from kvcheck.play.random_programs import random_programs
from kvcheck.play.steps import Admit, Arrive, Program, Release, Reset, Step
from kvcheck.play.verdicts import Level, first_violation
from kvcheck.rules.directed import EXAMPLES
from kvcheck.rules.example import Example, example_violation
from kvspec.interface import Implementation
from kvspec.policy import Policy
from tests.mistakes import mistaken
from tests.programs import CFG, SCENARIOS, A

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


@pytest.mark.parametrize("subject", [t[1] for t in TWINS], ids=[t[0] for t in TWINS])
def test_random_programs_see_wrong_content(subject: Implementation) -> None:
    found = (
        first_violation(program, subject, Level.SAFETY)
        for batch in range(10)
        for program in random_programs(0, batch, 30)
    )
    assert any(found)


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
