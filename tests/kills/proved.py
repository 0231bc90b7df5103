"""Proofs about code that reads a changed module, run on the changed one."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import redirect_stdout
from functools import cache
from types import MappingProxyType

import grimp

from kvcheck.mistakes import Mistake
from kvcheck.mistakes.twin import changed_package, sources
from tests.source import ROOT

TWINS = ("kvref", "kvfast")
ENUMERATES = "proofs.code.liveness"
"""Drives whole managers, as other layers do, and takes minutes."""


@cache
def read_by() -> Mapping[str, frozenset[str]]:
    """The proofs by z3, and the modules of the twins that each has imported."""
    graph = grimp.build_graph("proofs", *TWINS, cache_dir=None)
    names = (f"proofs.code.{path.stem}" for path in sorted((ROOT / "proofs/code").glob("[!_]*.py")))
    return MappingProxyType(
        {name: frozenset(graph.find_upstream_modules(name)) for name in names if name != ENUMERATES}
    )


def proofs(mistake: Mistake) -> str | None:
    """The first that does not answer as it should."""
    texts = sources(mistake.make.args[1])  # type: ignore[attr-defined]  # a partial of `twin`
    return next((name for name in _about(texts) if _fails(name, texts)), None)


def _about(texts: Mapping[str, str]) -> Iterator[str]:
    return (name for name, modules in read_by().items() if modules & set(texts))


def _fails(name: str, texts: Mapping[str, str]) -> bool:
    """Whether the proof ends with another code than 0, or in an error."""
    with changed_package(texts), open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
        for loaded in [n for n in sys.modules if n.partition(".")[0] in ("proofs", *TWINS)]:
            del sys.modules[loaded]  # this process is for one mistake alone
        try:
            code: int = importlib.import_module(name).main()
        except Exception:
            return True
    return code != 0
