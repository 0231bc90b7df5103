"""The .pxd files of the compiled build, and the files that setup.py names."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.source import ROOT

DECLARATIONS = sorted((ROOT / "kvfast" / "_compiled").glob("*.pxd"))
LOCALS = re.compile(r"@cython\.locals\(([^)]*)\)\s*c?p?def [^\n(]*?(\w+)\(")


def names_of_functions(text: str) -> dict[str, set[str]]:
    """Of each function, arguments and all other names in it."""
    found: dict[str, set[str]] = {}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            arguments = (*node.args.args, *node.args.kwonlyargs)
            names = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
            found.setdefault(node.name, set()).update(names, (each.arg for each in arguments))
    return found


def idle(declarations: str, code: str) -> list[str]:
    """Typed locals that their function does not have; Cython takes them without a word."""
    functions = names_of_functions(code)
    return [
        f"{function}: {name}"
        for types, function in LOCALS.findall(declarations)
        for name in re.findall(r"(\w+)\s*=", types)
        if name not in functions.get(function, ())
    ]


@pytest.mark.parametrize("path", DECLARATIONS, ids=lambda path: path.stem)
def test_typed_locals_are_those_of_the_function(path: Path) -> None:
    code = ROOT / "kvfast" / "_core" / f"{path.stem}.py"
    assert not code.exists() or idle(path.read_text(), code.read_text()) == []


def test_a_local_that_is_not_there_is_found() -> None:
    declared = "    @cython.locals(a=int, b=int)\n    cdef int f(self, long c) except -1\n"
    assert idle(declared, "class A:\n def f(self, c):\n  a = c\n") == ["f: b"]


def test_files_that_setup_names_are_there() -> None:
    named = re.findall(r"kvfast/[\w/]+\.pyx?", (ROOT / "setup.py").read_text())
    assert named
    assert [name for name in named if not (ROOT / name).is_file()] == []
