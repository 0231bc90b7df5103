"""A few stories that together reach every branch of kvfast's core that guided drawing reached.

A story is a program of single calls and whole steps. `corpus.txt` has one a line, as Python;
`python -m tests.fuzz.guided` makes it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import kvref
from kvcheck.judge.pasted import source
from kvcheck.play import steps
from kvcheck.play.checks import CompareCheck, EventCheck
from kvcheck.play.performing import perform
from kvcheck.play.runner import Check, Runner
from kvcheck.play.steps import Program
from kvspec import config, specs
from kvspec.interface import Implementation

FILE = Path(__file__).parent / "corpus.txt"


def play(story: Program, subject: Implementation, reference: Implementation) -> None:
    """Everything that can be seen of both is the same. Raises at the first difference."""
    runner = Runner(story, subject, reference, audit=False)
    checks: list[Check] = [CompareCheck(exact_ids=True), EventCheck()]
    runner.checks = checks
    perform(runner, story.steps)


def differs(
    story: Program, subject: Implementation, reference: Implementation | None = None
) -> str | None:
    """Where the two part, in words; whatever the subject runs into is a difference, too."""
    try:
        play(story, subject, reference or kvref.implementation())
    except Exception as error:  # whatever it is, it is the subject's
        return f"{type(error).__name__}: {error}"
    return None


def written(story: object) -> str:
    """A story, or a configuration, on one line."""
    return re.sub(r"\s*\n\s*", " ", source(story))


def read(file: Path = FILE) -> list[Program]:
    """The stories of a file."""
    names: dict[str, Any] = {}
    for module in (steps, config, specs):
        names |= _public(vars(module))
    lines = file.read_text(encoding="utf-8").splitlines()
    return [eval(line, {**names}) for line in lines if line and line[0] != "#"]


def write(stories: Sequence[Program], head: Sequence[str], file: Path = FILE) -> None:
    """Keep these, behind lines that say where they come from."""
    lines = [*(f"# {line}" for line in head), *map(written, stories)]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _public(names: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in names.items() if isinstance(value, type)}
