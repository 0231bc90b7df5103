"""Make an implementation with a mistake: a copy of a package with a few changed lines.

The copy is imported separately, so that the package itself does not change. Changed modules of
other packages are copied for it alone.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import Any

from kvcheck.mistakes.text import Change, MistakeError, changed, unknown_names
from kvspec.audit import unwrapped
from kvspec.config import ManagerConfig
from kvspec.interface import Implementation, KVCacheManager
from kvspec.snapshot import Snapshot

_ONE_AT_A_TIME = threading.RLock()  # sys.modules is global


def twin(package: str, changes: Sequence[Change], *, audits: bool = False) -> Implementation:
    """Return what `package.implementation()` makes with these changes.

    Without `audits` its managers never check themselves, like those of other implementations.
    """
    made = copied(package, sources(changes))
    return made if audits else unaudited(made)


def unaudited(implementation: Implementation) -> Implementation:
    """Return the implementation with managers that do not check themselves."""
    kind: Any = type(implementation)

    class Unaudited(kind):  # type: ignore[misc]  # any class
        def create(self, config: ManagerConfig, **options: Any) -> KVCacheManager:
            made: KVCacheManager = super().create(config, **{**options, "check_invariants": False})
            return made

        def restore(self, config: ManagerConfig, snapshot: Snapshot) -> KVCacheManager:
            return unwrapped(super().restore(config, snapshot))

    implementation.__class__ = Unaudited
    return implementation


def sources(changes: Sequence[Change]) -> dict[str, str]:
    found = {}
    for name in dict.fromkeys(change.module for change in changes):
        own = [each for each in changes if each.module == name]
        found[name] = changed(source_of(name), own)
        unknown = unknown_names(found[name])
        if unknown:  # every call would fail, which is another mistake
            raise MistakeError(f"{own[0]}: undefined: {', '.join(sorted(unknown))}")
    return found


@cache
def source_of(module: str) -> str:
    return Path(_file_of(module)).read_text(encoding="utf-8")


def _file_of(module: str) -> str:
    try:
        spec = importlib.util.find_spec(module)
    except ImportError:
        spec = None
    if spec is None or spec.origin is None:
        raise MistakeError(f"there is no module {module}")
    return spec.origin


def copied(package: str, texts: Mapping[str, str]) -> Implementation:
    """Make the package again with these sources for these modules.

    A package with a compiled build has a separate factory for its sources: `uncompiled`. It is
    called while the copy is in place, so that modules imported late belong to the copy.
    """
    with _ONE_AT_A_TIME, changed_package(texts), _aside(package, texts):
        module = importlib.import_module(package)
        made: Implementation = getattr(module, "uncompiled", module.implementation)()
    return made


@contextmanager
def _aside(package: str, texts: Mapping[str, str]) -> Iterator[None]:
    """Remove the package and these modules from `sys.modules`; restores them afterwards."""

    def concerned() -> list[str]:
        return [n for n in sys.modules if n in texts or f"{n}.".startswith(f"{package}.")]

    before = {name: sys.modules[name] for name in concerned()}
    outside = [name.rpartition(".") for name in before if not name.startswith(package)]
    attributes = [(sys.modules[name], last, before[f"{name}.{last}"]) for name, _, last in outside]
    for name in before:
        del sys.modules[name]
    try:
        yield
    finally:
        for name in concerned():
            del sys.modules[name]
        sys.modules.update(before)
        for parent, last, module in attributes:  # an import also sets it in the parent
            setattr(parent, last, module)


@contextmanager
def changed_package(texts: Mapping[str, str]) -> Iterator[None]:
    """Imports of these modules run these sources."""
    finder: Any = _Finder(texts, {name: _file_of(name) for name in texts})
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class _Finder:
    def __init__(self, texts: Mapping[str, str], files: Mapping[str, str]) -> None:
        self.texts = texts
        self.files = files

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name not in self.texts:
            return None
        loader = _Loader(name, self.files[name], self.texts[name])
        return importlib.util.spec_from_file_location(name, self.files[name], loader=loader)


class _Loader(SourceFileLoader):
    def __init__(self, name: str, path: str, text: str) -> None:
        super().__init__(name, path)
        self.text = text

    def get_code(self, fullname: str) -> CodeType:
        """Compile the changed text; a cached .pyc beside the file holds the original."""
        made: CodeType = compile(self.text, self.path, "exec", dont_inherit=True)
        return made
