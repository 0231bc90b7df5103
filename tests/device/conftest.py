"""Tests of the device plane need torch; kernels are run by Triton's interpreter, or on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING, cast

import pytest

if TYPE_CHECKING:
    from kvfast.device import Backend

collect_ignore_glob = [] if find_spec("torch") else ["test_*.py"]


@pytest.fixture(params=["torch", "triton"])
def backend(request: pytest.FixtureRequest) -> Backend:
    if request.param == "triton":
        pytest.importorskip("triton", reason="Triton is not installed")
    return cast("Backend", request.param)


@pytest.fixture
def one_thread() -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Silence warnings that say nothing about these tests.

    NaN is used on purpose; NumPy under the interpreter warns of it. On a GPU torch and Triton
    announce later changes once.
    """
    quiet = (
        "ignore::RuntimeWarning:triton.runtime.interpreter",
        "ignore:TRITON_DEFAULT_FP_FUSION is unset",
        "ignore:Synchronization debug mode is a prototype",
    )
    for item in items:
        if "tests/device/" in item.nodeid:
            for one in quiet:
                item.add_marker(pytest.mark.filterwarnings(one))
