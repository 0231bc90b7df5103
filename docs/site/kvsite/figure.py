"""Rules drawn: an example is played on kvref, and each line that changes blocks is a column.

A row is a block. Its colour is the request that holds it, a number says how many references there
are, a dot that it is cached. Nothing of this is kept: the figures are made when the site is built.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html import escape

import kvref
from kvcheck.rules.bench import Bench
from kvcheck.rules.notation.playing import Play
from kvcheck.rules.notation.shipped import shipped_stories
from kvcheck.rules.notation.story import Story, is_pool
from kvspec.policy import Policy
from kvspec.snapshot import Snapshot

MOST_COLUMNS, FEWEST_CHANGES, MOST_BLOCKS = 22, 2, 14
"""Limits of pictures that are quick to read and still show something."""

COLOURS = 6
CELL, LEFT, TOP = 26, 68, 96


@dataclass(frozen=True)
class Column:
    """The blocks after a line: the holders of each, its references, and whether it is cached."""

    line: str
    holders: Mapping[int, str]
    references: tuple[int, ...]
    cached: frozenset[int]

    @property
    def blocks(self) -> tuple[object, ...]:
        return (self.holders, self.references, self.cached)


@dataclass(frozen=True)
class Film:
    """The states of one manager of an example."""

    name: str
    columns: tuple[Column, ...]

    @property
    def is_small(self) -> bool:
        """Whether it can be drawn and shows more than one state."""
        changes = sum(a.blocks != b.blocks for a, b in itertools.pairwise(self.columns))
        few = len(self.columns) <= MOST_COLUMNS and len(self.blocks) <= MOST_BLOCKS
        return few and changes >= FEWEST_CHANGES

    @property
    def blocks(self) -> tuple[int, ...]:
        """Blocks that are ever used, without the null block."""
        used = {block for c in self.columns for block in (*c.cached, *c.holders)}
        used |= {b for c in self.columns for b, count in enumerate(c.references) if count}
        return tuple(sorted(used - {0}))


def films() -> Mapping[str, Film]:
    """Map each rule to the example that shows it best: about it first of all, then shortest."""
    found: dict[str, tuple[tuple[bool, int], Film]] = {}
    for story in shipped_stories():
        film = next((each for each in films_of(story) if each.is_small), None)
        if film is None:
            continue
        for place, rule in enumerate(story.rules):
            rank = (place > 0, len(film.columns))
            if rule not in found or rank < found[rule][0]:
                found[rule] = (rank, film)
    return {rule: film for rule, (_, film) in found.items()}


def films_of(story: Story) -> Iterator[Film]:
    """Play an example, and yield the states of each of its managers."""
    _, lines = next(iter(story.played_lines()))
    play = Play(Bench(kvref.implementation(), Policy(), audits=False))
    columns: list[Column] = []
    for line in lines:
        if is_pool(line.text) and columns:
            yield Film(story.name, tuple(columns))
            columns = []
        play.line(line.text)
        if play.manager is not None:
            column = column_of(line.text, play.manager.real.snapshot())
            if not columns or column.blocks != columns[-1].blocks:
                columns.append(column)
    yield Film(story.name, tuple(columns))


def column_of(line: str, snapshot: Snapshot) -> Column:
    """Return the part of a snapshot that is drawn."""
    held = {n: [b for g in r.block_ids for b in g] for n, r in snapshot.requests.items()}
    cached = frozenset(block for block, keys in enumerate(snapshot.block_keys) if keys)
    return Column(line, holders(held), tuple(snapshot.ref_counts), cached)


def holders(held: Mapping[str, list[int]]) -> dict[int, str]:
    """Map each block to the requests that hold it."""
    names: dict[int, list[str]] = {}
    for name, blocks in held.items():
        for block in dict.fromkeys(blocks):
            names.setdefault(block, []).append(name)
    return {block: ", ".join(each) for block, each in names.items() if block}


def svg(film: Film) -> str:
    """Return the states as an inline picture; the site's style sheet sets its colours."""
    width = LEFT + CELL * len(film.columns) + 34
    height = TOP + CELL * len(film.blocks) + 8
    label = escape(f"Blocks after each line of the example: {film.name}")
    return (
        f'<svg class="rule-figure" role="img" aria-label="{label}"'
        f' width="{width}" height="{height}"'
        f' viewBox="0 0 {width} {height}">{"".join(_parts(film))}</svg>'
    )


def _parts(film: Film) -> Iterator[str]:
    requests: dict[str, int] = {}
    for row, block in enumerate(film.blocks):
        y = TOP + CELL * row + CELL * 0.65
        yield f'<text class="block" x="{LEFT - 8}" y="{y:g}">block {block}</text>'
    for at, column in enumerate(film.columns):
        x = LEFT + CELL * at
        middle = x + CELL * 0.62
        yield (
            f'<text class="call" transform="translate({middle:g} {TOP - 6}) rotate(-50)">'
            f"{escape(short(column.line))}</text>"
        )
        for row, block in enumerate(film.blocks):
            holder = column.holders.get(block)
            kind = "free"
            if holder is not None:
                kind = f"held held-{requests.setdefault(holder, len(requests)) % COLOURS}"
            elif column.references[block]:
                kind = "popped"
            yield from _cell(column, block, kind, x, TOP + CELL * row)


def legend(film: Film) -> str:
    """Return the legend of the colours and marks in the picture."""
    seen: dict[str, int] = {}
    for column in film.columns:
        for block in film.blocks:
            if holder := column.holders.get(block):
                seen.setdefault(holder, len(seen))
    shown = [(f"held held-{at % COLOURS}", "", f"held by {name}") for name, at in seen.items()]
    pairs = [(column, block) for column in film.columns for block in film.blocks]
    if any(column.references[block] > 1 for column, block in pairs):
        shown.append(("held held-0", "2", "number of references, if more than one"))
    if any(column.references[block] and block not in column.holders for column, block in pairs):
        shown.append(("popped", "", "popped: waits for its return"))
    shown.append(("free", "", "free"))
    if any(column.cached for column in film.columns):
        shown.append(("free", "•", "cached"))
    return "".join(
        f'<span class="key"><i class="{kind}">{mark}</i> {escape(words)}</span> '
        for kind, mark, words in shown
    )


def _cell(column: Column, block: int, kind: str, x: int, y: int) -> Iterator[str]:
    references, is_cached = column.references[block], block in column.cached
    said = column.holders.get(block, "waits for its return" if references else "free")
    words = f"block {block}: {said}{', cached' if is_cached else ''}, {references} references"
    size = CELL - 3
    yield (
        f'<g class="{kind}"><title>{escape(words)}</title>'
        f'<rect x="{x}" y="{y}" width="{size}" height="{size}" rx="3"/>'
    )
    if is_cached:
        yield f'<circle cx="{x + size - 5}" cy="{y + 5}" r="2.6"/>'
    if references > 1:
        yield f'<text class="count" x="{x + size / 2:g}" y="{y + size * 0.7:g}">{references}</text>'
    yield "</g>"


def short(line: str) -> str:
    """Shorten `start a "ab." priority=1` to `start a`."""
    words = line.partition(" ->")[0].partition(";")[0].split()
    return " ".join(words[:2] if len(words) > 1 and words[1].isalnum() else words[:1])[:20]
