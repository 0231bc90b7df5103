"""What cvc5 says of z3's answers, proof by proof: `python -m tests.proofs.second_solver`.

It runs each proof that takes `--solver cvc5`, and writes the table of proofs/README.md. The exit
code is 1 if cvc5 contradicts z3, or a proof fails.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.source import ROOT

README = ROOT / "proofs" / "README.md"
COUNTS = re.compile(
    r"^cvc5: of (\d+) questions (\d+) confirmed, (\d+) unknown, (\d+) not read, (\d+) otherwise$",
    re.MULTILINE,
)
HEAD = ("file", "questions", "confirmed", "left open", "not read", "contradicted", "s")
BEGIN, END = "<!-- cvc5 -->", "<!-- end of cvc5 -->"


def proofs() -> list[Path]:
    """The files that ask z3."""
    found = sorted((ROOT / "proofs").glob("*/[!_]*.py"))
    return [path for path in found if "run(main)" in path.read_text(encoding="utf-8")]


def asked(path: Path) -> tuple[list[int], int]:
    """The five counts of one proof and its seconds; no counts if it failed."""
    module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    began = time.monotonic()
    command = (sys.executable, "-m", module, "--solver", "cvc5")
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    print(f"{module}: {done.stdout.strip()}{done.stderr}", flush=True)
    counts = COUNTS.search(done.stdout)
    numbers = [int(each) for each in counts.groups()] if counts else []
    return numbers if done.returncode == 0 else [], round(time.monotonic() - began)


def table(rows: Iterable[Sequence[object]]) -> str:
    """As the page shows it."""
    lines: list[Sequence[object]] = [HEAD, ["---"] * len(HEAD), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def written(page: str, made: str) -> str:
    """The page with this table in place of the old one."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{made}\n\n{END}{after}"


def main() -> int:
    """0 if nothing is contradicted."""
    rows: list[list[object]] = []
    failed = False
    for path in proofs():
        counts, seconds = asked(path)
        failed = failed or not counts
        name = path.relative_to(ROOT / "proofs").as_posix()
        cells: Sequence[object] = counts if counts else ("failed",) * 5
        rows.append([f"`{name}`", *cells, seconds])
    columns = list(zip(*rows, strict=True))[1:]
    sums = [sum(one for one in column if isinstance(one, int)) for column in columns]
    page = README.read_text(encoding="utf-8")
    total: list[object] = ["all", *sums]
    README.write_text(written(page, table([*rows, total])), encoding="utf-8")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
