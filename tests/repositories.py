"""Small repositories in text cases: what is changed in one, and what a check of it finds.

NAME: OLD -> NEW        in a file that is there
NAME = TEXT             a file, whole; `\\n` ends a line
- NAME = TEXT           one of several changes, each alone, of which all must find the same
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.cases import Case

LINE = re.compile(r"(?:- )?(?P<name>\S+?)(?:: (?P<old>.+) ->| =)(?: (?P<text>.*))?")


def written(folder: Path, files: Mapping[str, str], *lines: str) -> Path:
    changes = dict(files)
    for line in lines:
        found = LINE.fullmatch(line)
        assert found is not None, line
        text, old = (found["text"] or "").replace(r"\n", "\n"), found["old"]
        if old is not None:
            before, old = changes[found["name"]], old.replace(r"\n", "\n")
            assert old in before, line
            text = before.replace(old, text)
        changes[found["name"]] = text
    for name, text in changes.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


def check(
    case: Case, files: Mapping[str, str], folder: Path, problems: Callable[[Path], list[str]]
) -> None:
    shared = [line for line in case.given if not line.startswith("- ")]
    alone = [[line] for line in case.given if line.startswith("- ")] or [[]]
    found = [
        problems(written(folder / str(number), files, *shared, *lines))
        for number, lines in enumerate(alone)
    ]
    assert found == found[:1] * len(alone)
    case.expect(found[0] or ["no problem"])
