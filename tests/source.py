"""The repository's own files, for the tests that look at its source."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]

# Import packages and their folders.
PACKAGES = (
    ("kvspec", ROOT / "spec/kvspec"),
    ("kvcheck", ROOT / "kvcheck"),
    ("kvref", ROOT / "kvref"),
    ("kvfast", ROOT / "kvfast"),
)

_FOLDERS = (
    *("spec", "kvcheck", "kvref", "kvfast", "tests", "proofs", "bench", "examples", "docs"),
    ".ci",
)
_TEXT = frozenset({".py", ".pxd", ".md", ".toml", ".txt", ".yml", ".yaml", ".sh", ""})


def write_behind(page: Path, mark: str, lines: Iterable[str]) -> None:
    """Replace the lines behind the mark, up to the next empty line."""
    before, _, after = page.read_text(encoding="utf-8").partition(mark)
    rest = after[after.index("\n\n") :]
    page.write_text(before + mark + "\n".join(lines) + rest, encoding="utf-8")


def text_files() -> tuple[Path, ...]:
    """Return every text file of the repository, without leftovers of builds and tools."""
    found = [path for path in ROOT.iterdir() if path.is_file() and not path.name.startswith(".")]
    for folder in _FOLDERS:
        found += [path for path in (ROOT / folder).rglob("*") if path.is_file()]
    return tuple(
        sorted(
            path
            for path in found
            if path.suffix in _TEXT
            and not {"__pycache__", ".hypothesis", "node_modules"} & set(path.parts)
        )
    )


def python_files() -> tuple[Path, ...]:
    return tuple(path for path in text_files() if path.suffix == ".py")


def package_modules() -> Iterator[tuple[str, Path]]:
    """Yield dotted name and file of every module of the four packages."""
    for package, folder in PACKAGES:
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            yield ".".join((package, *(p for p in parts if p != "__init__"))), path


@functools.cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def shown(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()
