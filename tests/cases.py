"""Cases in text files, each with its expected output.

    == a sentence
    the input, in words
        the expected output

With `KVSPEC_BLESS=1` a test rewrites the output of its case; read the difference like any other.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from kvcheck.rules.notation.values import Name, Reader, parted

IN = "    "


def every_second(values: Iterable[Any]) -> list[Any]:
    """Return parameters of a test; every second is left to --deep."""
    marks = (pytest.mark.deep, ())
    return [pytest.param(value, marks=marks[n % 2]) for n, value in enumerate(values, 1)]


@dataclass(frozen=True)
class Case:
    """One case of a file."""

    path: Path
    name: str
    given: tuple[str, ...]
    said: tuple[str, ...]

    def __str__(self) -> str:
        return self.name

    @property
    def text(self) -> str:
        said = [f"{IN}{line}".rstrip() for line in self.said]
        return "\n".join([f"== {self.name}", *self.given, *said, ""])

    def expect(self, said: Iterable[str]) -> None:
        found = replace(self, said=tuple("\n".join(map(str.rstrip, said)).rstrip().split("\n")))
        if os.environ.get("KVSPEC_BLESS"):
            whole = self.path.read_text("utf-8")
            self.path.write_text(whole.replace(self.text, found.text, 1), "utf-8")
        else:
            assert found.said == self.said


def cases(beside: str, name: str) -> tuple[Case, ...]:
    """Read the cases of a file in the folder of a module, `cases(__file__, "steps.txt")`."""
    path = Path(beside).with_name(name)
    _, *blocks = re.split(r"^== ", path.read_text("utf-8"), flags=re.MULTILINE)
    return tuple(_case(path, block.rstrip().splitlines()) for block in blocks)


def _case(path: Path, lines: list[str]) -> Case:
    first = next((n for n, line in enumerate(lines) if line.startswith(IN)), len(lines))
    said = tuple(line.removeprefix(IN) for line in lines[first:])
    return Case(path, lines[0], tuple(lines[1:first]), said)


def repeated(text: str) -> str:
    """Read `[(9 × 5000)]`, where the nine stands as often."""
    return re.sub(r"\((\S+?) × (\d+)\)", lambda found: found[1] * int(found[2]), text)


def frozen(value: Any) -> Any:
    """Make tuples of lists, and texts of names."""
    if isinstance(value, list):
        return tuple(map(frozen, value))
    return value.word if isinstance(value, Name) else value


def words(line: str) -> tuple[list[Any], dict[str, Any]]:
    """Read `verb 1 [2 3] name=4`, in words of the examples: those without a name, and those with.

    >>> words("ask r [1..3 7] group=1")
    (['ask', 'r', (1, 2, 3, 7)], {'group': 1})
    """
    plain, named = parted(Reader(line).values())
    return [frozen(each) for each in plain], {name: frozen(each) for name, each in named.items()}
