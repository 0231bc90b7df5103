"""Figures of a checkout's structure, from its import graph and its files.

    python -m tests.figures [CHECKOUT]

Packages are those of the second level (`kvcheck.play`); modules beside them stand for themselves.
A floor is the longest way down through packages that import each other; a circle are packages that
reach each other. Lines leave out what programs write: vectors, records, pictures, tables, JSON.
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


def packages_of(root: Path) -> dict[str, set[str]]:
    """Each package and module of the second level, and those it imports."""
    sys.path[:0] = [str(root), str(root / "spec")]
    names = [n for n in PACKAGES if (root / n).is_dir() or (root / "spec" / n).is_dir()]
    graph = grimp.build_graph(*names, cache_dir=None)
    unit = {module: ".".join(module.split(".")[:2]) for module in graph.modules}
    arrows: dict[str, set[str]] = {name: set() for name in unit.values()}
    for module in graph.modules:
        for target in graph.find_modules_directly_imported_by(module):
            if unit[module] != unit[target]:
                arrows[unit[module]].add(unit[target])
    # A package stands for what its own __init__ imports only where nothing else is in it.
    return {name: targets - set(names) for name, targets in arrows.items() if name not in names}


def reached_from(arrows: dict[str, set[str]]) -> dict[str, set[str]]:
    """What each one imports, also by way of others."""
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
    """The longest way down; packages of one circle stand on one floor."""

    @cache
    def floor(name: str) -> int:
        below = [each for each in reached[name] if name not in reached[each]]
        return 1 + max((floor(each) for each in below), default=0)

    return max(map(floor, arrows))


def lines_of(root: Path) -> tuple[Counter[str], Counter[str], list[Path]]:
    """Files and lines of each part, and the files of code that ships."""
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


def main(arguments: list[str]) -> int:
    """The command."""
    root = Path(arguments[0] if arguments else ".").resolve()
    arrows = packages_of(root)
    reached = reached_from(arrows)
    circles = {frozenset(o for o in reached[n] if n in reached[o]) for n in arrows}
    print(f"packages {len(arrows)}, arrows {sum(map(len, arrows.values()))},", end=" ")
    print(f"floors {floors(arrows, reached)}")
    print("circles", [sorted(circle) for circle in circles if circle] or "none")
    number, lines, code = lines_of(root)
    for part in sorted(lines):
        print(f"{part:20} {number[part]:5} files {lines[part]:7} lines")
    ours = lines.total() - lines["written by programs"]
    files = number.total() - number["written by programs"]
    print(f"{'all but the last':20} {files:5} files {ours:7} lines")
    texts = [path.read_text("utf-8") for path in code]
    for name in NAMES:
        print(f"{name} stands in {sum(name in text for text in texts)} files of code")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
