"""Proofs and contracts about code that a mistake changes, run on the changed code."""

from __future__ import annotations

import ast
import importlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from functools import cache
from itertools import chain
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any
from unittest.mock import patch

import grimp

from kvcheck.mistakes import Mistake
from kvcheck.mistakes.text import Change
from kvcheck.mistakes.twin import changed_package, sources
from tests.mistakes import in_both
from tests.source import ROOT

TWINS = ("kvref", "kvfast")
ENUMERATES = "proofs.code.liveness"
"""Drives whole managers, as other layers do, and takes minutes."""
CONTRACTS = "proofs.code.contracts"


class FoundError(Exception):
    """An answer differs from the one on the unchanged code."""


@cache
def read_by() -> Mapping[str, tuple[frozenset[str], frozenset[str]]]:
    """Return for each proof and contract the twins' modules that it imports, and its names.

    A function that a proof runs without naming it is not seen here.
    """
    graph = grimp.build_graph("proofs", *TWINS, cache_dir=None)
    paths = [*ROOT.glob("proofs/code/[!_]*.py"), *ROOT.glob("proofs/code/contracts/[!_]*.py")]
    found = {}
    for path in sorted(paths):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        if name != ENUMERATES:
            upstream = graph.find_upstream_modules(name)
            own = {name, *(each for each in upstream if each.startswith("proofs."))}
            direct = (graph.find_modules_directly_imported_by(each) for each in own)
            words = frozenset(word for each in own for word in _names_in(each))
            found[name] = frozenset(chain.from_iterable(direct)), words
    return MappingProxyType(found)


def _names_in(module: str) -> Iterator[str]:
    path = Path(ROOT / module.replace(".", "/"))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.ImportFrom):
            yield from (alias.name for alias in node.names)


def changes_of(mistake: Mistake) -> Sequence[Change]:
    """Return all changes; of a mistake in both twins those of both."""
    pair = next((pair for pair in in_both() if pair[0].id == mistake.id), (mistake,))
    return [each for one in pair for each in one.make.args[1]]  # type: ignore[attr-defined]  # a partial of `twin`


def about(mistake: Mistake, *, contracts: bool) -> list[str]:
    """Return the proofs, or the contracts, that name a function the mistake changes."""
    changes = changes_of(mistake)
    return [
        name
        for name, (modules, words) in read_by().items()
        if name.startswith(CONTRACTS) == contracts
        and any(each.module in modules and _is_named(each, words, contracts) for each in changes)
    ]


def concerns(mistake: Mistake, *, contracts: bool) -> bool:
    return bool(about(mistake, contracts=contracts))


def _is_named(change: Change, words: frozenset[str], with_class: bool) -> bool:
    """Check that the change is named; contracts drive whole objects, so also name the class."""
    owner, dot, _ = change.place.rpartition(".")
    return _last(change) in words and not (with_class and dot and owner not in words)


def _last(change: Change) -> str:
    """Return the name of what is changed; for a class, what its new lines define."""
    defined = [line.split("(")[0].split()[1] for line in change.new if line.startswith("def ")]
    return defined[0] if defined else change.place.rpartition(".")[2]


def proofs(mistake: Mistake) -> str | None:
    """Return the first statement that no longer holds."""
    return _first(mistake, _proved, contracts=False)


def contracts(mistake: Mistake) -> str | None:
    """Return the first contract that CrossHair refutes."""
    return _first(mistake, _confirmed, contracts=True)


def _first(mistake: Mistake, ask: Callable[[ModuleType], None], *, contracts: bool) -> str | None:
    texts = sources(changes_of(mistake))
    for name in about(mistake, contracts=contracts):
        try:
            with _imported(name, texts) as module:
                ask(module)
        except FoundError as found:
            return f"{name.removeprefix('proofs.code.')}: {found}"
        except Exception:  # this proof can't run the changed code; it must run as it is
            with _imported(name, {}) as module:
                ask(module)
    return None


@contextmanager
def _imported(name: str, texts: Mapping[str, str]) -> Iterator[ModuleType]:
    """Import a proof that runs the changed code; this process is for one mistake alone."""
    with changed_package(texts), open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
        for loaded in [n for n in sys.modules if n.partition(".")[0] in ("proofs", *TWINS)]:
            del sys.modules[loaded]
        yield importlib.import_module(name)


def _proved(module: ModuleType) -> None:
    """Prove without the module's own mistakes, whose code may be changed here."""
    ledger: Any = importlib.import_module("proofs._z3").Ledger
    planted = importlib.import_module("proofs.code._planted").Planted

    def record(self: object, name: str, expected: str, answer: str) -> None:
        if answer not in (expected, "unknown") and not name.startswith("mistake"):
            raise FoundError(name)

    with (
        patch.object(ledger, "_record", record),
        patch.object(planted, "done", lambda self: nullcontext()),
    ):
        module.main()


def _confirmed(module: ModuleType) -> None:
    runner = importlib.import_module(f"{CONTRACTS}._runner")
    for contract in module.CONTRACTS:
        if runner.ask(contract).outcome is runner.Outcome.REFUTED:
            raise FoundError(contract.name)
