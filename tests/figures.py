"""Figures of the structure of checkouts, from their imports and their files: a column for each.

    python -m tests.figures [CHECKOUT …]

A *place* is a folder or module of `kvcheck`, `kvfast.device`, the rest of `kvfast`, `kvref`, or
`kvspec`, as docs/ARCHITECTURE.md draws them. Where `kvspec` has folders, as it had while the judge
was part of it, each of those is a place. A floor is the longest way down through places that import
each other; a circle counts as many floors as it has places, since nothing orders them. Imports for
type checkers count. Lines leave out what programs write: vectors, records, pictures, tables, JSON.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import grimp

PACKAGES = ("kvspec", "kvcheck", "kvref", "kvfast")
PARTS = ("spec", "kvref", "kvfast", "kvcheck", "tests", "proofs", "bench", "examples", "docs")
WRITTEN = re.compile(
    r"(^|/)data/|\.(jsonl|json|svg|png|html|gz|zst)$|docs/(MUTANTS|MUTATION|KILLS|FINDINGS|BLAME)\.md"
    r"|^LICENSE$|^spec/README\.md$"
)
NAMES = ("ChunkedLocalAttentionSpec", "MambaSpec", "take_events", "remove_skipped_blocks")
ELSEWHERE = ("tests/", "proofs/", "bench/", "examples/")


def place_of(module: str, folders: set[str]) -> str:
    """Return the place of a module: its package, or a folder that counts by itself."""
    parts = module.split(".")
    second = ".".join(parts[:2])
    stands_alone = parts[0] == "kvcheck" or second == "kvfast.device"
    is_folder_of_old = parts[0] == "kvspec" and second in folders
    return second if stands_alone or is_folder_of_old else parts[0]


def places_of(root: Path) -> dict[str, set[str]]:
    """Return each place, with those it imports."""
    before = sys.path[:]
    sys.path[:0] = [str(root), str(root / "spec")]
    names = [n for n in PACKAGES if (root / n).is_dir() or (root / "spec" / n).is_dir()]
    graph = grimp.build_graph(*names, cache_dir=None)
    sys.path[:] = before
    folders = {module.rpartition(".")[0] for module in graph.modules}
    place = {module: place_of(module, folders) for module in graph.modules - {"kvcheck"}}
    arrows: dict[str, set[str]] = {name: set() for name in place.values()}
    for module, here in place.items():
        for target in graph.find_modules_directly_imported_by(module):
            if place.get(target, here) != here:
                arrows[here].add(place[target])
    return arrows


def reached_from(arrows: dict[str, set[str]]) -> dict[str, set[str]]:
    """Return all places that each one imports, directly or not."""
    reached = {name: set(targets) for name, targets in arrows.items()}
    changed = True
    while changed:
        changed = False
        for targets in reached.values():
            more = set().union(*(reached[each] for each in targets)) - targets
            targets |= more
            changed = changed or bool(more)
    return reached


def floors(arrows: dict[str, set[str]], reached: dict[str, set[str]]) -> int:
    """Return the longest way down; a circle counts as many floors as it has places."""

    @cache
    def floor(name: str) -> int:
        circle = {name, *(each for each in reached[name] if name in reached[each])}
        below = reached[name] - circle
        return len(circle) + max((floor(each) for each in below), default=0)

    return max(map(floor, arrows))


def lines_of(root: Path) -> tuple[Counter[str], Counter[str], list[Path]]:
    """Return files and lines of each part, and the files of code that ships."""
    asked = ("git", "-C", str(root), "ls-files")
    listed = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split("\n")
    number, lines, code = Counter[str](), Counter[str](), []
    for name in filter(None, listed):
        path = root / name
        part = next((part for part in PARTS if name.startswith(f"{part}/")), "others")
        part = "written by programs" if WRITTEN.search(name) else part
        number[part] += 1
        lines[part] += path.read_bytes().count(b"\n")
        if name.endswith((".py", ".pxd")) and not name.startswith(ELSEWHERE):
            code.append(path)
    return number, lines, code


def figures(root: Path) -> dict[str, int]:
    """Return the counts, by name."""
    arrows = places_of(root)
    reached = reached_from(arrows)
    circles = {frozenset(o for o in reached[n] if n in reached[o]) for n in arrows} - {frozenset()}
    number, lines, code = lines_of(root)
    written = "written by programs"
    texts = [path.read_text("utf-8") for path in code]
    return {
        "places": len(arrows),
        "imports between places": sum(map(len, arrows.values())),
        "floors": floors(arrows, reached),
        "circles of places": len(circles),
        "places in circles": sum(map(len, circles)),
        **{f"lines: {part}": lines[part] for part in (*PARTS, "others", written)},
        "lines but those written by programs": lines.total() - lines[written],
        "files but those written by programs": number.total() - number[written],
        **{f"files that name {name}": sum(name in text for text in texts) for name in NAMES},
    }


def main(arguments: list[str]) -> int:
    roots = [Path(argument) for argument in arguments or ["."]]
    columns = [figures(root.resolve()) for root in roots]
    print(f"{'':42}", *(f"{root.resolve().name:>16}" for root in roots))
    for name in columns[0]:
        print(f"{name:42}", *(f"{column[name]:16,}" for column in columns))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
