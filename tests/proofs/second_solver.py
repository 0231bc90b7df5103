"""What cvc5 says of z3's answers: `python -m tests.proofs.second_solver [FILE…]`.

It runs these proofs with `--solver cvc5`, or all that take it, and writes their rows of the table
in proofs/README.md. The exit code is 1 if cvc5 contradicts z3, or a proof fails.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.source import ROOT

README = ROOT / "proofs" / "README.md"
COUNTS = re.compile(
    r"^cvc5: of (\d+) questions (\d+) confirmed, (\d+) unknown, (\d+) not read, (\d+) otherwise$",
    re.MULTILINE,
)
ROW = re.compile(r"^\| `(\S+\.py)` \|((?: \d+ \|){5})$", re.MULTILINE)
HEAD = ("file", "questions", "confirmed", "left open", "not read", "contradicted")
BEGIN, END = "<!-- cvc5 -->", "<!-- end of cvc5 -->"


def proofs() -> list[str]:
    """The files that ask z3, below proofs/."""
    found = sorted((ROOT / "proofs").glob("*/[!_]*.py"))
    asking = [path for path in found if "run(main)" in path.read_text(encoding="utf-8")]
    return [path.relative_to(ROOT / "proofs").as_posix() for path in asking]


def asked(name: str) -> list[int]:
    """The five counts of one proof; none if it failed."""
    module = ".".join(("proofs", *Path(name).with_suffix("").parts))
    command = (sys.executable, "-m", module, "--solver", "cvc5")
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    print(f"{module}: {done.stdout.strip()}{done.stderr}", flush=True)
    return counted(done.stdout) if done.returncode == 0 else []


def counted(said: str) -> list[int]:
    """What a proof printed of them."""
    counts = COUNTS.search(said)
    return [int(each) for each in counts.groups()] if counts else []


def rows_of(page: str) -> dict[str, list[int]]:
    """Those of the table as it is."""
    part = page.partition(BEGIN)[2].partition(END)[0]
    return {name: [int(n) for n in row.split(" |") if n.strip()] for name, row in ROW.findall(part)}


def table(rows: Mapping[str, Sequence[int]]) -> str:
    """As the page shows it; a file without a row was not run."""
    shown: list[Sequence[object]] = [HEAD, ["---"] * len(HEAD)]
    for name in proofs():
        cells: Sequence[object] = rows.get(name) or ("not run", "", "", "", "")
        shown.append((f"`{name}`", *cells))
    sums = [sum(column) for column in zip(*filter(None, rows.values()), strict=True)]
    shown.append(("all", *sums))
    return "\n".join(f"| {' | '.join(map(str, row))} |" for row in shown)


def written(page: str, rows: Mapping[str, Sequence[int]]) -> str:
    """The page with these rows in its table."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{table(rows)}\n\n{END}{after}"


def main(names: Sequence[str]) -> int:
    """0 if nothing is contradicted."""
    failed = False
    for name in names or proofs():
        counts = asked(name)
        failed = failed or not counts
        page = README.read_text(encoding="utf-8")
        README.write_text(written(page, {**rows_of(page), name: counts}), encoding="utf-8")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
