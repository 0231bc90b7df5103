"""Without torch kvfast works, and says what is missing only when asked for it."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

import kvfast
import kvfast.device
from kvfast.device import MissingDependencyError
from kvspec.errors import KVSpecError


@pytest.mark.skipif(find_spec("torch") is not None, reason="torch is installed")
@pytest.mark.parametrize("name", sorted(kvfast.device._FOLDERS))
def test_what_needs_torch_says_so(name: str) -> None:
    with pytest.raises(MissingDependencyError, match=r"pip install 'kvspec\[torch\]'") as caught:
        getattr(kvfast.device, name)
    assert isinstance(caught.value, KVSpecError)
    assert isinstance(caught.value, ImportError)
    assert caught.value.package == "torch"
    assert kvfast.implementation().capabilities.name == "kvfast"


def test_every_public_name_is_there_or_needs_torch() -> None:
    there = set(vars(kvfast.device))
    needing = kvfast.device._FOLDERS.keys()
    assert set(kvfast.device.__all__) - there <= needing <= set(kvfast.device.__all__)
    assert {"Backend", "DeviceMemoryError", "Layout", "MissingDependencyError"} <= there


def test_other_names_are_no_part_of_it() -> None:
    with pytest.raises(AttributeError, match="nothing"):
        kvfast.device.nothing  # noqa: B018 (asking is what is tested)
