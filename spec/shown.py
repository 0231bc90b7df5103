"""Find the checks that were seen to fail for a mistake of a rule, and the mistake.

Two things show it. A cell of the kill matrix: a mistake of the rule was killed by a layer, which is
one kind of check; of proofs and contracts it names the file. And a mistake that a proof or contract
plants itself, which its run must find: there a text that is the id of a rule and nothing else, in
the code of the file or in what it takes from others of proofs/.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

CELLS = "tests/kills/cells.json"
REGISTRIES = ("kvref/mistakes", "kvfast/mistakes")
# The kind of check that a layer of the matrix is; of these the table knows the files.
LAYERS = {
    "directed": "tests",
    "audit": "invariants",
    "random": "check",
    "explore": "explore",
    "traces": "records",
    "vectors": "vectors",
}
PLACED = ("proofs", "contracts")
# And files that are recorded, but are no check.
PROVING = (*PLACED, "formulas")
HEAD = re.compile(r"^(\w+) ((?:KV-[A-Z]+-[0-9]+(?:, )?)+): ", re.MULTILINE)
RULE = re.compile(r"KV-[A-Z]+-[0-9]+")

Shown = dict[tuple[str, str], str]
"""For a rule and a kind of check, or the file of a proof or contract, a mistake that it found."""


def find_shown(root: Path) -> Shown:
    """Return all checks that were seen to fail."""
    found: Shown = {}
    for path in sorted((root / "proofs").rglob("[!_]*.py")):
        for rule in planted(path, root):
            found.setdefault((rule, path.relative_to(root).as_posix()), "a mistake of its own")
    rules = registered(root)
    path = root / CELLS
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"] if path.exists() else {}
    for mistake, layers in cells.items():
        for layer, (outcome, by, *_) in layers.items():
            place = f"{by.replace('.', '/')}.py" if layer in PLACED else LAYERS.get(layer)
            if outcome == "killed" and place is not None:
                for rule in rules.get(mistake, ()):
                    found.setdefault((rule, place), mistake)
    return found


def registered(root: Path) -> dict[str, list[str]]:
    """Return the mistakes of both twins, and the rules that each breaks."""
    return {
        head[1]: head[2].split(", ")
        for folder in REGISTRIES
        for path in sorted((root / folder).glob("*"))
        if path.is_file()
        for head in HEAD.finditer(path.read_text(encoding="utf-8"))
    }


def planted(path: Path, root: Path) -> Iterator[str]:
    """Yield the rules of the mistakes that a file of proofs/ has to find."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    yield from rules_in(tree)
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("proofs."):
            names = {alias.name for alias in node.names}
            folder = root / (node.module or "").replace(".", "/")
            for name in sorted(names):
                whole = folder / f"{name}.py"
                if whole.is_file():
                    yield from rules_in(ast.parse(whole.read_text(encoding="utf-8")))
            source = folder.with_suffix(".py")
            if "/_" in source.relative_to(root).as_posix():
                yield from rules_of(source, names)


def rules_of(path: Path, names: set[str]) -> Iterator[str]:
    """Yield the rules cited in what a module defines under these names."""
    if path.is_file():
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if names & set(defined(node)):
                yield from rules_in(node)


def defined(node: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement defines."""
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        yield node.name
    elif isinstance(node, ast.Assign):
        yield from (each.id for each in node.targets if isinstance(each, ast.Name))
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        yield node.target.id


def rules_in(tree: ast.AST) -> Iterator[str]:
    """Yield the texts that are the id of a rule and nothing else."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and RULE.fullmatch(str(node.value)):
            yield str(node.value)


def runs_code(path: Path, root: Path) -> bool:
    """Return whether a file of proofs/ imports kvref or kvfast, itself or through others."""
    seen, waiting = set(), [path]
    while waiting:
        each = waiting.pop()
        if each in seen or not each.is_file():
            continue
        seen.add(each)
        for module in _imported(ast.parse(each.read_text(encoding="utf-8"))):
            if module.partition(".")[0] in ("kvref", "kvfast"):
                return True
            if module.startswith("proofs."):
                waiting.append(root / f"{module.replace('.', '/')}.py")
    return False


def _imported(tree: ast.Module) -> Iterator[str]:
    """Yield imported modules, and candidates: `a.b`, `a.b.c` for `from a.b import c`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
