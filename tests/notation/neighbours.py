"""Change each number of each example by one, and show which examples still pass.

    python -m tests.notation.neighbours [PATTERN…]     of rules such as KV-SW-*; by default of all

An example that also holds for a neighbour of its numbers can't tell its rule from an off-by-one.
Numbers of results and of sums must all matter (exit 1 if one does not). Some of those of
configurations and calls don't, and the bound of `refused at 5, granted at 4` has a neighbour on one
side that does not: shown are the share of neighbours, and of numbers with any that fails. Tokens
written as a text, `"abc."`, are changed too: one more dot, the last sign dropped, another letter
for the first that a second text has as well, so that what looks equal is not.
"""

from __future__ import annotations

import fnmatch
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from string import ascii_letters

import kvref
from kvcheck.play.left_out import LeftOut
from kvcheck.rules.example import example_violation
from kvcheck.rules.judging import NotationError
from kvcheck.rules.notation.shipped import example_of, written_stories
from kvcheck.rules.notation.story import Line, Story, sums_in
from kvspec.policy import Policy

NUMBER = re.compile(r'(?<![\w.#"…])\d+(?![\w"…]|\.\d)|(?<=#)\d+|(?<=/)\d+|(?<=\.\.)\d+|\d+(?=\.\.)')
TEXT = re.compile(r'"[^"]*"')
TOKENS = re.compile(r'(?:^(?:new|start|append) [^"=]*?|^)(?P<text>"[A-Za-z.]+")')


@dataclass(frozen=True)
class Neighbour:
    """An example with one number changed, the changed line, and the kind of the number.

    `is_answer`: behind an arrow, the result of a sum, or in a column of results alone.
    `spot`: the place of the number, the same for all its neighbours.
    """

    story: Story
    line: str
    is_answer: bool
    spot: tuple[str, ...]


def neighbours(story: Story) -> Iterator[Neighbour]:
    """Yield the example with each number one less and one more."""
    signs = Counter("".join(_texts(story)))
    for place, line in enumerate(story.lines):
        arrow = line.text.find("=" if sums_in(line.text) else "->")
        for text, start in (*_changed(line.text), *_retold(line.text, signs)):
            lines = (*story.lines[:place], Line(line.number, text), *story.lines[place + 1 :])
            is_answer = 0 <= arrow < start
            spot = (story.name, f"{line.number}", f"{start}")
            yield Neighbour(replace(story, lines=lines), f"{line.number}: {text}", is_answer, spot)
    for number, row in enumerate(story.rows):
        for cell, (name, value) in enumerate(row):
            for text, start in (*_changed(value), *_retold(value, signs)):
                changed = (*row[:cell], (name, text), *row[cell + 1 :])
                rows = (*story.rows[:number], changed, *story.rows[number + 1 :])
                words = f"{story.lines[0].number}: {name} = {text} for {value}"
                spot = (story.name, f"{name} {number}", f"{start}")
                yield Neighbour(replace(story, rows=rows), words, _answers(story, name), spot)


def _changed(text: str) -> Iterator[tuple[str, int]]:
    """Yield the text with a number changed, and its place; texts in quotes stay."""
    quoted = [match.span() for match in TEXT.finditer(text)]
    for match in NUMBER.finditer(text):
        is_bound = text[: match.start()].endswith("at_most ")  # which one more does not break
        if not is_bound and not any(begin <= match.start() < end for begin, end in quoted):
            for other in (int(match[0]) - 1, int(match[0]) + 1):
                yield f"{text[: match.start()]}{other}{text[match.end() :]}", match.start()


def _texts(story: Story) -> Iterator[str]:
    """Yield the tokens that are written as texts, in lines and in the table."""
    cells = (value for row in story.rows for _, value in row)
    for text in (*(line.text for line in story.lines), *cells):
        if match := TOKENS.match(text):
            yield match["text"][1:-1]


def _retold(line: str, signs: Counter[str]) -> Iterator[tuple[str, int]]:
    """Yield the line with its tokens changed where they are a text, and their place.

    `signs`: how often each sign is in the texts of the example.
    """
    if match := TOKENS.match(line):
        text, place = match["text"][1:-1], match.start("text")
        shared = [sign for sign in text if sign != "." and signs[sign] > text.count(sign)]
        new = next(letter for letter in ascii_letters if letter not in signs)
        others = [text.replace(sign, new, 1) for sign in shared[:1]]
        for other in (text[:-1], f"{text}.", *others):
            yield f"{line[: place + 1]}{other}{line[match.end('text') - 1 :]}", place


def _answers(story: Story, name: str) -> bool:
    """Check that a column of the table is used behind arrows alone."""
    used = [
        [bool(re.search(rf"(?<!\w){name}(?!\w)", side)) for side in line.text.partition("->")]
        for line in story.lines
    ]
    return any(behind for _, _, behind in used) and not any(before for before, _, _ in used)


def passes(story: Story) -> bool:
    try:
        return example_violation(example_of(story), kvref.implementation(), Policy()) is None
    except NotationError:
        return False
    except LeftOut:
        return True
    except (ArithmeticError, LookupError, TypeError, ValueError):
        return False  # no example any more, such as an entry that is not in a list


def survivors(stories: Sequence[Story]) -> Iterator[tuple[Neighbour, bool]]:
    for story in stories:
        for each in neighbours(story):
            yield each, passes(each.story)


def main(patterns: Sequence[str]) -> int:
    """Print survivors among results, and the shares of both kinds that are found."""
    wanted = [
        story
        for story in written_stories()
        if not patterns or any(fnmatch.fnmatch(story.rules[0], each) for each in patterns)
    ]
    counts = {True: [0, 0], False: [0, 0]}
    matters: dict[bool, dict[tuple[str, ...], bool]] = {True: {}, False: {}}
    for each, survives in survivors(wanted):
        counts[each.is_answer][survives] += 1
        spots = matters[each.is_answer]
        spots[each.spot] = spots.get(each.spot, False) or not survives
        if survives and (each.is_answer or patterns):
            kind = "answer" if each.is_answer else "call"
            print(f"{kind} survives: {each.story.name} ({each.story.path}:{each.line})")
    for is_answer, (found, left) in counts.items():
        kind = "answers and sums" if is_answer else "configurations and calls"
        share = 100 * found / max(found + left, 1)
        print(f"{kind}: {found + left} neighbours, {found} fail ({share:.1f} %), {left} pass")
        spots = matters[is_answer]
        share = 100 * sum(spots.values()) / max(len(spots), 1)
        print(f"  {len(spots)} numbers; of {share:.1f} % at least one neighbour fails")
    return int(counts[True][1] > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
