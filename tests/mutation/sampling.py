"""A few mutants: a draw of every target, which CI tries again; a fresh draw; those listed.

A draw is by the name of a mutant, so it stays the same until the function itself changes. Those
tests run first that killed other mutants of the function; if the mutant outlives them, the tests of
the whole target run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from hashlib import sha256
from pathlib import Path

import click
import pytest

from tests.mutation import killers
from tests.mutation.counts import Draw
from tests.mutation.explained import Explained
from tests.mutation.generate import Mutant, SourceFile, drawn, mutants_of
from tests.mutation.runner import Judging, Outcome, Result, in_a_fork, pytest_arguments
from tests.mutation.targets import ROOT, TARGETS, Target

Known = Mapping[str, dict[str, list[str]]]
"""By target and function, the tests that killed its mutants."""

SEED = 1
SHORT_S, LONG_S = 2.0, 20.0
"""Of tests for one mutant: beside those that are known to kill, and if these do not."""
FILES_PER_TARGET = 3
"""Parsing takes a second per file: a draw is from a few files of each target."""


def run(
    targets: Sequence[Target],
    number: int,
    seed: int,
    *,
    jobs: int,
    lists: Explained,
    known: Known,
) -> int:
    """Try so many mutants; the exit code: 1 if one lives that is on none of the `lists`."""
    found = tried(draw(targets, number, seed), jobs=jobs, known=known)
    alive = [r.name for r in found if r.outcome is Outcome.SURVIVED]
    unexplained = [name for name in alive if not lists.explains(name)]
    for name in unexplained:
        click.echo(f"lives unexplained: {name}")
    dead = sum(r.outcome in (Outcome.KILLED, Outcome.TIMEOUT) for r in found)
    click.echo(f"{dead} of {len(found)} mutants killed, {len(alive) - len(unexplained)} explained")
    return int(bool(unexplained) or len(found) < number)


def tried(draws: Iterable[tuple[Target, list[Mutant]]], *, jobs: int, known: Known) -> list[Result]:
    """What became of these mutants; `known`: what killed others, by target and function."""
    found: dict[str, Result] = {}
    for target, mutants in draws:
        work = partial(_judged, target, mutants, jobs, known.get(target.name, {}))
        found.update((result.name, result) for result in in_a_fork(work))
    return list(found.values())


def fresh(target: Target, number: int, seed: int, *, jobs: int, known: Known) -> Draw:
    """A draw of all mutants of a target, of which nobody knew when the tests were written."""
    mutants = mutants_of(target)
    found = tried([(target, drawn(mutants, number, seed))], jobs=jobs, known=known)
    return Draw.of(target.name, seed, len(mutants), found)


def listed_that_die(targets: Sequence[Target], *, jobs: int, lists: Explained, known: Known) -> int:
    """Try again each mutant on the lists by name; the exit code: 1 if one dies or is no more."""
    named = lists.equivalent.keys() | lists.alive.keys()
    files = {name.partition(":")[0] for name in named}
    draws = []
    for target in targets:
        paths = [path for path in target.paths() if path.relative_to(ROOT).as_posix() in files]
        mutants = [mutant for path in paths for mutant in SourceFile(path).mutants()]
        draws.append((target, [mutant for mutant in mutants if mutant.name in named]))
    there = {mutant.name for _, mutants in draws for mutant in mutants}
    gone = sorted(named - there) if len(targets) == len(TARGETS) else []
    found = tried(draws, jobs=jobs, known=known)
    dead = [result for result in found if result.outcome is not Outcome.SURVIVED]
    for name in gone:
        click.echo(f"is no more: {name}")
    for result in dead:
        click.echo(f"{result.outcome} by {result.killer}: {result.name}")
    click.echo(f"{len(found) - len(dead)} of {len(named)} listed mutants live")
    return int(bool(gone or dead))


def _judged(
    target: Target, mutants: list[Mutant], jobs: int, known: dict[str, list[str]]
) -> list[Result]:
    """Results by the tests that are known to kill; of what outlives those, by all tests."""
    functions = {killers.function_of(mutant.name) for mutant in mutants}
    deadly = sorted({test for function in functions for test in known.get(function, ())})
    files = sorted({test.partition("::")[0] for test in deadly})
    found: dict[str, Result] = {}

    def judge(mutants: list[Mutant], tests: Sequence[str], budget_s: float) -> None:
        judging = Judging(
            mutants,
            lambda result: found.update({result.name: result}),
            jobs=jobs,
            budget_s=budget_s,
            killers=known,
        )
        pytest.main(pytest_arguments(tests, target.keyword), plugins=[judging])

    present = [name for name in files if (ROOT / name).exists()]
    if present:
        judge([m for m in mutants if known.get(killers.function_of(m.name))], present, SHORT_S)
    alive = [m for m in mutants if m.name not in found or found[m.name].outcome is Outcome.SURVIVED]
    if alive:
        judge(alive, target.tests, LONG_S)
    return list(found.values())


def draw(
    targets: Sequence[Target], number: int, seed: int
) -> Iterator[tuple[Target, list[Mutant]]]:
    """So many mutants, as evenly over the targets as can be."""
    for index, target in enumerate(targets):
        share = number * (index + 1) // len(targets) - number * index // len(targets)
        files = sorted(target.paths(), key=lambda path: _rank(seed, path))[:FILES_PER_TARGET]
        mutants = [mutant for path in files for mutant in SourceFile(path).mutants()]
        yield target, sorted(mutants, key=lambda mutant: mutant.rank(seed))[:share]


def _rank(seed: int, path: Path) -> str:
    return sha256(f"{seed}:{path.name}".encode()).hexdigest()
