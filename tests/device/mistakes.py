"""Mistakes of the device plane, as texts of `kvcheck.mistakes` in `planted`, and how they are made.

Modules stay as they are: only the function that is wrong is another one for a while, wherever it
was imported to. So checks see the mistake in the very objects that they use.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

from kvcheck.mistakes import Mistake
from kvcheck.mistakes.text import Change, Entry, changed, entries

FOLDER = Path(__file__).parent / "planted"


def planted(file: Path) -> tuple[Mistake, ...]:
    """Read the mistakes of one text. `make` returns a context in which the mistake is made."""
    return tuple(
        Mistake(one.id, one.rules, one.about, "kvfast", "device", partial(made, one))
        for one in entries(file.read_text(encoding="utf-8"))
    )


@contextmanager
def made(entry: Entry) -> Iterator[None]:
    with ExitStack() as stack:
        for change in entry.changes:
            for owner, name, value in replaced(change):
                stack.enter_context(patch.object(owner, name, value, create=True))
        yield


def replaced(change: Change) -> Iterator[tuple[object, str, object]]:
    module = import_module(change.module)
    source = Path(str(module.__file__)).read_text(encoding="utf-8")
    owner, _, name = change.place.rpartition(".")
    found = definitions(ast.parse(changed(source, [change])), owner)
    wanted = [one for one in found if one.name in (name, f"_right_{name}")]
    made: dict[str, object] = {}
    code = ast.Module([ast.parse("from __future__ import annotations").body[0], *wanted], [])
    exec(compile(code, str(module.__file__), "exec"), vars(module), made)
    right = getattr(getattr(module, owner) if owner else module, name)
    holders = [getattr(module, owner)] if owner else [module, *importers(name, right)]
    for one in wanted:
        for holder in holders:
            yield holder, one.name, made[one.name]


def definitions(tree: ast.Module, owner: str) -> list[ast.FunctionDef]:
    body: list[Any] = tree.body
    if owner:
        (found,) = (one for one in body if isinstance(one, ast.ClassDef) and one.name == owner)
        body = found.body
    return [one for one in body if isinstance(one, ast.FunctionDef)]


def importers(name: str, right: object) -> Iterator[object]:
    for module in list(sys.modules.values()):
        is_ours = module.__name__.startswith(("kvfast.", "tests."))
        if is_ours and vars(module).get(name) is right:
            yield module


TEXTS: Mapping[str, tuple[Mistake, ...]] = {
    path.stem: planted(path) for path in sorted(FOLDER.glob("*.diff"))
}
