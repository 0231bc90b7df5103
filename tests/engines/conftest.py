"""vLLM's engine with a made-up model, where vLLM is installed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from kvcheck.adapters.vllm import VLLMUnavailableError
from kvcheck.adapters.vllm.library import load_library
from kvfast.engines.vllm import UnsupportedEngineError
from kvfast.engines.vllm.versions import release


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let vLLM and what it imports use what others deprecate."""
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.filterwarnings("ignore::DeprecationWarning"))


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


@pytest.fixture(scope="module")
def lockstep(engine: Any) -> Any:
    """Module `examples.vllm.lockstep`."""
    from examples.vllm import lockstep

    return lockstep


@pytest.fixture(scope="module")
def model(lockstep: Any) -> Any:
    return lockstep.model_folder()
