"""Who may import whom. README.md has the map; this is what enforces it."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.source import PACKAGES, package_modules, python_files, shown, tree

# What a module may import beside the standard library; the longest prefix of its name counts.
ALLOWED: tuple[tuple[str, frozenset[str]], ...] = (
    # The core of the contract needs nothing, and names no implementation.
    ("kvspec", frozenset({"kvspec"})),
    ("kvspec._stream", frozenset({"kvspec", "zstandard"})),
    ("kvcheck.cli", frozenset({"kvspec", "click", "rich"})),
    ("kvcheck.tools.replay", frozenset({"kvspec", "matplotlib"})),
    ("kvcheck.tools.bench", frozenset({"kvspec", "matplotlib"})),
    ("kvcheck.remote", frozenset({"kvspec", "cbor2"})),
    ("kvcheck.judge", frozenset({"kvspec", "hypothesis"})),
    ("kvcheck.pytest_plugin", frozenset({"kvspec", "pytest"})),
    # An adapter names the project that it adapts, in its factory.
    ("kvcheck.adapters.vllm", frozenset({"kvspec", "vllm"})),
    ("kvcheck.adapters.sglang", frozenset({"kvspec", "sglang"})),
    ("kvref", frozenset({"kvspec", "kvref", "cbor2", "xxhash"})),
    ("kvfast", frozenset({"kvspec", "kvfast", "cbor2", "torch", "xxhash"})),
    ("kvfast.device", frozenset({"kvspec", "kvfast", "torch", "triton"})),
)

# Extras are imported inside functions, so that importing a package needs none of them. These parts
# are extras as a whole and are only imported once theirs is known to be there.
WHOLLY_EXTRA = ("kvcheck.cli", "kvcheck.judge", "kvcheck.pytest_plugin.", "kvfast.device")
ALWAYS_INSTALLED = frozenset({"kvspec", "kvref", "kvfast", "cbor2"})


@dataclass(frozen=True)
class Import:
    """One import: the top-level name, its line, and whether it runs when the module is imported."""

    root: str
    line: int
    at_import: bool


def imports(module: ast.Module) -> Iterator[Import]:
    """All imports of a file, also `import_module("…")`; those for type checkers left out."""
    yield from _imports(module, at_import=True)


def _imports(node: ast.AST, *, at_import: bool) -> Iterator[Import]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield Import(alias.name.partition(".")[0], node.lineno, at_import)
    elif isinstance(node, ast.ImportFrom) and node.level == 0:
        yield Import(str(node.module).partition(".")[0], node.lineno, at_import)
    elif isinstance(node, ast.Call):
        called = ast.unparse(node.func).rpartition(".")[2]
        argument = node.args[0] if node.args else None
        if called in ("import_module", "__import__") and isinstance(argument, ast.Constant):
            yield Import(str(argument.value).partition(".")[0], node.lineno, at_import)
    children: list[ast.AST] = list(ast.iter_child_nodes(node))
    if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
        children = list(node.orelse)
    inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
    for child in children:
        yield from _imports(child, at_import=at_import and not inside)


def allowed_for(name: str) -> frozenset[str]:
    matching = [entry for entry in ALLOWED if f"{name}.".startswith(f"{entry[0]}.")]
    return max(matching, key=lambda entry: len(entry[0]))[1]


MODULES = tuple(pytest.param(name, path, id=name) for name, path in package_modules())


@pytest.mark.parametrize(("name", "path"), MODULES)
def test_a_module_imports_only_what_its_part_may(name: str, path: Path) -> None:
    allowed = allowed_for(name) | sys.stdlib_module_names
    wrong = [
        f"{shown(path)}:{found.line} imports {found.root}"
        for found in imports(tree(path))
        if found.root not in allowed
    ]
    assert not wrong


@pytest.mark.parametrize(("name", "path"), MODULES)
def test_extras_are_imported_only_when_needed(name: str, path: Path) -> None:
    if name.startswith(WHOLLY_EXTRA) and name != "kvcheck.cli":
        return
    early = [
        f"{shown(path)}:{found.line} imports {found.root} when it is imported itself"
        for found in imports(tree(path))
        if found.at_import and found.root not in sys.stdlib_module_names | ALWAYS_INSTALLED
    ]
    assert not early


def test_nobody_imports_tests_or_proofs() -> None:
    wrong = [
        f"{shown(path)}:{found.line} imports {found.root}"
        for path in python_files()
        if not shown(path).startswith(("tests/", "proofs/"))
        for found in imports(tree(path))
        if found.root in ("tests", "proofs")
    ]
    assert not wrong


def test_the_checks_above_see_every_form_of_import() -> None:
    source = """
import a.b
from c import d
if TYPE_CHECKING:
    import hidden
def f():
    import e
    importlib.import_module("g.h")
"""
    assert [(found.root, found.at_import) for found in imports(ast.parse(source))] == [
        ("a", True),
        ("c", True),
        ("e", False),
        ("g", False),
    ]
    assert allowed_for("kvcheck.cli.doctor") != allowed_for("kvspec.client")


IMPORT_EVERYTHING_WITH_ONLY = """
import importlib, pkgutil, sys

class OnlyThese:
    def find_spec(self, name, path=None, target=None):
        root = name.partition(".")[0]
        if root not in sys.stdlib_module_names and root not in {allowed!r}:
            raise ModuleNotFoundError(f"No module named {{root!r}}", name=root)

sys.meta_path.insert(0, OnlyThese())
for package in {packages!r}:
    module = importlib.import_module(package)
    for info in pkgutil.walk_packages(module.__path__, package + "."):
        if not info.name.startswith({extras!r}):
            importlib.import_module(info.name)
from kvcheck.cli import main
sys.exit(main(["doctor"]))
"""


@pytest.mark.parametrize(
    ("packages", "needs"),
    [(("kvspec",), ()), (("kvspec", "kvref", "kvfast"), ("cbor2",))],
    ids=["kvspec alone", "everything"],
)
def test_packages_import_without_any_extra_and_the_command_says_what_it_needs(
    packages: tuple[str, ...], needs: tuple[str, ...]
) -> None:
    allowed = (*(name for name, _ in PACKAGES if name in packages), *needs)
    code = IMPORT_EVERYTHING_WITH_ONLY.format(
        allowed=allowed, packages=packages, extras=WHOLLY_EXTRA
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert done.stderr.splitlines() == [
        "kvspec: error: the command line needs click; install it with: pip install 'kvspec[cli]'"
    ]
