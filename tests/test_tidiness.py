"""The habits that a reader relies on: short files, short functions, nothing left lying about."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Collection, Iterator

from tests.source import ROOT, package_modules, python_files, shown, text_files, tree

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60

# Longer files, each with the reason why it is still one file.
LONGER_FILES: tuple[tuple[str, str], ...] = ()

# Put together from pieces, so that this file doesn't find itself.
MARKERS = re.compile(r"\b(" + "|".join(("TO" + "DO", "FIX" + "ME", "X" * 3, "HA" + "CK")) + r")\b")
MACHINE_PATHS = re.compile(
    r"(?<![\w.~$}/-])/(?:"
    + "|".join(("work", "tmp", "home", "root", "Users", "opt", "mnt"))
    + r")/\w"
)

# What a module assigns at its top must not change afterwards. A look-up table is declared as a
# Mapping: mypy then refuses every change.
MUTABLE_LITERALS = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)
MUTABLE_TYPES = frozenset(
    {"list", "dict", "set", "bytearray", "array", "defaultdict", "deque", "Counter", "OrderedDict"}
)
READ_ONLY_TYPES = frozenset({"Mapping", "Sequence", "Collection"})


def test_a_file_is_at_most_400_lines() -> None:
    long = [
        f"{shown(path)}: {lines} lines"
        for path in python_files()
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > MAX_FILE_LINES
        and shown(path) not in dict(LONGER_FILES)
    ]
    assert not long


def test_a_function_is_at_most_60_lines() -> None:
    long = [
        f"{shown(path)}:{node.lineno} {node.name}: {lines} lines"
        for path in python_files()
        for node in ast.walk(tree(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (lines := (node.end_lineno or node.lineno) - node.lineno + 1) > MAX_FUNCTION_LINES
    ]
    assert not long


def test_nothing_is_left_to_do_and_no_file_knows_a_machine() -> None:
    found = [
        f"{shown(path)}:{number}: {line.strip()}"
        for path in text_files()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if MARKERS.search(line) or MACHINE_PATHS.search(line)
    ]
    assert not found


def test_prose_of_the_packages_names_files_that_are_there() -> None:
    names = {path.name for path in python_files()} | {"setup.py"}
    prose = [path for path in text_files() if path.suffix == ".toml"]
    said = [(path, path.read_text("utf-8")) for path in prose]
    said += [(path, ast.get_docstring(tree(path)) or "") for _, path in package_modules()]
    gone = [f"{shown(path)}: {name}" for path, text in said for name in missing(text, names)]
    assert not gone


def missing(text: str, names: Collection[str]) -> Iterator[str]:
    """Yield Python files named in a text that are not among `names`."""
    for name in re.findall(r"(?<![\w*./-])(?:[\w-]+/)*(\w+\.py)\b", text):
        if name not in names:
            yield name


def test_a_module_keeps_no_state_that_can_change() -> None:
    found = [
        f"{shown(path)}:{line}"
        for _, path in package_modules()
        for line in mutable_state(tree(path))
    ]
    assert not found


def mutable_state(module: ast.Module) -> Iterator[int]:
    """Yield lines with mutable state of a module or class, or with `global`."""
    for node in ast.walk(module):
        if isinstance(node, ast.Global):
            yield node.lineno
        if not isinstance(node, ast.Module | ast.ClassDef):
            continue
        for statement in node.body:
            if isinstance(statement, ast.Assign | ast.AnnAssign) and not _is_read_only(statement):
                yield statement.lineno


def _is_read_only(statement: ast.Assign | ast.AnnAssign) -> bool:
    """Check that the value can't be changed, or that its type makes mypy refuse changes."""
    if isinstance(statement, ast.AnnAssign):
        declared = ast.unparse(statement.annotation).partition("[")[0]
        return declared in READ_ONLY_TYPES or not _is_mutable(statement.value)
    named_all = ast.unparse(statement.targets[0]) == "__all__"
    return named_all or not _is_mutable(statement.value)


def _is_mutable(value: ast.expr | None) -> bool:
    if isinstance(value, ast.Call):
        return ast.unparse(value.func).rpartition(".")[2] in MUTABLE_TYPES
    return isinstance(value, MUTABLE_LITERALS)


def test_no_part_has_more_lines_than_its_budget() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    budgets: dict[str, int] = project["tool"]["kvspec"]["lines"]
    lines = dict.fromkeys(budgets, 0)
    for path in python_files():
        part = shown(path).partition("/")[0]
        lines[part if part in budgets else "rest"] += path.read_text(encoding="utf-8").count("\n")
    assert {part: count for part, count in lines.items() if count > budgets[part]} == {}
    assert {part: count for part, count in lines.items() if count < 0.9 * budgets[part]} == {}


def test_every_longer_file_is_there_and_is_longer() -> None:
    sizes = {shown(path): len(path.read_text("utf-8").splitlines()) for path in python_files()}
    for name, reason in LONGER_FILES:
        assert sizes.get(name, 0) > MAX_FILE_LINES, f"{name} needs no exception: {reason}"


def test_the_checks_above_find_what_they_look_for() -> None:
    source = """
A = (1, 2)
B = {}
C: list[int] = list(())
class D:
    e = []
    def f(self):
        global g
        h = []
__all__ = ["A"]
I: Mapping[str, int] = {}
"""
    assert sorted(mutable_state(ast.parse(source))) == [3, 4, 6, 8]
    assert list(missing("see `a/b.py`, c.py and d.py", {"c.py"})) == ["b.py", "d.py"]
    assert MARKERS.search("# " + "TO" + "DO: later")
    assert MACHINE_PATHS.search("see " + "/".join(("", "home", "someone")))
    assert not MACHINE_PATHS.search("https://example.org/home/page ../work/x spec/root/y")
