"""The examples that are shipped: those of the rules, and longer ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cache
from importlib.resources import files
from pathlib import Path

from kvcheck.play.left_out import LeftOut
from kvcheck.play.verdicts import Level
from kvcheck.rulebook import rule_blocks
from kvcheck.rules.bench import Bench
from kvcheck.rules.example import Example
from kvcheck.rules.notation.playing import played
from kvcheck.rules.notation.story import (
    Story,
    answered,
    choices_of,
    is_of_ids,
    is_of_safety,
    stories_of,
)
from kvspec.editions import EDITIONS, FIRST, edition_of_rules


@cache  # parsed once, when the suite is first asked for
def written_stories() -> tuple[Story, ...]:
    """Return all examples in text: chapter by chapter, then the longer ones."""
    found: list[Story] = []
    for rule, path, line, text in rule_blocks():
        found += stories_of(text, path, first_line=line, rule=rule)
    folder = files("kvspec").joinpath("data/examples")
    for file in sorted(folder.iterdir(), key=lambda each: each.name):
        path = f"spec/kvspec/data/examples/{file.name}"
        found += stories_of(file.read_text(encoding="utf-8"), path)
    return tuple(found)


@cache
def shipped_stories() -> tuple[Story, ...]:
    """Return those that an implementation is asked: all but records of copies."""
    return tuple(story for story in written_stories() if not story.is_of_copies)


def stories_in(folder: Path) -> Iterator[Story]:
    """Yield the examples of all chapters (`.md`) and files (`.kv`) of a folder."""
    for path in sorted((*folder.rglob("*.md"), *folder.rglob("*.kv"))):
        yield from stories_of(path.read_text(encoding="utf-8"), str(path))


def examples_from(stories: Iterable[Story]) -> tuple[Example, ...]:
    """Convert to examples of the suite; their lines determine the level that first decides them."""
    return tuple(map(example_of, stories))


def example_of(story: Story, in_part: Callable[[LeftOut], None] = lambda left: None) -> Example:
    """Convert to an example of the suite. `in_part` receives why a part of it was left out."""
    lines = answered(story)
    level = Level.BEHAVIOUR
    if lines and all(map(is_of_safety, lines)):
        level = Level.SAFETY
    elif lines and all(map(is_of_ids, lines)):
        level = Level.IDENTITY

    def check(bench: Bench) -> None:
        watches = bench.level is Level.SAFETY and level is not Level.SAFETY
        left = played(story, replace(bench, watches=watches))
        if left is not None:
            in_part(left)

    editions = (edition_of_rules().get(rule, FIRST) for rule in story.rules)
    since = max((story.since or FIRST, *editions), key=EDITIONS.index)
    return Example(
        story.name,
        story.rules,
        check,
        level,
        choices=choices_of(story),
        since=since,
        is_watched=True,
    )
