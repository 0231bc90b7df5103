"""vLLM's own tests on its manager, and on kvfast: a table, and which tests are lost.

    python -m venv VENV
    VENV/bin/pip install '.[vllm]' vllm==0.33.0 pytest pytest-asyncio ray tblib
    git clone --depth 1 --branch v0.33.0 https://github.com/vllm-project/vllm VLLM
    python -m examples.vllm.own_tests --environment VENV --sources VLLM --keep kept.json

The version is that of the environment, or of another one's Python part that is first on PYTHONPATH.
With 0.24.0 also `transformers<5.13`: it cannot import its multimodal models with later ones. No
device and no weights are needed, and no network after that. `--keep`: outcomes by version, to which
those of this run are added; `--write` puts all of them into docs/vllm.md, in a column each.

This file is also the plug-in of pytest (`-p examples.vllm.own_tests`) that runs them without a
device. With KVFAST_SWAP=1 tests find kvfast's schedulers and manager under the names of vLLM's.
Two fixtures stand in for those of vLLM's upper conftest, which needs models and NCCL.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = REPOSITORY / "docs" / "vllm.md"
MODELS = Path(__file__).with_name("made_up_models.json")
"""Files of tiny models, never run, under the names in vLLM's tests, which read sizes."""
BELOW = "tests/v1/"
CORE = "scheduler async_scheduler deferred_block_free prefix_caching kv_cache_utils"
UNIT = """remote_prefill_lifecycle remote_decode_lifecycle bidirectional_kv_transfer
kv_load_failure_recovery invalid_blocks_correctness error_propagation cache_pollution_prevention
scheduler_kv_connector_override decode_bench_connector multi_connector nixl_connector
nixl_simple_cpu_offload"""
FILES = (
    *(f"core/test_{name}.py" for name in CORE.split()),
    "spec_decode/test_dynamic_sd.py",
    *(f"kv_connector/unit/test_{name}.py" for name in UNIT.split()),
    "kv_connector/unit/offloading_connector",
)
"""Below tests/v1: those that make a scheduler or a manager on a CPU."""
SLOW = "core/test_priority_scheduler_random.py"
"""Runs only if asked for."""

REFUSED = Path(__file__).with_name("refused_tests.json")


@cache
def known_refusals() -> Mapping[str, tuple[str, str]]:
    """Return the tests that pass on vLLM's manager alone: what they do, and kvfast's error."""
    rows = json.loads(REFUSED.read_text(encoding="utf-8"))
    return {f"test_{name}": (row["does"], row["error"]) for row in rows for name in row["tests"]}


@dataclass(frozen=True)
class Outcome:
    """The outcome of each test, its error, and what became of the managers that tests made.

    Tests have their names below tests/v1. `managers`: pairs of a test and why its manager stayed
    with vLLM's; "": it was on kvfast.
    """

    tests: Mapping[str, str]
    errors: Mapping[str, str]
    managers: list[tuple[str, str]]

    def passed(self, file: str = "") -> set[str]:
        found = self.tests.items()
        return {name for name, how in found if how == "passed" and name.startswith(file)}


