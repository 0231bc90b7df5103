"""Proofs, contracts and models that nothing runs, and that would check nothing.

`.ci/run` runs the files that its patterns match. All others under `proofs/` must be imported by
those, directly or not, and models must be named by them. A proof that cannot fail proves nothing,
so each has something that must fail; and each has its row in `proofs/README.md`, with its rules.
"""

from __future__ import annotations

import ast
import fnmatch
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

README = "proofs/README.md"
PATTERNS = re.compile(r"^for proof in (.+); do$", re.MULTILINE)
ROW = re.compile(r"^\|(?P<property>[^|]*)\| `(?P<file>[^`|]+)` \|", re.MULTILINE)
CITATION = re.compile(r"KV-([A-Z]+)-([0-9]+)(?:\s*…\s*KV-\1-([0-9]+))?")
MUST_FAIL = re.compile(r"refute|twin|mistake", re.IGNORECASE)
CONTRACT = re.compile(r"^\s*post:", re.MULTILINE)
EXTENDS = re.compile(r"\b(?:EXTENDS|INSTANCE)\b(.*)")
CHECKED = re.compile(r"^(?:INVARIANTS?|PROPERTY|PROPERTIES)\s+\w", re.MULTILINE)
MODEL_SUFFIXES = (".tla", ".cfg", ".smt2", ".m")
INSTALLED = "node_modules"
MODEL_FOLDERS = ("proofs", "spec/tla")


def run_proofs(root: Path) -> list[Path]:
    """Return the files that `.ci/run` runs as proofs."""
    found = PATTERNS.search((root / ".ci/run").read_text(encoding="utf-8"))
    if found is None:
        return []
    return sorted({path for pattern in found[1].split() for path in root.glob(pattern)})


def reached(root: Path, start: Iterable[Path]) -> set[Path]:
    """Return these files and all that they import of `proofs`, directly or not."""
    todo, found = list(start), set[Path]()
    while todo:
        path = todo.pop()
        if path not in found:
            found.add(path)
            todo += [other for name in imported(path) for other in files_of(root, name)]
    return found


def imported(path: Path) -> Iterator[str]:
    """Yield the full names a module imports: for `from a import b` both a and a.b."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def files_of(root: Path, module: str) -> Iterator[Path]:
    """Yield the file of a module of `proofs`, if there is one."""
    path = root / (module.replace(".", "/") + ".py")
    if module.startswith("proofs.") and path.is_file():
        yield path


def shown(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix()


def rules_in(text: str) -> set[str]:
    """Return the rules cited in a text, with ranges expanded."""
    return {
        f"KV-{chapter}-{number}"
        for chapter, first, last in CITATION.findall(text)
        for number in range(int(first), int(last or first) + 1)
    }


def problems(root: Path) -> list[str]:
    """List everything that is not as it must be, one line each."""
    run = run_proofs(root)
    if not run:
        return [".ci/run: runs no proof"]
    alive = reached(root, run)
    return [
        *(
            f"{shown(path, root)}: nothing runs it"
            for path in sorted((root / "proofs").rglob("*.py"))
            if path not in alive
        ),
        *(problem for path in run for problem in of_proof(root, path)),
        *(problem for path in sorted(alive) for problem in of_contracts(root, path)),
        *of_models(root, alive),
        *of_table(root, run),
    ]


def of_proof(root: Path, path: Path) -> Iterator[str]:
    """Check that a proof names its rules, exits with a code, and can fail."""
    name, text = shown(path, root), path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    if not rules_in(ast.get_docstring(tree) or ""):
        yield f"{name}: its docstring names no rule"
    ends = [node for node in tree.body if isinstance(node, ast.If)]
    if not any("__name__" in ast.unparse(e.test) and "sys.exit(" in ast.unparse(e) for e in ends):
        yield f"{name}: its end is no exit code, so nobody would see it fail"
    if not any(map(MUST_FAIL.search, names_in(tree))):
        yield f"{name}: nothing in it must fail: no refute(…), twin or mistake"


def names_in(tree: ast.AST) -> Iterator[str]:
    """Yield the names that code uses and imports, not those in comments and docstrings."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.keyword) and node.arg is not None:
            yield node.arg
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
        elif isinstance(node, ast.Dict):
            yield from (str(key.value) for key in node.keys if isinstance(key, ast.Constant))


