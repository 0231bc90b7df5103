"""vLLM's engine with a made-up model, where vLLM is installed."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kvcheck.adapters.vllm import VLLMUnavailableError
from kvcheck.adapters.vllm.library import load_library
from kvfast.engines.vllm import UnsupportedEngineError
from kvfast.engines.vllm.versions import is_since, release


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let vLLM and what it imports use what others deprecate."""
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.filterwarnings("ignore::DeprecationWarning"))


@pytest.fixture(autouse=True)
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a shadow's records."""
    monkeypatch.setenv("KVSPEC_MONITOR_DIR", str(tmp_path))
    return tmp_path


@pytest.fixture(scope="module")
def engine() -> Any:
    """`examples.vllm.engine`, prepared; skipped without vLLM."""
    try:
        release()
    except UnsupportedEngineError as error:
        pytest.skip(str(error))
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    from examples.vllm import engine

    engine.prepare()
    return engine


@pytest.fixture
def followed() -> None:
    """Skip beside versions that a shadow does not follow, such as 0.25."""
    try:
        load_library()
    except VLLMUnavailableError as error:
        pytest.skip(str(error))


@pytest.fixture
def later() -> None:
    """Skip beside versions before 0.33."""
    if not is_since(33):
        pytest.skip("for vLLM 0.33")


@pytest.fixture(scope="module")
def lockstep(engine: Any) -> Any:
    from examples.vllm import lockstep

    return lockstep


@pytest.fixture(scope="module")
def model(engine: Any) -> Any:
    return engine.model_folder()


@pytest.fixture(scope="module")
def setups(lockstep: Any) -> Any:
    return lockstep.setups()


@pytest.fixture
def pair(lockstep: Any, model: str, setups: Any) -> Any:
    """Return a function that makes a lock step of a setup, or of the one of a name."""

    def made(setup: Any, seed: int = 3, *, shadow: bool = False) -> Any:
        found = setups[setup] if isinstance(setup, str) else setup
        return lockstep.Lockstep(found, model, seed, shadow=shadow)

    return made


@pytest.fixture
def on_kvfast(engine: Any, model: str, setups: Any) -> Any:
    """Return a function that makes kvfast's scheduler of a setup."""
    from kvfast.engines.vllm.schedulers import KvfastScheduler

    def made(setup: Any = setups["full"]) -> Any:
        return engine.make_scheduler(KvfastScheduler, setup, engine.vllm_config(setup, model))

    return made


@pytest.fixture
def shadowed(pair: Any) -> Any:
    """Return a function that makes one of vLLM's scheduler under a shadow."""
    return partial(pair, shadow=True)
