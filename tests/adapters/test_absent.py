"""A project that is not installed is a typed error that says where to get it."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from kvcheck.adapters import dynamo, lmcache, minisglang, nanovllm, vllm
from kvcheck.adapters.sglang import trees
from kvcheck.discovery import find_implementation
from kvspec.errors import KVSpecError, UnknownImplementationError

HINTS = {
    "vllm": f"pip install vllm=={vllm.SUPPORTED_VERSIONS[-1]}",
    "sglang": r"pip install sglang==0\.5\.23",
    "nanovllm": "GeeeekExplorer/nano-vllm",
    "minisglang": "PYTHONPATH",
    "lmcache": r"pip install lmcache==0\.5\.6",
    "dynamo": r"pip install ai-dynamo-runtime==1\.6\.1",
}


@pytest.fixture(autouse=True)
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is installed or imported of the projects, it cannot be imported now."""
    for name in [name for name in sys.modules if name.split(".")[0] in {*HINTS, "minisgl"}]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("vllm", "sglang"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setattr(sys, "path_importer_cache", {})


@pytest.mark.parametrize(
    "factory",
    [
        vllm.implementation,
        trees.rust_core,
        trees.plain_radix_cache,
        nanovllm.implementation,
        dynamo.tree,
        minisglang.trees,
        lmcache.l1,
    ],
)
def test_it_is_named_with_the_line_that_installs_it(factory: Callable[[], object]) -> None:
    """Discovery shows the same line."""
    hint = HINTS[factory.__module__.split(".")[2]]
    with pytest.raises(KVSpecError, match=hint) as caught:
        factory()
    assert isinstance(caught.value, ImportError)
    with pytest.raises(UnknownImplementationError, match=hint):
        find_implementation(f"{factory.__module__}:{factory.__name__}")