def run(python: Path, sources: Path, only: str, swapped: bool) -> dict[str, Any]:
    """Run the files of vLLM's tests: the version, and the members of an `Outcome`."""
    with TemporaryDirectory() as made:
        folder, models = Path(made), Path(made) / "models"
        for model, files in json.loads(MODELS.read_text("utf-8")).items():
            (models / model).mkdir(parents=True)
            for file, content in files.items():
                (models / model / file).write_text(json.dumps(content), "utf-8")
        # Neither vLLM nor kvfast is to be found beside its sources.
        for name_there, at in (("tests", sources), ("examples", REPOSITORY)):
            (folder / name_there).symlink_to(at / name_there)
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]),
            "PYTHONHASHSEED": "0",
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            "KVFAST_SWAP": str(int(swapped)),
            "KVFAST_OUTCOMES": str(folder / "outcomes.json"),
        }
        names = [name for name in (*FILES, SLOW) if only in name] if only else FILES
        files = [name for name in names if (folder / BELOW / name).exists()]
        command = [
            *(str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider"),
            *("-p", "examples.vllm.own_tests", "--rootdir", str(folder)),
            # The upper conftest is for tests that run models.
            *("--confcutdir", str(folder / BELOW), *(str(folder / BELOW / name) for name in files)),
        ]
        told = subprocess.run(command, cwd=models, env=environment, capture_output=True, text=True)
        report = folder / "outcomes.json"
        found: dict[str, Any] = json.loads(report.read_text()) if report.exists() else {"tests": ()}
        for file in files:
            if not any(name.startswith(file) for name in found["tests"]):
                raise SystemExit(f"{file} did not run\n{told.stdout[-4000:]}{told.stderr[-4000:]}")
    return found


@dataclass(frozen=True)
class Version:
    """The tests of one version of vLLM, on its manager and on kvfast."""

    stock: Outcome
    ours: Outcome

    def lost(self) -> dict[str, str]:
        """Return the tests that pass in stock alone, each with its known reason, or ""."""
        gone = sorted(self.stock.passed() - self.ours.passed())
        return {name: refusal(name, self.ours.errors.get(name, "")) for name in gone}

    def wrong(self) -> list[str]:
        """Describe what must not be: tests lost, files without a manager on kvfast."""
        gone = self.lost().items()
        found = [f"LOST {name}: {self.ours.errors.get(name)}" for name, why in gone if not why]
        on_kvfast = {name for name, stays in self.ours.managers if not stays}
        files = [file for file in (*FILES, SLOW) if self.stock.passed(file)]
        idle = [file for file in files if not any(name.startswith(file) for name in on_kvfast)]
        return [*found, *(f"NOTHING ON KVFAST in {file}" for file in idle)]

    def cell(self, file: str = "") -> str:
        """Return how many of the tests that pass in stock also do on kvfast."""
        of = self.stock.passed(file)
        both = len(of & self.ours.passed())
        return f"{both:,}" if both == len(of) else f"{both:,} of {len(of):,}"


def refusal(test: str, error: str) -> str:
    """Return what the test does if this is the error by which kvfast refuses that; else ""."""
    does, known = known_refusals().get(test.rpartition("/")[2], ("", ""))
    return does if known and re.search(known, error) else ""


def table(versions: Mapping[str, Version]) -> Iterator[str]:
    """Yield the table of all files, then why tests are refused, and why managers stay."""
    names = " | ".join(versions)
    yield f"| vLLM's tests, below v1 | {names} |"
    yield f"|---|{'---:|' * len(versions)}"
    ran = [name for one in versions.values() for name in one.stock.tests]
    for file in (*FILES, SLOW):
        if any(name.startswith(file) for name in ran):
            yield _row(f"`{file}`", [one.cell(file) for one in versions.values()])
    yield _row("**all**", [f"**{one.cell()}**" for one in versions.values()])
    gone = [Counter(one.lost().values()) for one in versions.values()]
    stay = [Counter(why for _, why in one.ours.managers) for one in versions.values()]
    yield _row("lost", [each[""] for each in gone])
    yield _row("managers on kvfast", [each[""] for each in stay])
    for title, of in (("a test is refused that", gone), ("a manager stays with vLLM's, as", stay)):
        yield from ("", f"| {title} | {names} |", f"|---|{'---:|' * len(versions)}")
        for reason in sorted({reason for each in of for reason in each if reason}):
            yield _row(reason, [each[reason] for each in of])


def _row(title: str, cells: list[Any]) -> str:
    return f"| {title} | {' | '.join(map(str, cells))} |"


def main() -> int:
    """Run the files; 1 if a test is lost without a reason, or a file has no manager on kvfast."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--environment", type=Path, help="a virtual environment")
    parser.add_argument("--sources", type=Path, help="a folder of vLLM's sources")
    parser.add_argument("--only", default="", help="files whose names contain this")
    parser.add_argument("--keep", type=Path, help="outcomes by version, of runs before and of this")
    parser.add_argument("--write", action="store_true", help="the table into docs/vllm.md")
    asked = parser.parse_args()
    kept = json.loads(asked.keep.read_text()) if asked.keep and asked.keep.exists() else {}
    if asked.environment is not None:
        where = (asked.environment / "bin" / "python").absolute(), asked.sources.absolute()
        for side in ("stock", "kvfast"):
            found = run(*where, asked.only, side == "kvfast")
            before = kept.setdefault(found.pop("version"), {}).setdefault(side, found)
            before["tests"] |= found["tests"]
            before["errors"] |= found["errors"]
            others = [each for each in before["managers"] if each[0] not in found["tests"]]
            before["managers"] = others + found["managers"]
            if asked.keep:
                asked.keep.write_text(json.dumps(kept, indent=1))
    versions = {
        name: Version(Outcome(**of["stock"]), Outcome(**of["kvfast"]))
        for name, of in sorted(kept.items())
        if len(of) == 2
    }
    print(*table(versions), sep="\n")
    if asked.write:
        from bench.tables import put  # the plug-in runs where it cannot be imported

        put(["", *table(versions), ""], "own tests", PAGE)
    said = [f"{name}: {each}" for name, one in versions.items() for each in one.wrong()]
    print(*said, sep="\n")
    return 1 if said or not versions else 0


# The plug-in.

OUTCOMES: dict[str, str] = {}
ERRORS: dict[str, str] = {}
MANAGERS: list[tuple[str, str]] = []


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    """Before any test is imported, and before a conftest imports vLLM's scheduler."""
    from vllm import platforms
    from vllm.platforms.cpu import CpuPlatform

    platforms._current_platform = CpuPlatform()
    if os.environ.get("KVFAST_SWAP") == "1":
        swap()


def note(stays: str) -> None:
    """Note that the test that runs has made a manager: why it stays with vLLM's, "" on kvfast."""
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" (")[0]
    MANAGERS.append((test.removeprefix(BELOW), stays))


