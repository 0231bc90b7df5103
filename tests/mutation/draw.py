"""Mutants of a part, made and run by mutmut in a copy of the last commit."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.mutation.parts import NEVER, PARTS, Part
from tests.source import ROOT

MUTMUT = """\
[tool.mutmut]
source_paths = {packages}
only_mutate = {modules}
do_not_mutate = {never}
do_not_mutate_patterns = ['f"', 'Error\\(', 'InvariantViolation\\(']
also_copy = {also}
pytest_add_cli_args = ["-p", "no:cacheprovider", "--timeout=0", "-k", {only}]
pytest_add_cli_args_test_selection = {tests}
timeout_multiplier = 5.0
timeout_constant = 2.0
use_git_change_detection = false
"""
CODE = ("kvref", "kvfast", "kvcheck", "spec", "docs", "examples", "bench", "proofs")


@dataclass(frozen=True)
class Mutant:
    """A mutant by mutmut's name: what became of it, and the lines that it changes."""

    name: str
    status: str
    old: str = ""
    new: str = ""

    @property
    def place(self) -> str:
        """The function, as its package names it."""
        module, _, function = self.name.partition("__mutmut_")[0].rpartition(".")
        return f"{module}:{function.removeprefix('x').lstrip('_').strip('ǁ').replace('ǁ', '.')}"


def commit() -> str:
    """The last commit."""
    return _output("git", "-C", str(ROOT), "rev-parse", "--short=9", "HEAD").strip()


def copy_for(part: Part, folder: Path) -> None:
    """The last commit in a folder, with mutmut's configuration for this part."""
    folder.mkdir(parents=True, exist_ok=True)
    archive = subprocess.run(
        ["git", "-C", str(ROOT), "archive", "HEAD"], check=True, stdout=subprocess.PIPE
    )
    subprocess.run(["tar", "-x", "-C", str(folder)], check=True, input=archive.stdout)
    file = folder / "pyproject.toml"
    text = re.sub(r"(?ms)^\[tool\.mutmut\].*?(?=^\[)", "", file.read_text(encoding="utf-8"))
    own = MUTMUT.format(
        packages=json.dumps(part.packages),
        modules=json.dumps(part.modules),
        never=json.dumps(NEVER),
        also=json.dumps([*(n for n in CODE if n not in part.packages), "README.md", "setup.py"]),
        only=json.dumps(part.only),
        tests=json.dumps(part.tests),
    )
    file.write_text(f"{text}\n{own}", encoding="utf-8")


NAMES = """
from mutmut.mutation.file_mutation import mutate_file_contents
from mutmut.utils.file_utils import walk_mutatable_files
from mutmut.utils.format_utils import get_mutant_name
for path in sorted(walk_mutatable_files()):
    for name in mutate_file_contents(str(path), path.read_text("utf-8")).mutant_names:
        print(get_mutant_name(path, name))
"""


def names(folder: Path) -> list[str]:
    """All mutants that mutmut makes there."""
    return _output(sys.executable, "-c", NAMES, cwd=folder).split()


def run(folder: Path, chosen: Sequence[str]) -> list[Mutant]:
    """What becomes of these mutants, one at a time."""
    command = (sys.executable, "-m", "mutmut", "run", "--max-children", "1", *chosen)
    subprocess.run(command, cwd=folder, check=True, env={**os.environ, "PYTHONHASHSEED": "0"})
    return sorted(_results(folder, set(chosen)), key=lambda each: each.name)


STATUSES = """
from mutmut.stats import status_by_exit_code
from mutmut.mutation.data import SourceFileMutationData
from mutmut.mutation.diff_apply import get_diff_for_mutant
from mutmut.utils.file_utils import walk_mutatable_files
import json, sys
wanted, found = set(json.load(sys.stdin)), []
for path in walk_mutatable_files():
    data = SourceFileMutationData(path=path)
    data.load()
    for name in wanted & data.exit_code_by_key.keys():
        status = status_by_exit_code[data.exit_code_by_key[name]]
        diff = get_diff_for_mutant(name, path=path) if status != "killed" else ""
        found.append([name, status, diff])
print(json.dumps(found))
"""


def _results(folder: Path, chosen: set[str]) -> Iterator[Mutant]:
    said = subprocess.run(
        [sys.executable, "-c", STATUSES],
        cwd=folder,
        check=True,
        text=True,
        input=json.dumps(sorted(chosen)),
        stdout=subprocess.PIPE,
    )
    for name, status, diff in json.loads(said.stdout):
        lines = diff.splitlines()[2:]
        old, new = ("\n".join(_changed(lines, mark)) for mark in "-+")
        yield Mutant(name, status, old, new)


def _changed(lines: Sequence[str], mark: str) -> Iterator[str]:
    return (line[1:].strip() for line in lines if line.startswith(mark))


def drawn(part: str, folder: Path, number: int, seed: int) -> tuple[int, list[Mutant]]:
    """How many mutants there are, and what becomes of a draw."""
    copy_for(PARTS[part], folder)
    everything = names(folder)
    chosen = Random(f"{part}/{seed}").sample(everything, min(number, len(everything)))
    return len(everything), run(folder, chosen)


def _output(*command: str, cwd: Path | None = None) -> str:
    return subprocess.run(command, check=True, text=True, cwd=cwd, stdout=subprocess.PIPE).stdout
