"""Every proof, contract and model is run, can fail, and is listed; exceptions are found."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests import unrun
from tests.cases import Case, cases
from tests.repositories import check
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


def test_every_proof_contract_and_model_is_run_and_told_of() -> None:
    assert unrun.problems(ROOT) == []


@pytest.mark.parametrize("case", cases(__file__, "test_unrun.txt"), ids=str)
def test_what_nothing_runs_and_what_cannot_fail_is_found(tmp_path: Path, case: Case) -> None:
    check(case, FILES, tmp_path, unrun.problems)


def test_a_file_planted_in_a_copy_of_this_repository_is_found(tmp_path: Path) -> None:
    for name in ("proofs", ".ci"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    before = unrun.problems(tmp_path)
    (tmp_path / "proofs/code/_left.py").write_text("")
    assert set(unrun.problems(tmp_path)) - set(before) == {"proofs/code/_left.py: nothing runs it"}
