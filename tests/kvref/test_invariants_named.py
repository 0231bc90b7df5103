"""Each invariant is named in the docstring of the one class of kvref that keeps it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable

import pytest

from kvspec.invariants import INVARIANTS
from kvspec.transitions import TRANSITION_INVARIANTS
from tests.source import ROOT

NAMES = [i.name for i in INVARIANTS] + [i.name for i in TRANSITION_INVARIANTS]
SECTION = re.compile(r"^Invariants: ([\w,\s]+)\.$", re.MULTILINE)


def named_in(source: str) -> list[tuple[str, str]]:
    """Return (invariant, class) for each name in an `Invariants:` section of a class."""
    return [
        (name, node.name)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ClassDef)
        for names in SECTION.findall(ast.get_docstring(node) or "")
        for name in re.split(r",\s+", names)
    ]


def problems(sources: Iterable[str]) -> list[str]:
    """List unknown names, names at several classes, and invariants without a class."""
    keepers: dict[str, list[str]] = {name: [] for name in NAMES}
    found = []
    for source in sources:
        for name, keeper in named_in(source):
            if name in keepers:
                keepers[name].append(keeper)
            else:
                found.append(f"{keeper} keeps {name}, which is no invariant")
    return found + [
        f"{name} is kept by {', '.join(classes) or 'nobody'}"
        for name, classes in keepers.items()
        if len(classes) != 1
    ]


def kvref_sources() -> list[str]:
    return [path.read_text(encoding="utf-8") for path in sorted((ROOT / "kvref").rglob("*.py"))]


def test_each_invariant_is_kept_by_one_class() -> None:
    assert problems(kvref_sources()) == []


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        (" keys_are_covered,", "", ["keys_are_covered is kept by nobody"]),
        (
            "Invariants: a_block_has_one_place.",
            "Invariants: a_block_has_one_place, nulls_come_first.",
            ["nulls_come_first is kept by Coordinator, Group"],
        ),
        (
            "a_refusal_only_releases",
            "a_refusal_only_release",
            [
                "Allocator keeps a_refusal_only_release, which is no invariant",
                "a_refusal_only_releases is kept by nobody",
            ],
        ),
    ],
    ids=["missing", "twice", "misspelt"],
)
def test_what_does_not_fit_is_found(old: str, new: str, found: list[str]) -> None:
    sources = kvref_sources()
    assert sum(source.count(old) for source in sources) == 1
    assert problems(source.replace(old, new) for source in sources) == found
