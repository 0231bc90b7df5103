"""Reading mistakes, and making changes to a source. A text of mistakes reads so:

    @ kvref.block_pool:BlockPool.allocate
    HandsOutBackwards KV-POOL-3: the blocks taken are handed out last first.
    - return taken
    + return taken[::-1]

    TakesFromTheBack KV-POOL-3: the block used last is evicted first.
    + self.free_queue.reverse()
    + taken = right(n)
    + self.free_queue.reverse()
    + return taken

`@` says where all changes below it are made, until the next `@`: a function, a class or a module. A
mistake begins with its id, the rules it breaks and what is wrong. Lines with `-` must occur there
exactly once, whatever their indentation, and are replaced by those with `+`. `+` alone, in a class
or module: at its end; in a function: instead of it. There `right(…)` calls the function as it was,
`given` are its arguments by name, and `right` without a call is a property as it was. A line with
`=` says why no caller can see the mistake.
"""

from __future__ import annotations

import ast
import builtins
import re
import symtable
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from textwrap import indent
from typing import Any


class MistakeError(Exception):
    """A mistake can't be made: its text is wrong, or the code that it changes is another by now."""


@dataclass(frozen=True)
class Mistake:
    """One mistake.

    - `about`: what is wrong, in one sentence; `rules`: the rules it breaks, the one really broken
      first.
    - `origin`: the package it is made from, such as `kvref`. `kind`: the part that is wrong:
      `manager`, `planner`, `steps`, `tier`, `tree`: `make` returns an implementation; tests define
      other kinds.
    - `equivalent`: why no caller can see it; empty if one can.
    """

    id: str
    rules: tuple[str, ...]
    about: str
    origin: str
    kind: str
    make: Callable[[], Any] = field(repr=False, compare=False)
    equivalent: str = ""


HEAD = re.compile(r"(\w+) ((?:KV-[A-Z]+-\d+(?:, )?)+): (.+)")
Definition = ast.FunctionDef | ast.ClassDef


@dataclass
class Change:
    """At `place` (within its module) the lines `old` become the lines `new`."""

    module: str
    place: str
    old: list[str] = field(default_factory=list)
    new: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.module}:{self.place}" if self.place else self.module


@dataclass
class Entry:
    id: str
    rules: tuple[str, ...]
    about: str
    changes: list[Change] = field(default_factory=list)
    equivalent: str = ""


def entries(text: str) -> Iterator[Entry]:
    module = place = ""
    entry: Entry | None = None
    begins = True  # whether the next line with - or + begins a change
    for number, line in enumerate(text.splitlines(), 1):
        mark, rest = line[:1], line[2:]
        head = HEAD.fullmatch(line)
        if head is not None:
            if entry is not None:
                yield entry
            about = head[3][0].upper() + head[3][1:]
            entry = Entry(head[1], tuple(head[2].split(", ")), about)
            begins = True
        elif mark == "@":
            module, _, place = rest.partition(":")
            begins = True
        elif mark in ("-", "+") and entry is not None:
            change = entry.changes[-1] if entry.changes and not begins else None
            if change is None or (mark == "-" and change.new):
                change = Change(module, place)
                entry.changes.append(change)
            (change.old if mark == "-" else change.new).append(rest)
            begins = False
        elif mark == "=" and entry is not None:
            entry.equivalent = f"{entry.equivalent} {rest}".strip()
        elif line.strip() and mark != "#":
            raise MistakeError(f"line {number} is no part of a mistake: {line}")
    if entry is not None:
        yield entry


def changed(source: str, changes: Sequence[Change]) -> str:
    for change in changes:
        source = _replaced(source, change) if change.old else _put(source, change)
    return source


