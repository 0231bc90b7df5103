"""Which rules break when a window is added as second group: a table of docs/implement-your-own.md.

`python -m tests.examples.window` takes from the example in Rust all that it knows of windows, gives
it back step by step, and has each version checked at level identity.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from tests.cases import cases
from tests.remote.test_example_servers import RUST, broken_rules
from tests.source import ROOT, write_behind

PAGE = ROOT / "docs/implement-your-own.md"
MARK = "<!-- `python -m tests.examples.window` writes this table -->\n"

STEPS = cases(__file__, "window.txt")
NOTHING = "the type is declared, and treated as full attention"
SHOWN = 4


def versions() -> list[tuple[str, str]]:
    """Return what each version adds, and its manager.rs; the first lacks windows."""
    whole = (RUST.source / "manager.rs").read_text(encoding="utf-8")
    found = []
    for number in range(len(STEPS) + 1):
        text = whole
        for step in STEPS[number:]:
            there, without = step.given
            assert text.count(there) == 1, there
            text = text.replace(there, without)
        found.append((STEPS[number - 1].name if number else NOTHING, text))
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
