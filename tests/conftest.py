"""Hypothesis profiles, the --deep option, the shared data folder, and the folder of the repository.

Profiles, chosen with --hypothesis-profile:
- `ci` (default): the same examples on every run, so that a red run is red again.
- `random`: new examples on every run. Each Hypothesis test is run again and again until its time
  is up (--seconds-per-test, default 10); a failure prints the blob that reproduces it.
- `deep`: many more and longer examples; what --deep chooses.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, is_hypothesis_test, settings

from tests.browser import PROGRAMS, find_browser

LEFT_FOR_DEEP = pytest.StashKey[int]()
ROOT = Path(__file__).parents[1]

# Triton reads this once, when it is imported. KVSPEC_TEST_DEVICE=cuda runs its kernels on a GPU.
if os.environ.get("KVSPEC_TEST_DEVICE", "cpu") == "cpu":
    os.environ.setdefault("TRITON_INTERPRET", "1")

# No deadlines: on a busy machine they fail tests that are right.
settings.register_profile("ci", derandomize=True, deadline=None, max_examples=100)
settings.register_profile("random", deadline=None, max_examples=100, print_blob=True)
settings.register_profile(
    "deep",
    deadline=None,
    max_examples=3000,
    stateful_step_count=150,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("ci")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("kvspec")
    group.addoption("--deep", action="store_true", help="also run the tests marked deep")
    group.addoption(
        "--seconds-per-test",
        type=float,
        default=10.0,
        help="with --hypothesis-profile=random: how long to repeat each Hypothesis test",
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--deep") and not config.getoption("--hypothesis-profile"):
        settings.load_profile("deep")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Keep the half million objects of the collection away from the garbage collector.

    With them each `gc.collect()`, of which a benchmark makes hundreds, takes 70 ms.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--deep"):
        for item in items:
            item.add_marker(pytest.mark.timeout(0))
        return
    left = [item for item in items if item.get_closest_marker("deep")]
    items[:] = [item for item in items if not item.get_closest_marker("deep")]
    config.hook.pytest_deselected(items=left)
    config.stash[LEFT_FOR_DEEP] = len(left)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Report from a pytest-xdist worker how many tests it left out; all collect the same."""
    told: dict[str, object] | None = getattr(session.config, "workeroutput", None)
    if told is not None:
        told["left_for_deep"] = session.config.stash.get(LEFT_FOR_DEEP, 0)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    left = getattr(node, "workeroutput", {}).get("left_for_deep", 0)
    node.config.stash[LEFT_FOR_DEEP] = max(left, node.config.stash.get(LEFT_FOR_DEEP, 0))


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Write one line instead of a skip for each test."""
    if left := config.stash.get(LEFT_FOR_DEEP, 0):
        terminalreporter.write_line(f"{left} long tests left out; --deep runs them, too")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Repeat Hypothesis tests under the profile `random`; each repetition draws anew."""
    start = time.monotonic()
    yield
    if item.config.getoption("--hypothesis-profile") != "random":
        return
    if is_hypothesis_test(getattr(item, "obj", None)):
        while time.monotonic() - start < item.config.getoption("--seconds-per-test"):
            item.runtest()


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def shared() -> Path:
    """The shared data folder: KVSPEC_SHARED, or `../shared` beside the checkout.

    Skips without one. Tests that use it carry the marker `shared`.
    """
    folder = Path(os.environ.get("KVSPEC_SHARED") or ROOT.parent / "shared")
    if not folder.is_dir():
        pytest.skip("the shared data folder is not here (set KVSPEC_SHARED)")
    return folder


@pytest.fixture(scope="session")
def chromium() -> str:
    program = find_browser()
    if program is None:
        pytest.skip(f"no browser: none of {', '.join(PROGRAMS)} is on the path")
    return program
