"""Rules drawn: a directed check runs on kvref, and each call that changes blocks is a column.

A row is a block. Its colour is the request that holds it, a number says how many references there
are, a dot that it is cached. Nothing of this is kept: the figures are made when the site is built.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from html import escape
from typing import Any, cast

import kvref
from kvcheck.play.left_out import LeftOut
from kvcheck.rules.bench import Bench
from kvcheck.rules.directed import EXAMPLES, Example
from kvspec.audit import Wrapper
from kvspec.config import ManagerConfig
from kvspec.interface import Implementation, KVCacheManager
from kvspec.policy import Policy
from kvspec.snapshot import Snapshot

MOST_CALLS, FEWEST_CHANGES, MOST_BLOCKS, LARGEST_POOL = 22, 2, 14, 100
"""Limits of pictures that are quick to read and still show something."""

COLOURS = 6
CELL, LEFT, TOP = 26, 58, 96


@dataclass(frozen=True)
class Column:
    """The blocks after a call: the holders of each, its references, and whether it is cached."""

    call: str
    holders: Mapping[int, str]
    references: tuple[int, ...]
    cached: frozenset[int]

    @property
    def blocks(self) -> tuple[object, ...]:
        return (self.holders, self.references, self.cached)


@dataclass(frozen=True)
class Story:
    """The states of one check."""

    name: str
    columns: tuple[Column, ...]

    @property
    def is_small(self) -> bool:
        """Whether it can be drawn and shows more than one state."""
        changes = sum(a.blocks != b.blocks for a, b in itertools.pairwise(self.columns))
        few = len(self.columns) <= MOST_CALLS and len(self.blocks) <= MOST_BLOCKS
        return few and changes >= FEWEST_CHANGES

    @property
    def blocks(self) -> tuple[int, ...]:
        """Blocks that are ever used, without the null block."""
        used = {block for c in self.columns for block in (*c.cached, *c.holders)}
        used |= {b for c in self.columns for b, count in enumerate(c.references) if count}
        return tuple(sorted(used - {0}))


def stories() -> Mapping[str, Story]:
    """Map each rule to the check that shows it best: about it first of all, then shortest."""
    found: dict[str, tuple[tuple[bool, int], Story]] = {}
    for check in EXAMPLES:
        story = story_of(check)
        if story is None or not story.is_small:
            continue
        for place, rule in enumerate(check.rules):
            rank = (place > 0, len(story.columns))
            if rule not in found or rank < found[rule][0]:
                found[rule] = (rank, story)
    return {rule: story for rule, (_, story) in found.items()}


def story_of(check: Example) -> Story | None:
    """Return the states of the check's first manager that can be drawn; None if none can."""
    watch = Watch(kvref.implementation())
    subject = cast(Implementation, watch)
    with suppress(LeftOut, TooLong):
        check.run(Bench(subject, Policy(), audits=False))  # an audit asks when a column is too many
    found = (Story(check.name, tuple(columns)) for columns in watch.columns)
    return next((story for story in found if story.is_small), None)


def column_of(call: str, snapshot: Snapshot) -> Column:
    """Return the part of a snapshot that is drawn."""
    held = {n: [b for g in r.block_ids for b in g] for n, r in snapshot.requests.items()}
    cached = frozenset(block for block, keys in enumerate(snapshot.block_keys) if keys)
    return Column(call, holders(held), tuple(snapshot.ref_counts), cached)


def holders(held: Mapping[str, list[int]]) -> dict[int, str]:
    """Map each block to the requests that hold it."""
    names: dict[int, list[str]] = {}
    for name, blocks in held.items():
        for block in dict.fromkeys(blocks):
            names.setdefault(block, []).append(name)
    return {block: ", ".join(each) for block, each in names.items() if block}


class TooLong(BaseException):
    """More than a figure holds; no check takes this for what a manager raised."""


