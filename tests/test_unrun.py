"""Every proof, contract and model is run, can fail, and is listed; exceptions are found."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests import unrun
from tests.source import ROOT

RUN = "for proof in proofs/*.py proofs/*/[!_]*.py; do\n"

PROOF = '''"""The queue keeps its order (KV-POOL-5)."""

import sys

from proofs.deep._shared import refute


def main() -> int:
    return 0 if refute() else 1


if __name__ == "__main__":
    sys.exit(main())
'''

CONTRACT = '''def touch(block: int) -> bool:
    """A block is touched.

    post: _
    """
    return True


CONTRACTS = (Contract(touch, MISTAKES),)
'''

FILES = {
    ".ci/run": RUN,
    "proofs/README.md": "| the queue (KV-POOL-5) | `deep/queue.py` | z3 | none | 1 |\n",
    "proofs/deep/queue.py": PROOF,
    "proofs/deep/_shared.py": "from proofs.deep.inside import _more\nMODELS = ('spec/tla/Pool',)\n",
    "proofs/deep/inside/_more.py": CONTRACT,
    "spec/tla/Pool.tla": "EXTENDS Naturals, Queue\n",
    "spec/tla/Pool.cfg": "INVARIANTS\n  in_order\n",
    "spec/tla/Queue.tla": "",
    "spec/tla/node_modules/checker/Example.tla": "",
}


def found_in(folder: Path, **changes: str) -> list[str]:
    """Return the problems of a small repository with these changes."""
    for name, text in {**FILES, **changes}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return unrun.problems(folder)


def test_every_proof_contract_and_model_is_run_and_told_of() -> None:
    assert unrun.problems(ROOT) == []


def test_what_is_run_is_no_problem(tmp_path: Path) -> None:
    assert found_in(tmp_path) == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("proofs/deep/_alone.py", ""),
        ("proofs/deep/inside/proof.py", PROOF),
        ("spec/tla/Alone.tla", ""),
        ("spec/tla/Alone.cfg", "INVARIANT in_order"),
        ("proofs/alone.smt2", ""),
    ],
)
def test_what_nothing_runs_is_found(tmp_path: Path, name: str, text: str) -> None:
    assert found_in(tmp_path, **{name: text}) == [f"{name}: nothing runs it"]


def test_a_name_in_a_docstring_runs_no_model(tmp_path: Path) -> None:
    shared = FILES["proofs/deep/_shared.py"].replace(
        "MODELS = ('spec/tla/Pool',)", "'spec/tla/Pool'"
    )
    assert found_in(tmp_path, **{"proofs/deep/_shared.py": shared}) == [
        "spec/tla/Pool.cfg: nothing runs it",
        "spec/tla/Pool.tla: nothing runs it",
        "spec/tla/Queue.tla: nothing runs it",
    ]


def test_a_pattern_names_what_it_fits(tmp_path: Path) -> None:
    shared = FILES["proofs/deep/_shared.py"].replace("Pool'", "*.tla', '*.cfg'")
    assert found_in(tmp_path, **{"proofs/deep/_shared.py": shared, "spec/tla/A.tla": ""}) == []


def test_a_configuration_that_checks_nothing_is_found(tmp_path: Path) -> None:
    assert found_in(tmp_path, **{"spec/tla/Pool.cfg": "SPECIFICATION Spec\n"}) == [
        "spec/tla/Pool.cfg: checks nothing: no INVARIANT and no PROPERTY"
    ]


def test_a_contract_that_nobody_is_handed_is_found(tmp_path: Path) -> None:
    text = CONTRACT.replace("(Contract(touch, MISTAKES),)", "()")
    name = "proofs/deep/inside/_more.py"
    assert found_in(tmp_path, **{name: text}) == [f"{name}: nothing runs the contract touch"]


def test_a_contract_that_cannot_fail_is_found(tmp_path: Path) -> None:
    text = CONTRACT.replace(", MISTAKES", "")
    name = "proofs/deep/inside/_more.py"
    problem = "no mistake must break the contract touch"
    assert found_in(tmp_path, **{name: text}) == [f"{name}: {problem}"]
    canary = text.replace("(touch)", "(touch), Contract(touch, expected=Outcome.REFUTED)")
    assert found_in(tmp_path, **{name: canary}) == []


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("(KV-POOL-5)", "", "its docstring names no rule"),
        ("sys.exit(main())", "main()", "its end is no exit code, so nobody would see it fail"),
        (
            "return 0 if refute() else 1",
            "return 0",
            "nothing in it must fail: no refute(…), twin or mistake",
        ),
    ],
)
def test_a_proof_that_cannot_fail_or_says_nothing_is_found(
    tmp_path: Path, old: str, new: str, problem: str
) -> None:
    text = PROOF.replace(old, new)
    found = found_in(tmp_path, **{"proofs/deep/queue.py": text})
    assert f"proofs/deep/queue.py: {problem}" in found


@pytest.mark.parametrize(
    ("row", "problems"),
    [
        ("", ["has no row of deep/queue.py"]),
        (
            "| KV-POOL-5, KV-POOL-6 | `deep/queue.py` | z3 |",
            ["the row of deep/queue.py names KV-POOL-6, which the file does not"],
        ),
        (
            "| order | `deep/queue.py` | z3 |",
            ["the row of deep/queue.py names no rule of its docstring"],
        ),
        (
            f"{FILES['proofs/README.md']}| KV-POOL-5 | `gone.py` | z3 |",
            ["gone.py is no proof that is run"],
        ),
    ],
)
def test_a_table_that_tells_otherwise_is_found(
    tmp_path: Path, row: str, problems: list[str]
) -> None:
    found = found_in(tmp_path, **{"proofs/README.md": row})
    assert found == [f"proofs/README.md: {problem}" for problem in problems]


def test_without_a_loop_over_proofs_nothing_is_run(tmp_path: Path) -> None:
    assert found_in(tmp_path, **{".ci/run": "pytest\n"}) == [".ci/run: runs no proof"]


def test_a_file_planted_in_a_copy_of_this_repository_is_found(tmp_path: Path) -> None:
    for name in ("proofs", ".ci"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    before = unrun.problems(tmp_path)
    (tmp_path / "proofs/code/_left.py").write_text("")
    assert set(unrun.problems(tmp_path)) - set(before) == {"proofs/code/_left.py: nothing runs it"}
