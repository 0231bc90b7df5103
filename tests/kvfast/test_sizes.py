"""An object of the core is no larger than a file may be, however many files define it."""

from __future__ import annotations

import ast

from tests.source import ROOT

MAX_LINES = 400


def classes() -> dict[str, ast.ClassDef]:
    return {
        node.name: node
        for path in sorted((ROOT / "kvfast" / "_core").glob("*.py"))
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef)
    }


def lines_of(name: str, known: dict[str, ast.ClassDef]) -> int:
    if name not in known:
        return 0
    node = known[name]
    bases = (ast.unparse(base).partition("[")[0] for base in node.bases)
    return (node.end_lineno or 0) - node.lineno + 1 + sum(lines_of(base, known) for base in bases)


def test_an_object_is_at_most_400_lines() -> None:
    known = classes()
    assert len(known) > 20
    assert [name for name in known if lines_of(name, known) > MAX_LINES] == []


def test_bases_count() -> None:
    module = ast.parse("class A:\n    a = 1\n\nclass B(A):\n    b = 1\n    c = 1\n")
    known = {node.name: node for node in module.body if isinstance(node, ast.ClassDef)}
    assert lines_of("B", known) == 5