def unknown_names(source: str) -> set[str]:
    """Return names that functions of a module read but that are never assigned."""
    top = symtable.symtable(source, "module", "exec")
    given = {each.get_name() for each in top.get_symbols() if each.is_assigned()}
    given |= {each.get_name() for each in top.get_symbols() if each.is_imported()}
    given |= {each.get_name() for each in top.get_children()}
    read: set[str] = set()
    waiting = [top]
    while waiting:
        table = waiting.pop()
        waiting += table.get_children()
        read |= {s.get_name() for s in table.get_symbols() if s.is_global() and s.is_referenced()}
    return read - given - set(dir(builtins)) - {"__name__", "__file__", "__doc__"}


def _replaced(source: str, change: Change) -> str:
    """Replace `old`, which must occur exactly once, by `new`."""
    lines = source.splitlines()
    first, end = _span(source, change)
    stripped = [line.strip() for line in lines]
    old = [line.strip() for line in change.old]
    at = [n for n in range(first, end - len(old) + 1) if stripped[n : n + len(old)] == old]
    if len(at) != 1:
        raise MistakeError(f"{change} has {len(at)} times {' / '.join(old)!r}")
    margin = re.match(" *", lines[at[0]])[0]  # type: ignore[index]  # it matches everything
    left = change.old[0][: len(change.old[0]) - len(change.old[0].lstrip())]
    new = [margin + line.removeprefix(left) for line in change.new]
    lines[at[0] : at[0] + len(old)] = new
    return "\n".join(lines) + "\n"


def _put(source: str, change: Change) -> str:
    """Put `new` at the end of a class or module, or in place of a function's body."""
    lines = source.splitlines()
    body = "\n".join(change.new)
    if not change.place:
        return f"{source}\n\n{body}\n"
    found = definition(source, change)
    margin = " " * (found.col_offset + 4)
    if isinstance(found, ast.ClassDef):
        lines.insert(found.end_lineno or 0, indent(body, margin))
        return "\n".join(lines) + "\n"
    decorators = [ast.unparse(each) for each in found.decorator_list]
    is_method = "." in change.place
    as_it_was = f"_right_{found.name}"
    owner = "" if not is_method or "staticmethod" in decorators else f"{found.args.args[0].arg}."
    if "staticmethod" in decorators:
        owner = f"{change.place.rpartition('.')[0]}."
    if re.search(r"\bgiven\b", body):
        if "given" in {each.arg for each in ast.walk(found.args) if isinstance(each, ast.arg)}:
            raise MistakeError(f"{change} has an argument of its own called given")
        own = f"; given.pop({found.args.args[0].arg!r})" if is_method else ""
        body = f"given = dict(locals()){own}\n{body}"
    body = re.sub(r"\bright\b", f"{owner}{as_it_was}", body)
    header = lines[found.lineno - 1 : found.body[0].lineno - 1]
    kept = [f"{margin[4:]}@{each}" for each in decorators]
    # Call the original as a subclass would: through an attribute of the object.
    again = [each for each in kept if each.strip() in ("@property", "@staticmethod")]
    new = [*again, *header, indent(body, margin)]
    first = min([found.lineno, *(each.lineno for each in found.decorator_list)]) - 1
    renamed = re.sub(rf"def {found.name}\b", f"def {as_it_was}", lines[found.lineno - 1], count=1)
    was = [*kept, renamed, *lines[found.lineno : found.end_lineno]]
    lines[first : found.end_lineno] = [*was, "", *new]
    return "\n".join(lines) + "\n"


def _span(source: str, change: Change) -> tuple[int, int]:
    """Return the lines of the place, from 0."""
    if not change.place:
        return 0, len(source.splitlines())
    found = definition(source, change)
    return found.lineno - 1, found.end_lineno or 0


def definition(source: str, change: Change) -> Definition:
    """Return the class or function at the place of the change; the change names one."""
    within: list[ast.stmt] = ast.parse(source).body
    found: Definition | None = None
    for name in change.place.split("."):
        named = [n for n in within if isinstance(n, Definition) and n.name == name]
        if not named:
            raise MistakeError(f"there is no {change}")
        found = named[-1]
        within = found.body
    if found is None:
        raise MistakeError(f"there is no {change}")
    return found
