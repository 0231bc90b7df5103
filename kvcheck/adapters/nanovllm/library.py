"""The two modules of nano-vllm that manage blocks, imported without the engine around them.

`import nanovllm` imports the whole engine, with torch, transformers and flash-attn. Its modules are
therefore imported under a package of that name whose `__init__` is not run, and the names are put
back afterwards.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from kvspec.errors import KVSpecError

PACKAGE = "nanovllm"


class NanoUnavailableError(KVSpecError, ImportError):
    """nano-vllm, or what its block manager needs, cannot be imported."""

    def __init__(self, problem: str) -> None:
        super().__init__(
            f"{problem}; this adapter needs a checkout of GeeeekExplorer/nano-vllm on the path"
            " (PYTHONPATH), with numpy and xxhash"
        )
        self.problem = problem


@dataclass(frozen=True)
class Library:
    """The modules that the adapter uses, untyped as they are to us."""

    version: str
    block_manager: Any
    sequence: Any


def load_library() -> Library:
    """Import nano-vllm's block manager. Raises NanoUnavailableError."""
    with without_init():
        try:
            manager = importlib.import_module(f"{PACKAGE}.engine.block_manager")
            sequence = importlib.import_module(f"{PACKAGE}.engine.sequence")
        except ImportError as error:
            raise NanoUnavailableError(f"nano-vllm cannot be imported ({error})") from error
    try:
        version = importlib.metadata.version("nano-vllm")
    except importlib.metadata.PackageNotFoundError:
        version = "unknown"  # a checkout says it in pyproject.toml only
    return Library(version, manager, sequence)


@contextmanager
def without_init() -> Iterator[None]:
    """Make the package importable without running its `__init__`."""
    before = {name: sys.modules[name] for name in sys.modules if name.split(".")[0] == PACKAGE}
    for name in before:
        del sys.modules[name]
    try:
        found = importlib.util.find_spec(PACKAGE)
        if found is None:
            raise NanoUnavailableError("nano-vllm is not on the path")
        sys.modules[PACKAGE] = importlib.util.module_from_spec(found)
        yield
    finally:
        for name in [name for name in sys.modules if name.split(".")[0] == PACKAGE]:
            del sys.modules[name]
        sys.modules.update(before)