def swap() -> None:
    """Put kvfast's classes under vLLM's names, where tests import them from."""
    from vllm.v1.core import kv_cache_manager
    from vllm.v1.core.sched import async_scheduler, scheduler

    from kvfast.engines.vllm import schedulers
    from kvfast.engines.vllm.fit import kvfast_manager
    from kvspec.errors import ConfigError, UnsupportedError

    class Counted(schedulers.OnKvfast):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            note(self.kvfast_reason or "")

    stock = kv_cache_manager.KVCacheManager

    def manager(*args: Any, **options: Any) -> Any:
        made = stock(*args, **options)
        try:
            swapped = kvfast_manager(made, given(options))
        except (UnsupportedError, ConfigError) as error:
            note(str(error))
            return made
        note("")
        return swapped

    on_sync = type("KvfastScheduler", (Counted, scheduler.Scheduler), {})
    on_async = type("KvfastAsyncScheduler", (Counted, async_scheduler.AsyncScheduler), {})
    scheduler.Scheduler = on_sync
    async_scheduler.AsyncScheduler = on_async
    kv_cache_manager.KVCacheManager = manager


def given(options: dict[str, Any]) -> Any:
    """Return the manager's arguments, from those that a test makes it with."""
    from vllm import envs

    from kvfast.engines.vllm.versions import is_since, policy_of, release

    kept = ("max_num_batched_tokens", "dcp_world_size", "pcp_world_size", "watermark")
    told = {name: options[name] for name in kept if name in options}
    told["int_event_hashes"] = bool(envs.VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES)
    if is_since(26):
        told["max_num_batched_tokens"] = options.get("max_in_flight_tokens")
        told["hash_lookahead_tokens"] = int(options.get("num_hash_lookahead_tokens", 0))
        told["policy"] = policy_of(
            release(), enable_caching=bool(options.get("enable_caching", True))
        )
    return told


@pytest.fixture
def default_vllm_config() -> Iterator[Any]:
    from vllm.config import VllmConfig, set_current_vllm_config

    config = VllmConfig()
    with set_current_vllm_config(config):
        yield config


@pytest.fixture
def dist_init(tmp_path: Path) -> Iterator[None]:
    from vllm import distributed
    from vllm.config import VllmConfig, set_current_vllm_config

    with set_current_vllm_config(VllmConfig()):
        at = f"file://{tmp_path / 'ranks'}"
        distributed.init_distributed_environment(1, 0, at, 0, backend="gloo")
        distributed.initialize_model_parallel(1, 1)
        yield
    distributed.cleanup_dist_env_and_memory()


def pytest_runtest_logreport(report: Any) -> None:
    """Keep the outcome of a test; an error in its setup or teardown counts."""
    name = report.nodeid.removeprefix(BELOW)
    if report.when == "call":
        OUTCOMES[name] = report.outcome
    elif report.outcome != "passed":
        OUTCOMES[name] = "error" if report.failed else report.outcome
    if report.failed:
        crash = getattr(report.longrepr, "reprcrash", None)
        ERRORS.setdefault(name, str(report.longrepr if crash is None else crash.message)[:500])


def pytest_collectreport(report: Any) -> None:
    """Keep the error of a file that cannot be imported."""
    if report.failed:
        OUTCOMES[report.nodeid.removeprefix(BELOW)] = "error"


def pytest_sessionfinish() -> None:
    if path := os.environ.get("KVFAST_OUTCOMES"):
        from vllm.version import __version__

        told = {"tests": OUTCOMES, "errors": ERRORS, "managers": MANAGERS, "version": __version__}
        Path(path).write_text(json.dumps(told))


if __name__ == "__main__":
    sys.exit(main())
