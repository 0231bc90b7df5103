"""A pytest plug-in for vLLM's own tests: on a CPU without a device, stock or over kvfast.

    KVFAST_SWAP=1 pytest -p examples.vllm.swapped_tests …/tests/v1/core/test_scheduler.py

With KVFAST_SWAP=1 tests find kvfast's schedulers and manager under the names of vLLM's. The last
line counts how many were asked for and how many run on kvfast, and names why others do not.

Two fixtures stand in for those of vLLM's upper conftest, which needs models and NCCL.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

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
    from kvfast.engines.vllm.later import kvfast_manager
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

    from kvfast.engines.vllm import fit
    from kvfast.engines.vllm.versions import is_since, policy_of, release

    told = {name: options[name] for name in vars(fit.Given()) if name in options}
    told["int_event_hashes"] = bool(envs.VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES)
    if is_since(26):
        told["max_num_batched_tokens"] = options.get("max_in_flight_tokens")
        told["hash_lookahead_tokens"] = int(options.get("num_hash_lookahead_tokens", 0))
        told["policy"] = policy_of(
            release(), enable_caching=bool(options.get("enable_caching", True))
        )
    return fit.Given(**told)


@pytest.fixture
def default_vllm_config() -> Iterator[Any]:
    """Set a configuration for code that reads the current one."""
    from vllm.config import VllmConfig, set_current_vllm_config

    config = VllmConfig()
    with set_current_vllm_config(config):
        yield config


@pytest.fixture
def dist_init(tmp_path: Path) -> Iterator[None]:
    """Initialise one process, over gloo."""
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
    """Write them to the requested file."""
    if path := os.environ.get("KVFAST_OUTCOMES"):
        told = {"tests": OUTCOMES, "errors": ERRORS, "swaps": SWAPS}
        Path(path).write_text(json.dumps(told))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Show how many run on kvfast."""
    total = sum(SWAPS.values())
    terminalreporter.write_line(f"kvfast: {SWAPS['kvfast']} of {total} managers")
    for reason, count in SWAPS.items():
        if reason != "kvfast":
            terminalreporter.write_line(f"  {count} stay with vLLM's: {reason}")
