"""Imports between parts: the layers of pyproject.toml, and what a package needs to be imported."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from importlinter.cli import lint_imports

from tests.source import PACKAGES, ROOT, package_modules, python_files, shown, tree

# What a module may import beside the standard library; the longest prefix of its name counts. Who
# may import whom among our own packages says pyproject.toml, [tool.importlinter].
OURS = frozenset({"kvspec", "kvcheck", "kvref", "kvfast"})
REPLAY_EXTRAS = frozenset({"matplotlib", "prometheus_client", "tokenizers", "zstandard"})
ALLOWED: tuple[tuple[str, frozenset[str]], ...] = (
    ("kvspec", frozenset()),  # the contract needs nothing
    ("kvspec._state_file", frozenset({"cbor2"})),
    ("kvspec.files.stream", frozenset({"zstandard"})),  # records and traces in .zst files
    ("kvcheck", frozenset()),
    ("kvcheck.tasks", frozenset({"ray"})),
    ("kvcheck.cli", frozenset({"click", "rich"})),
    ("kvcheck.tools.replay", REPLAY_EXTRAS),
    ("kvcheck.tools.bench", frozenset({"matplotlib"})),
    ("kvcheck.remote", frozenset({"cbor2"})),
    ("kvcheck.pytest_plugin", frozenset({"pytest"})),
    # An adapter names the project that it adapts, in its factory.
    ("kvcheck.adapters.vllm", frozenset({"vllm"})),
    ("kvcheck.adapters.sglang", frozenset({"sglang"})),
    ("kvcheck.adapters.dynamo", frozenset({"dynamo"})),
    ("kvcheck.adapters.lmcache", frozenset({"lmcache", "torch"})),
    ("kvcheck.adapters.minisglang", frozenset({"minisgl", "torch"})),
    ("kvref", frozenset({"cbor2", "xxhash"})),
    ("kvfast", frozenset({"cbor2", "torch", "xxhash"})),
    ("kvfast.device", frozenset({"torch", "triton"})),
    ("kvfast.engines.vllm", frozenset({"vllm"})),
    ("kvfast.fleet", frozenset({"msgspec", "zmq"})),
    ("kvfast.metrics", frozenset({"prometheus_client"})),
)

# Extras are imported inside functions, so that importing a package needs none of them. These parts
# are extras as a whole and are only imported once theirs is known to be there.
WHOLLY_EXTRA = (
    *("kvcheck.cli", "kvcheck.pytest_plugin."),
    *("kvfast.device", "kvfast.engines.vllm.", "kvcheck.adapters.vllm.shadow"),
    *("kvfast.fleet.publisher", "kvfast.fleet.sockets", "kvfast.fleet.view", "kvfast.fleet.wire"),
)
ALWAYS_INSTALLED = OURS | {"cbor2"}


@dataclass(frozen=True)
class Import:
    """One import: the top-level name, its line, and whether it runs when the module is imported."""

    root: str
    line: int
    at_import: bool


def imports(module: ast.Module) -> Iterator[Import]:
    """Yield all imports of a file, also `import_module("…")`, but none for type checkers."""
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


def is_wholly_extra(name: str) -> bool:
    return name.startswith(WHOLLY_EXTRA) and name != "kvcheck.cli"


def test_the_layers_are_kept() -> None:
    assert lint_imports(config_filename=str(ROOT / "pyproject.toml"), no_cache=True) == 0


def test_modules_import_only_what_their_part_may() -> None:
    wrong = [
        f"{shown(path)}:{found.line} imports {found.root}"
        for name, path in package_modules()
        for found in imports(tree(path))
        if found.root not in allowed_for(name) | OURS | sys.stdlib_module_names
    ]
    assert not wrong


def test_extras_are_imported_only_when_needed() -> None:
    early = [
        f"{shown(path)}:{found.line} imports {found.root} when it is imported itself"
        for name, path in package_modules()
        if not is_wholly_extra(name)
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
    assert allowed_for("kvcheck.cli.doctor") != allowed_for("kvcheck.client")


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
if "kvcheck" in {packages!r}:
    from kvcheck.cli import main
    sys.exit(main(["doctor"]))
"""


@pytest.mark.parametrize(
    ("packages", "needs", "code"),
    [
        (("kvspec",), (), 0),
        (("kvspec", "kvcheck"), (), 2),
        (("kvspec", "kvcheck", "kvref", "kvfast"), ("cbor2",), 2),
    ],
    ids=["kvspec alone", "kvspec and kvcheck", "everything"],
)
def test_packages_import_without_any_extra_and_the_command_says_what_it_needs(
    packages: tuple[str, ...], needs: tuple[str, ...], code: int
) -> None:
    allowed = (*(name for name, _ in PACKAGES if name in packages), *needs)
    text = IMPORT_EVERYTHING_WITH_ONLY.format(
        allowed=allowed, packages=packages, extras=WHOLLY_EXTRA
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    said = "kvspec: error: the command line needs click; install it with: pip install 'kvspec[cli]'"
    assert done.stderr.splitlines() == ([said] if code else [])
