"""Mutants of a part, made by mutmut in a copy of a commit."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from random import Random
from signal import SIGXCPU
from tempfile import TemporaryDirectory

import click

from kvcheck.cli._support import write_whole
from kvcheck.processes import exit_code
from kvcheck.tasks import Call, Workers, in_order
from tests.mutation.parts import NEVER, PARTS, Part
from tests.source import ROOT

MUTMUT = """\
[tool.mutmut]
source_paths = {packages}
only_mutate = {modules}
do_not_mutate = {never}
do_not_mutate_patterns = ['f"', 'Error\\(', 'InvariantViolation\\(']
also_copy = {also}
pytest_add_cli_args = {arguments}
pytest_add_cli_args_test_selection = {tests}
use_git_change_detection = false
"""
ARGUMENTS = (
    "-p", "no:cacheprovider", "-W", "ignore:kvfast runs uncompiled", "--timeout=0",
)  # fmt: skip
SAME = {"PYTHONHASHSEED": "0"}
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
        module, _, function = self.name.partition("__mutmut_")[0].rpartition(".")
        return f"{module}:{function.removeprefix('x_').removeprefix('xǁ').replace('ǁ', '.')}"


def short(commit: str) -> str:
    """Return a commit's abbreviated name; in an export, the name as given."""
    if not (ROOT / ".git").exists():
        return commit
    return _output("git", "-C", str(ROOT), "rev-parse", "--short", commit).strip()


def copy_for(part: Part, folder: Path, commit: str = "HEAD") -> None:
    """Copy a commit to a folder, with mutmut's configuration for this part."""
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
        arguments=json.dumps([*ARGUMENTS, "-k", part.only]),
        tests=json.dumps(part.tests),
    )
    file.write_text(f"{text}\n{own}", encoding="utf-8")
    _be_patient(folder / "kvcheck" / "play" / "watchdog.py")


def _be_patient(watchdog: Path) -> None:
    """Raise the limit for a hang: mutated code is slow, all the more beside other work."""
    text = watchdog.read_text(encoding="utf-8")
    if HANGS_AFTER not in text:
        raise RuntimeError(f"{watchdog} has no line {HANGS_AFTER!r}")
    watchdog.write_text(text.replace(HANGS_AFTER, "PROGRAM_SECONDS = 900.0"), encoding="utf-8")


PREPARE = """
from mutmut.__main__ import collect_or_load_stats, create_mutants
from mutmut.mutation.trampoline import set_mutant_under_test
from mutmut.utils.file_utils import copy_also_copy_files, copy_src_dir, setup_source_paths
from mutmut.workers.isolation import get_mutant_runner
from pathlib import Path
set_mutant_under_test("mutant_generation")
Path("mutants").mkdir(exist_ok=True)
copy_src_dir()
copy_also_copy_files()
setup_source_paths()
create_mutants(1)
collect_or_load_stats(get_mutant_runner())
"""
STATS = "mutants/mutmut-stats.json"
"""Which tests call which function, and their seconds: mutmut writes it when all of them passed."""


def prepared(part: str, folder: Path, commit: str = "HEAD") -> Path:
    """Return a copy with all mutants of a part; reuse one that exists."""
    place = folder / f"{part}-{short(commit)}"
    if not (place / STATS).exists() or not (ROOT / ".git").exists():  # an export has no name
        shutil.rmtree(place, ignore_errors=True)
        copy_for(PARTS[part], place, commit)
        make_mutants(place)
    return place


def make_mutants(place: Path) -> None:
    """Make all mutants beside the code, and note which tests call which function."""
    environment = {**os.environ, **SAME, "PYTHONPATH": str(place / "spec")}
    subprocess.run([sys.executable, "-c", PREPARE], cwd=place, check=True, env=environment)


def names(place: Path) -> dict[str, str]:
    """Return all mutants of a copy, each with its file."""
    made = place / "mutants"
    return {
        name: str(meta.relative_to(made).with_suffix(""))
        for meta in sorted(made.rglob("*.py.meta"))
        for name in json.loads(meta.read_text(encoding="utf-8"))["exit_code_by_key"]
    }


CHANGES = """
from mutmut.mutation.diff_apply import get_diff_for_mutant
import json, sys
print(json.dumps([get_diff_for_mutant(name, path=path) for name, path in json.load(sys.stdin)]))
"""


