"""vLLM's own tests on its manager, and on kvfast: a table, and which tests are lost.

    python -m examples.vllm.own_tests --environment VENV --sources VLLM [--version 0.33.0] --write

VENV is made if it does not exist: this checkout with its extra `vllm`, from PyPI. VLLM is a folder
of vLLM's sources, and is made from its source distribution if it does not exist. No device and no
weights are needed, and no network after that. `--write` puts the table into docs/vllm.md; with
`--only`, the rows of these files.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import venv
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = REPOSITORY / "docs" / "vllm.md"
MODELS = Path(__file__).with_name("made_up_models.json")
"""Files of tiny models, never run, under the names in vLLM's tests, which read sizes."""
MARKS = MappingProxyType({"0.24.0": "own tests", "0.33.0": "own tests of 0.33"})
"""The marks around each version's table in the page."""
NEEDS = ("pytest", "pytest-asyncio", "ray", "tblib", "transformers<5.13")
"""Of the tests; the last for 0.24.0, which cannot import its multimodal models with later ones."""
BUILD = ("setuptools>=77.0.3,<81", "setuptools-scm", "setuptools-rust", "cmake", "jinja2", "wheel")
"""Build requirements of vLLM's source distribution, from which pip reads its name; torch is
installed.
"""

CORE = "scheduler async_scheduler deferred_block_free prefix_caching kv_cache_utils"
UNIT = """remote_prefill_lifecycle remote_decode_lifecycle bidirectional_kv_transfer
kv_load_failure_recovery invalid_blocks_correctness error_propagation cache_pollution_prevention
scheduler_kv_connector_override decode_bench_connector mooncake_connector multi_connector
nixl_connector nixl_simple_cpu_offload"""
FILES = (
    *(f"core/test_{name}.py" for name in CORE.split()),
    "spec_decode/test_dynamic_sd.py",
    *(f"kv_connector/unit/test_{name}.py" for name in UNIT.split()),
    *("kv_connector/unit/offloading_connector", "core/test_priority_scheduler_random.py"),
)
"""Below tests/v1: those that make a scheduler or a manager on a CPU. The last is slow."""

REFUSED = Path(__file__).with_name("refused_tests.json")


@cache
def known_refusals() -> Mapping[str, tuple[str, str]]:
    """Return the tests that pass on vLLM's manager alone: what they do, and kvfast's error."""
    rows = json.loads(REFUSED.read_text(encoding="utf-8"))
    return {f"test_{name}": (row["does"], row["error"]) for row in rows for name in row["tests"]}


@dataclass(frozen=True)
class Outcome:
    """One file, once: the outcome of each test, its error, and how many managers were on kvfast."""

    tests: Mapping[str, str]
    errors: Mapping[str, str]
    on_kvfast: int
    elsewhere: Mapping[str, int]

    @property
    def counts(self) -> str:
        """Number of passed, failed and errors, in words."""
        found = Counter(self.tests.values())
        return " / ".join(str(found[each]) for each in ("passed", "failed", "error"))

    @property
    def passed(self) -> set[str]:
        """The tests that passed."""
        return {name for name, outcome in self.tests.items() if outcome == "passed"}


def make_environment(folder: Path, version: str) -> Path:
    """Make a virtual environment with vLLM and this checkout; returns its Python."""
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
        install = [str(python), "-m", "pip", "install", f"{REPOSITORY}[vllm]", f"vllm=={version}"]
        install += NEEDS if version == "0.24.0" else NEEDS[:-1]
        subprocess.run(install, check=True)
    return python.absolute()


