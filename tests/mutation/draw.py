"""Mutants of a part, made and run by mutmut in a copy of the last commit."""

from __future__ import annotations

import json
import os
import re
import shutil
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
pytest_add_cli_args = [
    "-p", "no:cacheprovider", "-W", "ignore:kvfast runs uncompiled", "--timeout=0", "-k", {only},
]
pytest_add_cli_args_test_selection = {tests}
timeout_multiplier = 5.0
timeout_constant = 2.0
use_git_change_detection = false
"""
HANGS_AFTER = "PROGRAM_SECONDS = 30.0"
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
        return f"{module}:{function.removeprefix('x_').removeprefix('xǁ').replace('ǁ', '.')}"


def short(commit: str) -> str:
    """The name of a commit in a few digits; of an export, as it was given."""
    if not (ROOT / ".git").exists():
        return commit
    return _output("git", "-C", str(ROOT), "rev-parse", "--short", commit).strip()


def copy_for(part: Part, folder: Path, commit: str = "HEAD") -> None:
    """A commit in a folder, with mutmut's configuration for this part."""
    folder.mkdir(parents=True, exist_ok=True)
    if (ROOT / ".git").exists():
        archive = subprocess.run(
            ["git", "-C", str(ROOT), "archive", commit], check=True, stdout=subprocess.PIPE
        )
        subprocess.run(["tar", "-x", "-C", str(folder)], check=True, input=archive.stdout)
    else:  # an export of the commit, as .ci/nightly has it
        left_out = shutil.ignore_patterns(".*", "build", "mutants", "node_modules", "*.so")
        shutil.copytree(ROOT, folder, dirs_exist_ok=True, ignore=left_out)
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
    _be_patient(folder / "kvcheck" / "play" / "watchdog.py")


def _be_patient(watchdog: Path) -> None:
    """Mutated code is slow, all the more beside other work: that is no hang of a subject."""
    text = watchdog.read_text(encoding="utf-8")
    if HANGS_AFTER not in text:
        raise RuntimeError(f"{watchdog} has no line {HANGS_AFTER!r}")
    watchdog.write_text(text.replace(HANGS_AFTER, "PROGRAM_SECONDS = 900.0"), encoding="utf-8")


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


MADE = """
from pathlib import Path
from mutmut.mutation.diff_apply import get_diff_for_mutant
from mutmut.mutation.file_mutation import mutate_file_contents
from mutmut.utils.file_utils import walk_mutatable_files
from mutmut.utils.format_utils import get_mutant_name
from tests.mutation.draw import Mutant
import json, sys
wanted, found = json.load(sys.stdin), []
modules = {place.partition(":")[0] for place in wanted}
for path in walk_mutatable_files():
    if str(path.with_suffix("")).replace("/", ".") in modules:
        made = mutate_file_contents(str(path), path.read_text("utf-8"))
        copy = Path("mutants") / path
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(made.code, "utf-8")
        for short in made.mutant_names:
            name = get_mutant_name(path, short)
            if Mutant(name, "").place in wanted:  # each diff parses the whole file again
                found.append([name, "", get_diff_for_mutant(name, path=path)])
        copy.unlink()
print(json.dumps(found))
"""


def within(folder: Path, places: set[str]) -> list[Mutant]:
    """All mutants of these functions, with what they change."""
    return list(_mutants(folder, MADE, sorted(places)))


def run(folder: Path, chosen: Sequence[str]) -> list[Mutant]:
    """What becomes of these mutants, one at a time."""
    if not chosen:  # mutmut would run all
        return []
    command = (sys.executable, "-m", "mutmut", "run", "--max-children", "1", *chosen)
    subprocess.run(command, cwd=folder, check=True, env={**os.environ, "PYTHONHASHSEED": "0"})
    return sorted(_mutants(folder, STATUSES, sorted(chosen)), key=lambda each: each.name)


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


def _mutants(folder: Path, script: str, given: Sequence[str]) -> Iterator[Mutant]:
    """What a script of mutmut's own functions prints."""
    said = subprocess.run(
        [sys.executable, "-c", script],
        cwd=folder,
        check=True,
        text=True,
        input=json.dumps(given),
        stdout=subprocess.PIPE,
    )
    for name, status, diff in json.loads(said.stdout):
        lines = diff.splitlines()[2:]
        old, new = ("\n".join(_changed(lines, mark)) for mark in "-+")
        yield Mutant(name, status, old, new)


def _changed(lines: Sequence[str], mark: str) -> Iterator[str]:
    return (line[1:].strip() for line in lines if line.startswith(mark))


def drawn(
    part: str, folder: Path, number: int, seed: int, commit: str = "HEAD"
) -> tuple[int, list[Mutant]]:
    """How many mutants there are, and what becomes of a draw."""
    copy_for(PARTS[part], folder, commit)
    everything = names(folder)
    chosen = Random(f"{part}/{seed}").sample(everything, min(number, len(everything)))
    return len(everything), run(folder, chosen)


def _output(*command: str, cwd: Path | None = None) -> str:
    return subprocess.run(command, check=True, text=True, cwd=cwd, stdout=subprocess.PIPE).stdout
