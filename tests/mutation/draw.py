"""Mutants of a part, made and run by mutmut in a copy of a commit."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from tests.source import ROOT

PARTS: Mapping[str, Mapping[str, Any]] = tomllib.loads(
    Path(__file__).with_name("parts.toml").read_text(encoding="utf-8")
)
"""Modules by pattern, and the quick tests that are shown their mutants."""
MUTMUT = """\
[tool.mutmut]
source_paths = {packages}
only_mutate = {modules}
do_not_mutate = ["*/mistakes/*"]
do_not_mutate_patterns = ['f"', 'Error\\(', 'InvariantViolation\\(']
also_copy = {also}
pytest_add_cli_args = {arguments}
pytest_add_cli_args_test_selection = {tests}
use_git_change_detection = false
"""
ARGUMENTS = ("-p", "no:cacheprovider", "-W", "ignore:kvfast runs uncompiled", "--timeout=0")
HANGS_AFTER = "PROGRAM_SECONDS = 30.0"
CODE = ("kvref", "kvfast", "kvcheck", "spec", "docs", "examples", "bench", "proofs")
MAKE = """
import mutmut.__main__ as m
from pathlib import Path
m.set_mutant_under_test("mutant_generation")
Path("mutants").mkdir(exist_ok=True)
m.copy_src_dir()
m.copy_also_copy_files()
m.setup_source_paths()
m.create_mutants(1)
"""
SHOW = """
from mutmut.mutation.diff_apply import get_diff_for_mutant
from mutmut.stats import status_by_exit_code
import json, sys
print(json.dumps([
    (name, status_by_exit_code[code], get_diff_for_mutant(name, path=path))
    for name, path, code in json.load(sys.stdin)
]))
"""


@dataclass(frozen=True)
class Mutant:
    """A mutant by mutmut's name: what became of it, and the lines that it changes."""

    name: str
    status: str
    old: str = ""
    new: str = ""

    @property
    def place(self) -> str:
        module, _, function = self.name.partition("__mutmut_")[0].rpartition(".")
        return f"{module}:{function.removeprefix('x_').removeprefix('xǁ').replace('ǁ', '.')}"


def drawn(part: str, folder: Path, number: int, seed: int, jobs: int) -> tuple[int, list[Mutant]]:
    """Return the number of mutants of a part, and the outcomes of a draw of them."""
    copy_for(PARTS[part], folder)
    python(folder, "-c", MAKE)
    every = [name for name, _, _ in made(folder)]
    chosen = Random(f"{part}/{seed}").sample(every, min(number, len(every)))
    python(folder, "-m", "mutmut", "run", "--max-children", str(jobs), *chosen)
    ran = [line for line in made(folder) if line[0] in chosen]
    shown = python(folder, "-c", SHOW, said=json.dumps(ran))
    return len(every), [
        Mutant(name, status, *(lines_of(diff, mark) for mark in "-+"))
        for name, status, diff in json.loads(shown)
    ]


def copy_for(part: Mapping[str, Any], folder: Path) -> None:
    """Copy the last commit, or an export of it, with mutmut's configuration for this part."""
    if (ROOT / ".git").exists():
        archive = subprocess.run(
            ["git", "-C", str(ROOT), "archive", "HEAD"], check=True, stdout=subprocess.PIPE
        )
        subprocess.run(["tar", "-x", "-C", str(folder)], check=True, input=archive.stdout)
    else:
        left_out = shutil.ignore_patterns(".*", "build", "mutants", "node_modules", "*.so")
        shutil.copytree(ROOT, folder, dirs_exist_ok=True, ignore=left_out)
    file = folder / "pyproject.toml"
    text = re.sub(r"(?ms)^\[tool\.mutmut\].*?(?=^\[)", "", file.read_text(encoding="utf-8"))
    own = MUTMUT.format(
        packages=json.dumps(part["packages"]),
        modules=json.dumps(part["modules"]),
        also=json.dumps([*(n for n in CODE if n not in part["packages"]), "README.md", "setup.py"]),
        arguments=json.dumps([*ARGUMENTS, "-k", part["only"]]),
        tests=json.dumps(part["tests"]),
    )
    file.write_text(f"{text}\n{own}", encoding="utf-8")
    watchdog = folder / "kvcheck/play/watchdog.py"  # mutated code is slow
    patient = watchdog.read_text("utf-8").replace(HANGS_AFTER, "PROGRAM_SECONDS = 900.0")
    watchdog.write_text(patient, encoding="utf-8")


def python(folder: Path, *arguments: str, said: str | None = None) -> str:
    """Run this Python in a copy. Raises CalledProcessError, as where its tests fail unchanged."""
    environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": str(folder / "spec")}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        check=True,
        env=environment,
        input=said,
        stdout=None if said is None else subprocess.PIPE,
        text=True,
    )
    return done.stdout or ""


def made(folder: Path) -> Iterator[tuple[str, str, int | None]]:
    for meta in sorted((folder / "mutants").rglob("*.py.meta")):
        file = str(meta.relative_to(folder / "mutants").with_suffix(""))
        codes = json.loads(meta.read_text(encoding="utf-8"))["exit_code_by_key"]
        yield from ((name, file, code) for name, code in codes.items())


def lines_of(diff: str, mark: str) -> str:
    lines: Sequence[str] = diff.splitlines()[2:]
    return "\n".join(line[1:].strip() for line in lines if line.startswith(mark))