def fetch_sources(folder: Path, python: Path, version: str) -> Path:
    """vLLM's source distribution, which has its tests."""
    if not folder.exists():
        pip = [str(python), "-m", "pip"]
        subprocess.run([*pip, "install", *BUILD], check=True)
        with TemporaryDirectory() as made:
            download = [*pip, "download", "--no-deps", "--no-build-isolation", "--no-binary=vllm"]
            # Without a device, it would call itself …+empty, which pip then refuses.
            told = {"VLLM_TARGET_DEVICE": "empty", "VLLM_VERSION_OVERRIDE": version}
            environment = {**os.environ, **told}
            subprocess.run([*download, "-d", made, f"vllm=={version}"], check=True, env=environment)
            (archive,) = Path(made).iterdir()
            shutil.unpack_archive(archive, Path(made) / "out", filter="data")
            (unpacked,) = (Path(made) / "out").iterdir()
            shutil.move(unpacked, folder)
    return folder.absolute()


def run_file(python: Path, sources: Path, name: str, swapped: bool, limit_s: int) -> Outcome:
    """Run one file of vLLM's tests in a separate process."""
    with TemporaryDirectory() as made:
        folder, models, report = Path(made), Path(made) / "models", Path(made) / "outcomes.json"
        for model, files in json.loads(MODELS.read_text("utf-8")).items():
            (models / model).mkdir(parents=True)
            for file, content in files.items():
                (models / model / file).write_text(json.dumps(content), "utf-8")
        # Neither vLLM nor kvfast is to be found beside its sources.
        for name_there, at in (("tests", sources), ("examples", REPOSITORY)):
            (folder / name_there).symlink_to(at / name_there)
        environment = {
            **os.environ,
            "PYTHONPATH": str(folder),
            "PYTHONHASHSEED": "0",
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            "KVFAST_SWAP": str(int(swapped)),
            "KVFAST_OUTCOMES": str(report),
        }
        command = [
            *(str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider"),
            *("-p", "examples.vllm.swapped_tests", "--rootdir", str(folder)),
            # The upper conftest is for tests that run models.
            *("--confcutdir", str(folder / "tests" / "v1"), str(folder / "tests" / "v1" / name)),
        ]
        try:
            ran = subprocess.run(
                command,
                cwd=models,
                env=environment,
                capture_output=True,
                text=True,
                timeout=limit_s,
            )
        except subprocess.TimeoutExpired as error:
            raise SystemExit(f"{name}: not done after {limit_s} s; see --limit-s") from error
        if not report.exists():
            raise SystemExit(f"{name}: {ran.stdout[-2000:]}{ran.stderr[-2000:]}")
        found = json.loads(report.read_text())
    return Outcome(found["tests"], found["errors"], found["swaps"].pop("kvfast", 0), found["swaps"])


def wrong(stock: Outcome, ours: Outcome) -> list[str]:
    """Describe what must not be: tests lost, reasons without a test, and no manager on kvfast."""
    found = [f"LOST {each}: {ours.errors.get(each)}" for each in lost(stock, ours)[0]]
    found += [
        f"NOT LOST, though KNOWN: {each}" for each in sorted(known_refusals().keys() & ours.passed)
    ]
    return found if ours.on_kvfast else [*found, "NOTHING ON KVFAST"]


def lost(stock: Outcome, ours: Outcome) -> tuple[list[str], list[str]]:
    """Tests that pass in stock alone: those without a reason, and those that fail by theirs."""
    gone = sorted(stock.passed - ours.passed)
    known = [
        each for each in gone if each in known_refusals() and is_refused(each, ours.errors[each])
    ]
    return [each for each in gone if each not in known], known


def is_refused(test: str, error: str) -> bool:
    """Return whether this is the error by which kvfast refuses what the test does."""
    return re.search(known_refusals()[test][1], error) is not None


def row(name: str, stock: Outcome, ours: Outcome) -> str:
    """Return the line of one file."""
    without, known = lost(stock, ours)
    stay = sum(ours.elsewhere.values())
    return (
        f"| `{name}` | {stock.counts} | {ours.counts} | {ours.on_kvfast} | {stay} "
        f"| {len(without)} | {len(known)} |"
    )


HEAD = (
    "| vLLM's tests, below v1 | vLLM's: passed / failed / errors | kvfast: the same "
    "| managers on kvfast | that stay | lost | refused |",
    "|---|---|---|---|---|---|---|",
)


def table(results: Mapping[str, tuple[Outcome, Outcome]]) -> str:
    """Return the table of all files, then why managers stay, and why tests are refused."""
    lines = [*HEAD, *(row(name, *pair) for name, pair in results.items())]
    stay: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    for stock, ours in results.values():
        stay.update(ours.elsewhere)
        refused.update(known_refusals()[each][0] for each in lost(stock, ours)[1])
    for title, counted in (("a manager stays with vLLM's", stay), ("a test is refused", refused)):
        if counted:
            lines += ["", f"| why {title} | times |", "|---|---|"]
            lines += [f"| {why} | {count} |" for why, count in sorted(counted.items())]
    return "\n".join(lines)


def write_table(results: Mapping[str, tuple[Outcome, Outcome]], version: str) -> None:
    """Write the table between the marks of the page, and keep the rows of files that did not run.

    The reasons below also stay then: SystemExit if a file that ran has any.
    """
    page = PAGE.read_text()
    begin, end = (f"<!-- {word} {MARKS[version]} -->" for word in ("begin", "end"))
    before, rest = page.split(begin)
    old, after = rest.split(end)
    text = table(results).splitlines()
    if set(results) < set(FILES) and "| `" in old:
        lines = old.strip().splitlines()
        there = {line.split("`")[1]: line for line in lines if line.startswith("| `")}
        if len(text) > len(HEAD) + len(results):
            raise SystemExit(f"{', '.join(results)}: has reasons, so that all files have to run")
        rows = there | {name: row(name, *pair) for name, pair in results.items()}
        reasons = lines[len(HEAD) + len(there) :]
        text = [*HEAD, *(rows[name] for name in FILES if name in rows), *reasons]
    PAGE.write_text("\n".join((f"{before}{begin}", "", *text, "", f"{end}{after}")))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the files; 1 if one has a test that is lost without a reason, or no manager on kvfast."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--environment", type=Path, required=True, help="a virtual environment")
    parser.add_argument("--sources", type=Path, required=True, help="a folder of vLLM's sources")
    parser.add_argument("--version", default="0.24.0", choices=tuple(MARKS), help="of vLLM")
    parser.add_argument("--only", default="", help="files whose names contain this")
    parser.add_argument("--limit-s", type=int, default=1800, help="for one file, seconds")
    parser.add_argument("--keep", type=Path, help="outcomes; files that are in it are not run")
    parser.add_argument("--write", action="store_true", help="the table into docs/vllm.md")
    asked = parser.parse_args(arguments)
    python = make_environment(asked.environment, asked.version)
    sources = fetch_sources(asked.sources, python, asked.version)
    kept = json.loads(asked.keep.read_text()) if asked.keep and asked.keep.exists() else {}
    results, said = {}, []
    print(*HEAD, sep="\n", flush=True)
    for name in FILES:
        if asked.only not in name:
            continue
        if name not in kept:
            pair = [run_file(python, sources, name, on, asked.limit_s) for on in (False, True)]
            kept[name] = [asdict(each) for each in pair]
            if asked.keep:
                asked.keep.write_text(json.dumps(kept, indent=1))
        stock, ours = (Outcome(**each) for each in kept[name])
        results[name] = (stock, ours)
        said += wrong(stock, ours)
        print(row(name, stock, ours), *wrong(stock, ours), sep="\n", flush=True)
    swapped = sum(ours.on_kvfast for _, ours in results.values())
    if asked.write:
        write_table(results, asked.version)
    num_lost = sum(each.startswith("LOST") for each in said)
    print(f"{swapped} managers on kvfast, {num_lost} tests lost")
    return 1 if said or not results else 0


if __name__ == "__main__":
    sys.exit(main())
