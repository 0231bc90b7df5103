"""The build, its declarations, and the public names of the device plane."""

from __future__ import annotations

import ast
import re
import subprocess
import textwrap
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest

import kvfast
import kvfast.device
from kvfast import _build, device
from kvfast.device import MissingDependencyError
from kvspec.errors import KVSpecError
from tests.commands import python
from tests.source import ROOT, shown

WITHOUT_COMPILED_BUILD = """
import sys
sys.modules["kvfast._compiled.pool"] = None  # as if it were not there
import kvspec, kvref, kvfast
assert kvfast.compiled is False
"""


ALL_THAT_IS_PROBED = """
import sys
from kvfast import _build
assert _build.is_compiled()
print(*(name.rpartition(".")[2] for name in sys.modules if name.startswith("kvfast._compiled.")))
"""


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return python("-W", "always", "-c", code)


def test_importing_and_asking_says_nothing() -> None:
    done = run_python(WITHOUT_COMPILED_BUILD)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def test_a_build_without_one_of_its_modules_is_not_the_compiled_one() -> None:
    if not kvfast.compiled:
        pytest.skip("no compiled build of kvfast here")
    probed = run_python(ALL_THAT_IS_PROBED).stdout.split()
    core = {path.stem for path in (ROOT / "kvfast" / "_core").glob("[!_]*.py")}
    assert core <= set(probed)


def test_the_first_use_of_the_uncompiled_core_says_so_once() -> None:
    done = run_python(
        WITHOUT_COMPILED_BUILD
        + """
from kvfast import _build
for _ in range(3):
    core = _build.load("pool")
assert core.__name__ == "kvfast._core.pool"
"""
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("RuntimeWarning") == 1
    assert "C compiler" in done.stderr


def test_a_build_for_another_machine_falls_back_and_names_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(name: str) -> ModuleType:
        raise ImportError("wrong ELF class")

    monkeypatch.setattr("importlib.import_module", refuse)
    assert not _build.is_compiled()
    assert "wrong ELF class" in str(_build.why_not_compiled())


def test_a_compiled_core_is_loaded_without_a_word() -> None:
    if not kvfast.compiled:
        pytest.skip("no compiled build of kvfast here")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert _build.load("pool").__name__ == "kvfast._compiled.pool"


def test_an_unknown_attribute_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_thing"):
        _ = kvfast.no_such_thing


def test_diagnose_answers_text_for_every_label() -> None:
    facts = kvfast.diagnose()
    assert facts["build"].startswith("compiled" if kvfast.compiled else "not compiled")
    assert all(isinstance(text, str) for text in facts.values())
    assert {"torch", "Triton", "CUDA device"} <= set(facts)


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


PACKAGE = "kvfast.device"
CODE_OF_DEVICE_NAMES = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHOWN = tuple(
    sorted(
        path
        for folder in ("examples", "docs", "bench")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".md")
    )
)


def code_of(path: Path) -> list[str]:
    text = path.read_text(encoding="utf-8")
    return [text] if path.suffix == ".py" else CODE_OF_DEVICE_NAMES.findall(text)


def imported(code: str) -> Iterator[str]:
    """Yield the imported names of kvfast.device: `pools`, `_backend.Backend`, …"""
    for node in ast.walk(ast.parse(textwrap.dedent(code))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        yield from (
            name.removeprefix(f"{PACKAGE}.") for name in names if name.startswith(f"{PACKAGE}.")
        )


def is_private(name: str) -> bool:
    return any(part.startswith("_") for part in name.split("."))


@pytest.mark.parametrize("path", SHOWN, ids=shown)
def test_what_readers_copy_imports_public_names_only(path: Path) -> None:
    names = [name for code in code_of(path) for name in imported(code)]
    assert [name for name in names if is_private(name)] == []
    assert [name for name in names if name not in device.__all__] == []


def test_a_private_import_is_found() -> None:
    code = "from kvfast.device._backend import Backend\nimport kvfast.device._arguments\n"
    assert [is_private(name) for name in imported(code)] == [True, True]
    assert list(imported("from kvfast.device import KVPools, _formats")) == ["KVPools", "_formats"]


def test_the_page_tells_of_every_public_name() -> None:
    text = (ROOT / "docs/device.md").read_text(encoding="utf-8")
    names = re.findall(r"`(\w+)`", text[text.index("## Names") :])
    assert [name for name in device.__all__ if name not in names] == []


@pytest.mark.skipif(find_spec("torch") is not None, reason="torch is installed")
@pytest.mark.parametrize("name", sorted(kvfast.device._FOLDERS))
def test_what_needs_torch_says_so(name: str) -> None:
    with pytest.raises(MissingDependencyError, match=r"pip install 'kvspec\[torch\]'") as caught:
        getattr(kvfast.device, name)
    assert isinstance(caught.value, KVSpecError)
    assert isinstance(caught.value, ImportError)
    assert caught.value.package == "torch"
    assert kvfast.implementation().capabilities.name == "kvfast"


def test_every_public_name_is_there_or_needs_torch() -> None:
    there = set(vars(kvfast.device))
    needing = kvfast.device._FOLDERS.keys()
    assert set(kvfast.device.__all__) - there <= needing <= set(kvfast.device.__all__)
    assert {"Backend", "DeviceMemoryError", "Layout", "MissingDependencyError"} <= there


def test_other_names_are_no_part_of_it() -> None:
    with pytest.raises(AttributeError, match="nothing"):
        kvfast.device.nothing  # noqa: B018 (asking is what is tested)
