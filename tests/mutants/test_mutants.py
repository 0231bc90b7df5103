"""The mutants are what they say, the published table is theirs, and what it says holds."""

from __future__ import annotations

import inspect
import re
import sys
from collections import Counter
from types import FrameType
from typing import Any

import pytest

from kvcheck.discovery import find_implementation
from kvcheck.play.verdicts import Level
from kvcheck.rulebook import rule_sentences
from kvref import hashing
from kvref.configuration import Parts
from kvspec.errors import UnknownImplementationError
from tests.mutants import admission, errors, events, partial
from tests.mutants.__main__ import PAGE
from tests.mutants.cbor import encoded
from tests.mutants.make import Mutant, Mutated, implementation_with
from tests.mutants.registry import EQUIVALENT, MUTANTS, find
from tests.mutants.search import directed_checks, random_tier
from tests.mutants.table import listed

ENOUGH = 0.97
"""Of the mutants that differ from the reference, the share that the suite must kill."""

UNBROKEN = (
    Mutated(),
    implementation_with(events.ChangesStored),
    implementation_with(partial.ChangesPartialEvent),
    implementation_with(admission.ChangesAllocation),
    Mutated(Parts(), manager_class=errors.WithoutACheck),
)
"""What mutants are made from."""


def test_every_mutant_has_a_name_of_its_own_and_breaks_rules_that_there_are() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    rules = rule_sentences()
    for mutant in MUTANTS:
        assert mutant.rules, mutant.name
        assert set(mutant.rules) <= rules.keys(), mutant.name
        assert mutant.about.endswith((".", "…")), mutant.name


def test_a_mutant_is_found_by_name_as_any_implementation() -> None:
    assert isinstance(find_implementation("tests.mutants:TakesFromTheBack"), Mutated)
    with pytest.raises(UnknownImplementationError, match="no mutant is called Nobody"):
        find_implementation("tests.mutants:Nobody")


def test_the_table_lists_exactly_the_mutants() -> None:
    assert list(listed(PAGE)) == [mutant.name for mutant in MUTANTS]


def test_the_table_shows_nearly_all_dead() -> None:
    dead = {name for name, (level, _) in listed(PAGE).items() if level != "–"}
    assert not dead & EQUIVALENT.keys()
    assert len(dead) >= ENOUGH * (len(MUTANTS) - len(EQUIVALENT))


def test_the_rows_of_the_rules_count_the_dead() -> None:
    """They are what spec/table.py takes for a rule that is seen to be broken."""
    table = listed(PAGE)
    dead = Counter(
        rule for mutant in MUTANTS if table[mutant.name][0] != "–" for rule in mutant.rules
    )
    rows = re.findall(
        r"^\| (KV-\w+-\d+) \| (\d+) \| \d+ \|$", PAGE.read_text("utf-8"), re.MULTILINE
    )
    assert {rule: int(killed) for rule, killed in rows} == dead


@pytest.mark.parametrize("start", range(4))
def test_a_mutant_dies_at_the_level_and_by_the_check_that_the_table_names(start: int) -> None:
    """A quarter at a time; only the killer is run, so this is all that a kill takes."""
    table = listed(PAGE)
    survived = [
        mutant.name
        for mutant in MUTANTS[start::4]
        if mutant.name not in EQUIVALENT and not dies(mutant, table[mutant.name][1])
    ]
    assert not survived


def dies(mutant: Mutant, by: str) -> bool:
    """Whether the named check or random program kills it at level identity."""
    if by == "–":
        return True  # a survivor, which the share above counts
    number = re.fullmatch(r"random (program|plan) (\d+)", by)
    if number is not None:
        check = random_tier(int(number.group(2)), plans=number.group(1) == "plan")[-1]
    else:
        check = next(check for check in directed_checks() if check.name == by)
    return check.at[Level.IDENTITY](mutant.make()) is not None


@pytest.mark.parametrize("number", range(len(UNBROKEN)))
def test_what_mutants_are_made_from_is_not_broken(number: int) -> None:
    """Each on its share of the directed checks; the suite passes on the reference elsewhere."""
    for check in directed_checks()[number :: 4 * len(UNBROKEN)]:
        assert check.at[Level.IDENTITY](UNBROKEN[number]) is None, check.name


@pytest.mark.deep
@pytest.mark.parametrize("number", range(len(UNBROKEN)))
def test_what_mutants_are_made_from_passes_every_directed_check(number: int) -> None:
    for check in directed_checks():
        assert check.at[Level.IDENTITY](UNBROKEN[number]) is None, check.name


@pytest.mark.parametrize(
    "value",
    [
        None,
        *(0, 23, 24, 255, 256, 65_535, 65_536, 2**32 - 1, 2**32, 2**63, -1, -24, -300),
        *("", "ü", "a" * 24, b"", b"\x00" * 256),
        [],
        [b"parent", [1] * 30, ["name", ["item", -2]]],
    ],
)
def test_an_encoder_that_is_told_nothing_wrong_is_canonical(value: Any) -> None:
    assert encoded(value) == hashing.encode(value)


@pytest.mark.parametrize("name", EQUIVALENT)
def test_the_wrong_part_of_an_equivalent_mutant_is_used(name: str) -> None:
    """It is equivalent because nobody can see the difference, not because nothing reaches it."""
    mutant = find(name)
    lines, first = inspect.getsourcelines(mutant.broken[0])
    file = inspect.getsourcefile(mutant.broken[0])
    reached = False

    def watch(frame: FrameType, event: str, argument: object) -> None:
        nonlocal reached
        code = frame.f_code
        inside = first <= code.co_firstlineno < first + len(lines)
        reached = reached or (inside and code.co_filename == file)

    subject = mutant.make()
    for check in directed_checks():
        if not set(mutant.rules).isdisjoint(check.rules):
            sys.setprofile(watch)
            try:
                verdict = check.at[Level.IDENTITY](subject)
            finally:
                sys.setprofile(None)
            assert verdict is None, check.name
    assert reached


@pytest.mark.deep
def test_no_directed_check_kills_an_equivalent_mutant() -> None:
    for name in EQUIVALENT:
        subject = find(name).make()
        for check in directed_checks():
            assert check.at[Level.IDENTITY](subject) is None, (name, check.name)