def of_contracts(root: Path, path: Path) -> Iterator[str]:
    """Check that each contract is run, with a mistake that breaks it.

    Where some contracts are expected to be refuted, those are the mistakes of the others.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    calls = [node for node in nodes if ast.unparse(node.func) == "Contract"]
    given = [{each.arg: ast.unparse(each.value) for each in call.keywords} for call in calls]
    if "Outcome.REFUTED" not in {keywords.get("expected") for keywords in given}:
        for call, keywords in zip(calls, given, strict=True):
            if len(call.args) < 2 and "mistakes" not in keywords:
                contract = ast.unparse(call.args[0])
                yield f"{shown(path, root)}: no mistake must break the contract {contract}"
    used = set(names_in(tree))
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.FunctionDef)
            and CONTRACT.search(ast.get_docstring(node) or "")
            and node.name not in used
        ):
            yield f"{shown(path, root)}: nothing runs the contract {node.name}"


def of_models(root: Path, alive: Iterable[Path]) -> Iterator[str]:
    """Check that each model is run, directly or by another, and each configuration checks."""
    models = {
        path: path.read_text(encoding="utf-8")
        for folder in MODEL_FOLDERS
        for path in sorted((root / folder).rglob("*"))
        if path.suffix in MODEL_SUFFIXES and INSTALLED not in path.parts
    }
    names = {name for path in alive for name in texts_in(path)}
    found: set[Path] = set()
    while new := {path for path in models if path not in found and is_named(path, names)}:
        found |= new
        names = {name for path in new for line in EXTENDS.findall(models[path])
                 for name in re.findall(r"\w+", line)}  # fmt: skip
    yield from (f"{shown(path, root)}: nothing runs it" for path in models if path not in found)
    for path, text in models.items():
        if path.suffix == ".cfg" and not CHECKED.search(text):
            yield f"{shown(path, root)}: checks nothing: no INVARIANT and no PROPERTY"


def texts_in(path: Path) -> Iterator[str]:
    """Yield the strings that code uses, without docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    idle = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and id(node) not in idle:
            yield str(node.value)


def is_named(model: Path, names: Iterable[str]) -> bool:
    """Check whether a text is the model's name, or a path or pattern that ends in it."""
    last = {name.rpartition("/")[2] for name in names}
    return any(
        each == model.stem or fnmatch.fnmatchcase(model.name, each)
        for each in last
        if each.strip("*.")
    )


def of_table(root: Path, run: Iterable[Path]) -> Iterator[str]:
    """Check that each proof has its row, with the rules of its docstring and no others."""
    rows = table_rows(root)
    by_file = {path.relative_to(root / "proofs").as_posix(): path for path in run}
    yield from (f"{README}: {file} is no proof that is run" for file in rows if file not in by_file)
    for file, path in by_file.items():
        if file not in rows:
            yield f"{README}: has no row of {file}"
            continue
        docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        everything = " ".join(p.read_text(encoding="utf-8") for p in reached(root, [path]))
        for rule in sorted(rows[file] - rules_in(everything)):
            yield f"{README}: the row of {file} names {rule}, which the file does not"
        if not rows[file] & rules_in(docstring):
            yield f"{README}: the row of {file} names no rule of its docstring"


def table_rows(root: Path) -> Mapping[str, set[str]]:
    """Return the files of the table, and the rules of each."""
    text = (root / README).read_text(encoding="utf-8")
    return {row["file"]: rules_in(row["property"]) for row in ROW.finditer(text)}
