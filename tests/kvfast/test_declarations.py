"""A .pxd file declares what its .py file has: Cython takes arguments by place, and idle locals."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.source import ROOT

COMPILED, CORE = ROOT / "kvfast" / "_compiled", ROOT / "kvfast" / "_core"
# digest.pxd declares a twin in Cython's own language.
DECLARATIONS = sorted(set(COMPILED.glob("*.pxd")) - {COMPILED / "digest.pxd"})
# Files of constants, beside the code that has them as Python ints.
CONSTANTS = {
    "hot_fields": "hot",
    "kind_fields": "kinds",
    "record_fields": "record",
    "probing_fields": "probing",
}
ENGINE = ROOT / "kvfast" / "engines" / "vllm"
ELSEWHERE = {"vllm_loops": ENGINE / "loops.py", "vllm_taking": ENGINE / "taking.py"}
FUNCTION = re.compile(r"c?p?def [^(]*?(\w+)\((.*)\)[^()]*$")
COMMA = re.compile(r",\s*(?![^\[]*\])")
MEMBERS = re.compile(r"cdef (?:(?:readonly|public) )?[^(=]*?[\w\]] \*?(\w+(?:, \w+)*)$")


def idle(pxd: str, code: str) -> Iterator[str]:
    """Yield the declarations of functions, locals, members and constants that the code lacks."""
    tree, typed = ast.parse(code), list[str]()
    owner: ast.Module | ast.ClassDef = tree
    for line in re.sub(r"#.*|(?<=[(,])\s*\n\s*|\n\s*(?=\))", "", pxd).splitlines():
        code_line = line.strip()
        if line[:1] not in ("", " "):
            owner = tree
        if found := re.match(r"cdef class (\w+)", code_line):
            owner = next(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == found[1])
        elif code_line.startswith("@cython.locals"):
            typed = re.findall(r"(\w+)\s*=", code_line)
        elif found := FUNCTION.match(code_line):
            arguments = [re.findall(r"\w+", part)[-1] for part in COMMA.split(found[2]) if part]
            named = (n for n in owner.body if isinstance(n, ast.FunctionDef) and n.name == found[1])
            function = next(named, ast.parse("def f(): pass").body[0])
            assert isinstance(function, ast.FunctionDef)
            has = [each.arg for each in (*function.args.args, *function.args.kwonlyargs)]
            if has != arguments:
                yield f"{found[1]}({', '.join(arguments)})"
            names = {node.id for node in ast.walk(function) if isinstance(node, ast.Name)}
            yield from (f"{found[1]}: {name}" for name in typed if name not in {*names, *has})
            typed = []
        elif found := MEMBERS.match(code_line):
            text = ast.unparse(owner)
            missing = (n for n in found[1].split(", ") if not re.search(rf"\b{n}\b", text))
            yield from missing
        elif found := re.match(r"(\w+) = (\d+)$", code_line):
            written = rf"^{found[1]}(: \S+)? = {found[2]}$"
            yield from [code_line] * (not re.search(written, ast.unparse(tree), re.MULTILINE))


@pytest.mark.parametrize("name", [path.stem for path in DECLARATIONS])
def test_a_declaration_is_in_its_code(name: str) -> None:
    path = ELSEWHERE.get(name, CORE / f"{CONSTANTS.get(name, name)}.py")
    pxd = (COMPILED / f"{name}.pxd").read_text(encoding="utf-8")
    assert list(idle(pxd, path.read_text(encoding="utf-8"))) == []


PXD = """
cdef enum:
    LIMIT = 4

cdef class Line:
    cdef readonly long long start, end  # first

    @cython.locals(i=int, at="long long")
    cdef int move(self, int[:, ::1] to,
                  long long by) except -1
"""
CODE = """
LIMIT = 4

class Line:
    def move(self, to, by):
        for i in range(by):
            at = i
        self.start = self.end
"""


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("LIMIT = 4", "LIMIT = 5", "LIMIT = 4"),
        ("to, by", "by, to", "move(self, to, by)"),
        ("def move", "def moved", "move(self, to, by)"),
        ("at = i", "pass", "move: at"),
        ("self.end", "0", "end"),
    ],
)
def test_each_sort_of_difference_is_found(old: str, new: str, said: str) -> None:
    assert list(idle(PXD, CODE)) == []
    assert said in list(idle(PXD, CODE.replace(old, new)))


def test_files_that_setup_names_are_there() -> None:
    named = re.findall(r"kvfast/[\w/]+\.pyx?", (ROOT / "setup.py").read_text(encoding="utf-8"))
    assert named
    assert [name for name in named if not (ROOT / name).is_file()] == []
