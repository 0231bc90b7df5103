"""A .pxd file says the same as its .py file, and the files that setup.py names are there."""

from __future__ import annotations

import re

import pytest

from tests.kvfast.declarations import differences
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


@pytest.mark.parametrize("name", [path.stem for path in DECLARATIONS])
def test_a_declaration_says_what_its_code_says(name: str) -> None:
    path = ELSEWHERE.get(name, CORE / f"{CONSTANTS.get(name, name)}.py")
    code = path.read_text(encoding="utf-8")
    assert differences((COMPILED / f"{name}.pxd").read_text(encoding="utf-8"), code) == []


PXD = """
cimport cython
cdef int LIMIT

cdef class Line:
    cdef readonly long long start, end  # first
    cdef int[:, ::1] rows

    @cython.locals(i=int, at="long long")
    cdef int move(self, int[:, ::1] to,
                  long long by) except -1
    cpdef list ends(self)

cdef int length(Line line) noexcept
"""
CODE = """
LIMIT = 4

class Line:
    def __init__(self, start):
        self.start, self.rows, self.end = start, None, 0

    def move(self, to, by):
        for i in range(by):
            at = i
        self.start += at

    def ends(self):
        return []

def length(line):
    return 1
"""


def test_a_pair_without_a_difference() -> None:
    assert differences(PXD, CODE) == []
    assert differences("cdef enum:\n    A = 1\n", 'A = 1\n"""a"""\n') == []


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ("LIMIT = 4", "LIMITS = 4", ".LIMIT is idle"),
        ("class Line:", "class Line(Other):", "class Line()"),
        ("class Line:", "class Row:", "class Line()"),
        ("start, None, 0\n", "1, 2, 3\n        self.odd = 3\n", "Line.odd is not declared"),
        ("self.start, self.rows, self.end = start, None, 0", "self.start = 1", "Line.rows is idle"),
        ("def ends", "def end", "Line.ends(self)"),
        ("def move(self, to, by)", "def move(self, by, to)", "Line.move(self, to, by)"),
        ("def move(self, to, by)", "def move(self, to, by, of)", "Line.move(self, to, by)"),
        ("def length(line)", "def length(row)", ".length(line)"),
        ("at = i\n        self.start += at", "pass", "Line.move: at is idle"),
    ],
)
def test_each_sort_of_difference_is_found(old: str, new: str, found: str) -> None:
    assert old in CODE
    assert found in differences(PXD, CODE.replace(old, new))


def test_functions_in_another_order_are_found() -> None:
    parts = CODE.partition("    def ends(self):\n        return []\n")
    turned = CODE.replace(parts[1], "").replace("    def move", parts[1] + "    def move")
    assert differences(PXD, turned) == ["functions are in another order"]


@pytest.mark.parametrize("code", ["A = 2\n", "", "A = 1\nB = 2\n"])
def test_a_constant_with_another_value_is_found(code: str) -> None:
    assert differences("cdef enum:\n    A = 1\n", code)


def test_files_that_setup_names_are_there() -> None:
    named = re.findall(r"kvfast/[\w/]+\.pyx?", (ROOT / "setup.py").read_text(encoding="utf-8"))
    assert named
    assert [name for name in named if not (ROOT / name).is_file()] == []