def shown(place: Path, statuses: Mapping[str, str]) -> list[Mutant]:
    """Return mutants with their changes."""
    files = names(place)
    said = subprocess.run(
        [sys.executable, "-c", CHANGES],
        cwd=place,
        check=True,
        text=True,
        input=json.dumps([(name, files[name]) for name in statuses]),
        stdout=subprocess.PIPE,
    )
    found = []
    for (name, status), diff in zip(statuses.items(), json.loads(said.stdout), strict=True):
        lines = diff.splitlines()[2:]
        old, new = ("\n".join(_changed(lines, mark)) for mark in "-+")
        found.append(Mutant(name, status, old, new))
    return found


def _changed(lines: Sequence[str], mark: str) -> Iterator[str]:
    return (line[1:].strip() for line in lines if line.startswith(mark))


def within(place: Path, places: set[str]) -> list[Mutant]:
    """Return all mutants of these functions."""
    return shown(place, {name: "" for name in names(place) if Mutant(name, "").place in places})


def drawn(
    part: str, folder: Path, number: int, seed: int, commit: str, workers: Workers | None
) -> tuple[int, list[Mutant]]:
    """Return the number of mutants, and the outcomes of a draw."""
    place = prepared(part, folder, commit)
    everything = list(names(place))
    chosen = Random(f"{part}/{seed}").sample(everything, min(number, len(everything)))
    return len(everything), run(place, chosen, workers)


PROGRAM = """
import os, resource, subprocess, sys
import mutmut, pytest
mutant, limit_s, *arguments = sys.argv[1:]
resource.setrlimit(resource.RLIMIT_CPU, (int(limit_s), int(limit_s) + 1))
here = [os.getcwd(), os.path.abspath("spec")]
sys.path[:0] = here
os.environ["PYTHONPATH"] = os.pathsep.join(here)
os.environ["MUTANT_UNDER_TEST"] = mutant
code = pytest.main(["-x", *arguments])
if code in (2, 4):  # no tests are found: because of the mutant, or on this machine in any case?
    os.environ["MUTANT_UNDER_TEST"] = ""
    collect = [sys.executable, "-m", "pytest", "--collect-only", *arguments]
    code = 1 if subprocess.call(collect) == 0 else code
sys.exit(100 + code)
"""
SLACK_S = 20.0
"""For a process to begin, of the processor's time; and a mutant may take ten times what its tests
took. Five times that by the clock: others may use the machine, too."""
STATUS = {100: "survived", 101: "killed", 103: "killed", None: "timeout", -SIGXCPU: "timeout"}


def run(place: Path, chosen: Iterable[str], workers: Workers | None = None) -> list[Mutant]:
    """Return the outcomes of these mutants, by name; do not run known ones again.

    Each is shown to the tests that call its function, the quickest first, in a process and a folder
    of its own. Raises RuntimeError where the tests cannot be run.
    """
    stats = json.loads((place / STATS).read_text(encoding="utf-8"))
    by_function, seconds = stats["tests_by_mangled_function_name"], stats["duration_by_test"]
    tests = {
        name: sorted(by_function.get(name.partition("__mutmut_")[0], ()), key=seconds.get)
        for name in sorted(chosen)
    }
    file = place / "statuses.json"
    known = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    known |= {name: "no tests" for name in tests if not tests[name]}
    left = [name for name in tests if name not in known]
    archive = packed(place / "mutants") if left else b""

    def call(name: str) -> Call:
        limit_s = ceil(10 * sum(seconds[each] for each in tests[name]) + SLACK_S)
        arguments = ("-c", PROGRAM, name, str(limit_s), *ARGUMENTS, *tests[name])
        return exit_code, (archive, arguments, SAME, 5 * limit_s)

    def heard(number: int, code: int | None) -> None:
        name = left[number]
        if code not in STATUS and (code or 0) >= 0:
            raise RuntimeError(f"the tests of {name} cannot be run: exit code {code}")
        known[name] = STATUS.get(code, "ended its process")
        write_whole(file, json.dumps(known, indent=1).encode())
        click.echo(f"{known[name]}: {name}", err=True)

    for _ in in_order(workers, map(call, left), heard):
        pass
    return shown(place, {name: known[name] for name in tests})


def packed(folder: Path) -> bytes:
    """Return a folder as a ZIP file."""
    with TemporaryDirectory() as temporary:
        file = shutil.make_archive(f"{temporary}/packed", "zip", folder)
        return Path(file).read_bytes()


def _output(*command: str, cwd: Path | None = None) -> str:
    return subprocess.run(command, check=True, text=True, cwd=cwd, stdout=subprocess.PIPE).stdout
