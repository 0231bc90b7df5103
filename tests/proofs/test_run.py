"""Every proof and model is run, can fail, and has its row in proofs/README.md."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.source import ROOT

CITED = re.compile(r"KV-[A-Z]+-[0-9]+")
MUST_FAIL = re.compile(r"refute|twin|mistake|planted", re.IGNORECASE)


def problems(root: Path) -> Iterator[str]:
    """Yield what nothing runs, what cannot fail, and what the table has otherwise."""
    patterns = re.findall(r"^for proof in (.+); do$", (root / ".ci/run").read_text("utf-8"), re.M)
    run = {path for pattern in patterns[0].split() for path in root.glob(pattern)}
    readme = (root / "proofs/README.md").read_text("utf-8")
    rows = re.findall(r"^\|[^|]*KV-[^|]*\| `([^`|]+)` \|", readme, re.MULTILINE)
    listed = {root / "proofs" / file for file in rows}
    yield from (f"{path}: no row, or no proof" for path in listed ^ run)
    for path in run:
        text = path.read_text("utf-8")
        if not CITED.search(ast.get_docstring(ast.parse(text)) or ""):
            yield f"{path}: its docstring names no rule"
        if "sys.exit(main(" not in text or not MUST_FAIL.search(text):
            yield f"{path}: it cannot fail"
    modules = {path: path.read_text("utf-8") for path in (root / "proofs").rglob("*.py")}
    yield from unnamed(modules.keys() - run, modules)
    models = [path for path in (root / "spec/tla").glob("*") if path.suffix in (".tla", ".cfg")]
    yield from unnamed(models, modules | {path: path.read_text("utf-8") for path in models})


def unnamed(paths: Iterable[Path], texts: dict[Path, str]) -> Iterator[str]:
    """Yield the files that no other one names."""
    for path in paths:
        word = re.compile(rf"\b{path.stem}\b")
        if not any(word.search(text) for other, text in texts.items() if other != path):
            yield f"{path}: nothing runs it"


def test_every_proof_and_model_is_run_and_listed() -> None:
    assert list(problems(ROOT)) == []


def test_what_nothing_runs_and_what_cannot_fail_is_found(tmp_path: Path) -> None:
    proof = "def main() -> int:\n    return 0\n\n\nsys.exit(main())\n"
    files = {
        ".ci/run": "for proof in proofs/*/[!_]*.py; do\n",
        "proofs/README.md": "| a (KV-POOL-1) | `code/a.py` | z3 |\n| b (KV-POOL-1) | `code/b.py` |",
        "proofs/code/a.py": f'"""About KV-POOL-1."""\n{proof}',
        "proofs/code/c.py": f"MISTAKES = ()\n{proof}",
        "proofs/code/_left.py": "",
        "spec/tla/Pool.tla": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    found = {line.removeprefix(f"{tmp_path}/") for line in problems(tmp_path)}
    assert found == {
        "proofs/code/a.py: it cannot fail",
        "proofs/code/b.py: no row, or no proof",
        "proofs/code/c.py: no row, or no proof",
        "proofs/code/c.py: its docstring names no rule",
        "proofs/code/_left.py: nothing runs it",
        "spec/tla/Pool.tla: nothing runs it",
    }
