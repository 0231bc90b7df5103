"""vLLM's own tests on its manager, and on kvfast: a table, and which tests are lost.

    python -m venv VENV
    VENV/bin/pip install '.[vllm]' vllm==0.33.0 pytest pytest-asyncio ray tblib
    git clone --depth 1 --branch v0.33.0 https://github.com/vllm-project/vllm VLLM
    python -m examples.vllm.own_tests --environment VENV --sources VLLM --version 0.33.0 --write

With 0.24.0 also `transformers<5.13`: it cannot import its multimodal models with later ones. No
device and no weights are needed, and no network after that. `--write` puts the table into
docs/vllm.md: of the files that ran, and of those in the file of `--keep`.

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
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = REPOSITORY / "docs" / "vllm.md"
MODELS = Path(__file__).with_name("made_up_models.json")
"""Files of tiny models, never run, under the names in vLLM's tests, which read sizes."""
MARKS = MappingProxyType({"0.24.0": "own tests", "0.33.0": "own tests of 0.33"})
"""The marks around each version's table in the page."""
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
        return {name for name, outcome in self.tests.items() if outcome == "passed"}


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
            *("-p", "examples.vllm.own_tests", "--rootdir", str(folder)),
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


def table(results: Mapping[str, tuple[Outcome, Outcome]]) -> list[str]:
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
    return lines


def main() -> int:
    """Run the files; 1 if one has a test that is lost without a reason, or no manager on kvfast."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--environment", type=Path, required=True, help="a virtual environment")
    parser.add_argument("--sources", type=Path, required=True, help="a folder of vLLM's sources")
    parser.add_argument("--version", default="0.24.0", choices=tuple(MARKS), help="of vLLM")
    parser.add_argument("--only", default="", help="files whose names contain this")
    parser.add_argument("--limit-s", type=int, default=1800, help="for one file, seconds")
    parser.add_argument("--keep", type=Path, help="outcomes; what is in it is not run")
    parser.add_argument("--write", action="store_true", help="the table into docs/vllm.md")
    asked = parser.parse_args()
    python = (asked.environment / "bin" / "python").absolute()
    sources = asked.sources.absolute()
    kept = json.loads(asked.keep.read_text()) if asked.keep and asked.keep.exists() else {}
    results, said = {}, []
    print(*HEAD, sep="\n", flush=True)
    for name in FILES:
        if asked.only not in name and name not in kept:
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
        from bench.tables import put  # the plug-in runs where it cannot be imported

        put(["", *table(results), ""], MARKS[asked.version], PAGE)
    num_lost = sum(each.startswith("LOST") for each in said)
    print(f"{swapped} managers on kvfast, {num_lost} tests lost")
    return 1 if said or not results else 0


# The plug-in.

SWAPS: Counter[str] = Counter()
OUTCOMES: dict[str, str] = {}
ERRORS: dict[str, str] = {}


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    """Before any test is imported, and before a conftest imports vLLM's scheduler."""
    from vllm import platforms
    from vllm.platforms.cpu import CpuPlatform

    platforms._current_platform = CpuPlatform()
    if os.environ.get("KVFAST_SWAP") == "1":
        swap()


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
            SWAPS[self.kvfast_reason or "kvfast"] += 1

    stock = kv_cache_manager.KVCacheManager

    def manager(*args: Any, **options: Any) -> Any:
        made = stock(*args, **options)
        try:
            swapped = kvfast_manager(made, given(options))
        except (UnsupportedError, ConfigError) as error:
            SWAPS[str(error)] += 1
            return made
        SWAPS["kvfast"] += 1
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
    """Set a configuration for code that reads the current one."""
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
    name = report.nodeid.rpartition("/")[2]
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
        OUTCOMES[report.nodeid] = "error"


def pytest_sessionfinish() -> None:
    if path := os.environ.get("KVFAST_OUTCOMES"):
        told = {"tests": OUTCOMES, "errors": ERRORS, "swaps": SWAPS}
        Path(path).write_text(json.dumps(told))


if __name__ == "__main__":
    sys.exit(main())
