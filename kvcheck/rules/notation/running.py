"""Run examples on an implementation; fill in the results that are still open."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from kvcheck.play.fit import policy_of
from kvcheck.play.left_out import LeftOut
from kvcheck.play.verdicts import Violation
from kvcheck.rules.bench import Bench
from kvcheck.rules.example import example_violation
from kvcheck.rules.judging import NotationError
from kvcheck.rules.notation.chunks import undecided
from kvcheck.rules.notation.playing import Play, state_before
from kvcheck.rules.notation.shipped import example_of
from kvcheck.rules.notation.story import Line, Story, stories_of
from kvspec.interface import Implementation
from kvspec.offload import OffloadImplementation
from kvspec.policy import Policy

OPEN_ANSWER = "-> ?"


@dataclass(frozen=True)
class Outcome:
    """The outcome of an example: passed, left out for a reason, or a violation.

    `in_part`: why a part of one that passed was left out. `place`: file, line number and line of
    the failure. `state`: the manager's before that line.
    """

    story: Story
    left_out: str = ""
    in_part: str = ""
    violation: Violation | None = None
    place: str = ""
    state: str = ""


def outcomes_of(
    stories: Iterable[Story], subject: Implementation, policy: Policy
) -> Iterator[Outcome]:
    """Play each example under the choices that the subject declares."""
    offered = subject.offload_capabilities if isinstance(subject, OffloadImplementation) else None
    for story in stories:
        lack = offered and undecided([line.text for line in story.lines], offered)
        if lack:
            yield Outcome(story, left_out=lack)
            continue
        parts: list[LeftOut] = []
        try:
            violation = example_violation(example_of(story, parts.append), subject, policy)
        except LeftOut as reason:
            yield Outcome(story, left_out=str(reason))
            continue
        if violation is None:
            yield Outcome(story, in_part=str(parts[-1]) if parts else "")
            continue
        _, _, place = violation.detail.rpartition(f", {story.path}:")
        place = f"{story.path}:{place}" if place else ""
        bench = Bench(subject, policy_of(policy, subject.capabilities))
        state = state_before(story, bench, place) if place else ""
        yield Outcome(story, violation=violation, place=place, state=state)


def blessed(text: str, path: str, subject: Implementation) -> str:
    """Fill in each `-> ?`, and each `?` of a table, with the subject's result.

    Raises NotationError where the rest of an example can't be played.
    """
    lines = text.split("\n")
    for story in stories_of(text, path):
        filled = list(_answers(story, subject))
        cells = iter([answer for line, answer in filled if OPEN_ANSWER not in lines[line - 1]])
        for line, answer in filled:
            lines[line - 1] = lines[line - 1].replace(OPEN_ANSWER, f"-> {answer}", 1)
        for place in _table_of(story, lines):
            first, *rest = re.split(r"(?<=\s)\?", lines[place])
            lines[place] = first + "".join(next(cells, "?") + each for each in rest)
    return "\n".join(lines)


def _answers(story: Story, subject: Implementation) -> Iterator[tuple[int, str]]:
    for _, lines in story.played_lines():
        if not any(line.text.endswith(OPEN_ANSWER) for line in lines):
            continue
        play = Play(Bench(subject, Policy()))
        for line in lines:
            play.filled_in = None
            play.line(line.text)
            if play.filled_in is not None:
                yield line.number, play.filled_in


def _table_of(story: Story, lines: list[str]) -> range:
    """Return the lines of the example's table, which precedes its first line."""
    end = story.lines[0].number - 1
    place = end - 1
    while place >= 0 and not lines[place].startswith(("for ", "==", "```")):
        place -= 1
    return range(place if place >= 0 and lines[place].startswith("for ") else end, end)


def drawn_story(story: Story, subject: Implementation) -> Iterator[str]:
    """Play an example, and yield its lines with the state drawn where a line has changed it."""
    shown = ""
    for row, lines in story.played_lines():
        if row:
            yield f"# {row}"
        play = Play(Bench(subject, Policy()))
        for line in lines:
            yield from _drawn_line(play, line)
            state = play.drawn()
            if state not in ("", shown):
                yield from (f"    {each}" for each in state.split("\n"))
            shown = state
        if row:
            return  # the first row is shown for all


def _drawn_line(play: Play, line: Line) -> Iterator[str]:
    yield line.text
    try:
        play.line(line.text)
    except NotationError:
        raise
    except LeftOut as reason:
        yield f"    left out: {reason}"