@dataclass
class Watch:
    """kvref, with a column for each call of a manager that changed something."""

    inner: Implementation
    columns: list[list[Column]] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def create(self, config: ManagerConfig, **options: Any) -> Any:
        """Make a manager that is watched."""
        manager = self.inner.create(config, **{**options, "check_invariants": False})
        if config.kv_cache.num_blocks > LARGEST_POOL or len(self.columns) > MOST_CALLS:
            raise TooLong
        self.columns.append([column_of("new", manager.snapshot())])
        return WatchedManager(manager, self.columns[-1])


class WatchedManager(Wrapper):
    """Passes all calls to `inner`, and adds a column after each that changed something."""

    def __init__(self, inner: KVCacheManager, columns: list[Column]) -> None:
        self.inner = inner
        self._columns = columns

    def __getattr__(self, name: str) -> Any:
        if name == "inner":  # of a copy that is still being made
            raise AttributeError(name)
        value = getattr(self.inner, name)
        if not callable(value) or name == "snapshot":
            return value

        def call(*arguments: Any, **options: Any) -> Any:
            answer = value(*arguments, **options)
            request = getattr(arguments[0], "request_id", "") if arguments else ""
            column = column_of(f"{name} {request}", self.inner.snapshot())
            if column.blocks != self._columns[-1].blocks or name.startswith("get_computed"):
                self._columns.append(column)
            if len(self._columns) > MOST_CALLS:
                raise TooLong
            return answer

        return call


def svg(story: Story) -> str:
    """Return the states as an inline picture; the site's style sheet sets its colours."""
    width = LEFT + CELL * len(story.columns) + 34
    height = TOP + CELL * len(story.blocks) + 8
    label = escape(f"Blocks after each call of the check: {story.name}")
    return (
        f'<svg class="rule-figure" role="img" aria-label="{label}"'
        f' width="{width}" height="{height}"'
        f' viewBox="0 0 {width} {height}">{"".join(_parts(story))}</svg>'
    )


def _parts(story: Story) -> Iterator[str]:
    requests: dict[str, int] = {}
    for row, block in enumerate(story.blocks):
        y = TOP + CELL * row + CELL * 0.65
        yield f'<text class="block" x="{LEFT - 8}" y="{y:g}">block {block}</text>'
    for at, column in enumerate(story.columns):
        x = LEFT + CELL * at
        middle = x + CELL * 0.62
        yield (
            f'<text class="call" transform="translate({middle:g} {TOP - 6}) rotate(-50)">'
            f"{escape(short(column.call))}</text>"
        )
        for row, block in enumerate(story.blocks):
            holder = column.holders.get(block)
            kind = "free"
            if holder is not None:
                kind = f"held held-{requests.setdefault(holder, len(requests)) % COLOURS}"
            elif column.references[block]:
                kind = "popped"
            yield from _cell(column, block, kind, x, TOP + CELL * row)


def legend(story: Story) -> str:
    """Return the legend of the colours and marks in the picture."""
    seen: dict[str, int] = {}
    for column in story.columns:
        for block in story.blocks:
            if holder := column.holders.get(block):
                seen.setdefault(holder, len(seen))
    shown = [(f"held held-{at % COLOURS}", "", f"held by {name}") for name, at in seen.items()]
    pairs = [(column, block) for column in story.columns for block in story.blocks]
    if any(column.references[block] > 1 for column, block in pairs):
        shown.append(("held held-0", "2", "number of references, if more than one"))
    if any(column.references[block] and block not in column.holders for column, block in pairs):
        shown.append(("popped", "", "popped: waits for its return"))
    shown.append(("free", "", "free"))
    if any(column.cached for column in story.columns):
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


def short(call: str) -> str:
    """Shorten `allocate_slots r0` to `allocate r0`."""
    words = {
        "allocate_slots": "allocate",
        "get_computed_blocks": "look up",
        "remove_skipped_blocks": "remove",
        "pop_blocks_for_free": "pop",
        "reset_prefix_cache": "reset",
        "new_request": "arrive",
        "new_step_starts": "step",
        "append_tokens": "append",
        "cache_blocks": "cache",
        "evict_blocks": "evict",
        "free_blocks": "return",
    }
    name, _, request = call.partition(" ")
    return f"{words.get(name, name.replace('_', ' '))[:14]} {request[:6]}".strip()
