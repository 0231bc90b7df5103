"""Which rules break when a window is added as second group: a table of docs/implement-your-own.md.

`python -m tests.examples.window` takes from the example in Rust all that it knows of windows, gives
it back step by step, and has each version checked at level identity.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from tests.remote.test_example_servers import RUST, broken_rules
from tests.source import ROOT, write_behind

PAGE = ROOT / "docs/implement-your-own.md"
MARK = "<!-- `python -m tests.examples.window` writes this table -->\n"

STEPS = (
    (
        "blocks before the window are given back, and not counted as needed",
        "window.map_or(0, |window| (computed - window + 1).max(0) / self.size(group))",
        "window.map_or(0, |_| (computed - computed) / self.size(group))",
    ),
    (
        "a hit in a window is a run of blocks at its end, null before it",
        "if self.config.groups[first].window.is_some() {",
        "if self.config.groups[first].window.is_some_and(|_| false) {",
    ),
    (
        "a shorter hit in the window shortens that of the others",
        "let is_full = |members: &[usize]| self.config.groups[members[0]].window.is_none();",
        "let is_full = |members: &[usize]| members.len() < 9;",
    ),
    (
        "only blocks that a hit can use are cached",
        "let is_wanted = is_full || tail >= period",
        "let is_wanted = is_full || tail > 0 || tail >= period",
    ),
    (
        "only blocks of full attention are zeroed",
        "if self.config.groups[group].window.is_none() {",
        "if self.config.groups[group].window.is_none_or(|_| true) {",
    ),
)
"""In the order in which one adds them: what it is, how it stands in manager.rs, and without it."""

NOTHING = "the type is declared, and treated as full attention"
SHOWN = 4


def versions() -> list[tuple[str, str]]:
    """Return what each version adds, and its manager.rs; the first lacks windows."""
    whole = (RUST.source / "manager.rs").read_text(encoding="utf-8")
    found = []
    for number in range(len(STEPS) + 1):
        text = whole
        for _, there, without in STEPS[number:]:
            assert text.count(there) == 1, there
            text = text.replace(there, without)
        added = (
            STEPS[number - 1][0]
            if number
            else "the type is declared, and treated as full attention"
        )
        found.append((added, text))
    return found


def rows() -> list[str]:
    lines = ["| what is added | rules that break, as the report has them |", "|---|---|"]
    for added, text in versions():
        with tempfile.TemporaryDirectory() as folder:
            source = Path(shutil.copytree(RUST.source, Path(folder) / "src"))
            (source / "manager.rs").write_text(text, encoding="utf-8")
            broken, _ = broken_rules(RUST.build(Path(folder), source))
        more = f", and {len(broken) - SHOWN} more" if len(broken) > SHOWN else ""
        lines.append(f"| {added} | {', '.join(broken[:SHOWN]) or 'none'}{more} |")
    return lines


def main() -> None:
    write_behind(PAGE, MARK, rows())


if __name__ == "__main__":
    main()
