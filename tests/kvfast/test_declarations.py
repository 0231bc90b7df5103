"""A .pxd file says the same as its .py file, and the files that setup.py names are there."""

from __future__ import annotations

import re

import pytest

from tests.cases import Case, cases
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


@pytest.mark.parametrize("case", cases(__file__, "declarations.txt"), ids=str)
def test_each_sort_of_difference_is_found(case: Case) -> None:
    """Each line of a case is changed in the code; `~` ends a line."""
    code = CODE
    for line in case.given:
        old, _, new = (part.replace("~", "\n") for part in line.partition(" -> "))
        assert code.count(old) == 1, line
        code = code.replace(old, new)
    case.expect(differences(PXD, code) or ["no difference"])


@pytest.mark.parametrize("code", ["A = 2\n", "", "A = 1\nB = 2\n"])
def test_a_constant_with_another_value_is_found(code: str) -> None:
    assert differences("cdef enum:\n    A = 1\n", 'A = 1\n"""a"""\n') == []
    assert differences("cdef enum:\n    A = 1\n", code)


def test_files_that_setup_names_are_there() -> None:
    named = re.findall(r"kvfast/[\w/]+\.pyx?", (ROOT / "setup.py").read_text(encoding="utf-8"))
    assert named
    assert [name for name in named if not (ROOT / name).is_file()] == []
