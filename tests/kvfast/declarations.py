"""Differences between the declarations of a .pxd file and the code of its .py file.

Cython reports none of these differences. It compiles a typed local, attribute or method that the
code lacks, and takes arguments by place, whatever they are called.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

MODULE = ""
"""The owner of functions, and of names that are in no class."""

FUNCTION = re.compile(r"c?p?def .*?(\w+)\((.*)\)[^()]*$")
NAMES = re.compile(r"cdef (?:(?:readonly|public) )?[^=]*?[\w\]] \*?(\w+(?:, \w+)*)$")


@dataclass
class Twin:
    """One side: per owner its base, the names it has, and its functions in order."""

    bases: dict[str, str] = field(default_factory=dict)
    names: dict[str, list[str]] = field(default_factory=dict)
    functions: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    locals: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    values: dict[str, int] = field(default_factory=dict)


def logical_lines(text: str) -> Iterator[str]:
    line = ""
    for part in text.splitlines():
        line += (part.strip() if line else part.rstrip()).partition("#")[0]
        if line.count("(") == line.count(")"):
            if line.strip():
                yield line
            line = ""


def parts_of(arguments: str) -> list[str]:
    return [part for part in re.split(r",\s*(?![^\[]*\])", arguments) if part]


def declared(text: str) -> Twin:
    twin, owner, typed = Twin(), MODULE, list[str]()
    for line in logical_lines(text):
        code = line.strip()
        if not line.startswith(" "):
            owner = MODULE
        if code.startswith("@cython.locals"):
            typed = re.findall(r"(\w+)\s*=", code)
        elif found := re.match(r"cdef class (\w+)(?:\((\w+)\))?:", code):
            owner = found[1]
            twin.bases[owner] = found[2] or ""
            twin.names[owner] = []
        elif found := FUNCTION.match(code):
            key = owner, found[1]
            twin.functions[key] = [re.findall(r"\w+", part)[-1] for part in parts_of(found[2])]
            twin.locals[key], typed = typed, []
        elif found := NAMES.match(code):
            twin.names.setdefault(owner, []).extend(found[1].split(", "))
        elif found := re.match(r"(\w+) = (\d+)$", code):
            twin.values[found[1]] = int(found[2])
    return twin


def written(text: str) -> Twin:
    twin = Twin()
    module = ast.parse(text)
    for owner, body in [(MODULE, module.body), *_classes(module, twin)]:
        names = twin.names.setdefault(owner, [])
        for node in body:
            if isinstance(node, ast.FunctionDef):
                arguments = node.args
                key = owner, node.name
                twin.functions[key] = [
                    each.arg for each in (*arguments.args, *arguments.kwonlyargs)
                ]
                inside = list(ast.walk(node))
                twin.locals[key] = [each.id for each in inside if isinstance(each, ast.Name)]
                if owner:
                    names += _attributes(inside)
            else:
                names += [each.id for each in _targets(node) if isinstance(each, ast.Name)]
                if isinstance(node, ast.ImportFrom):
                    names += [alias.name for alias in node.names]
                _note_value(node, twin)
    return twin


def _classes(module: ast.Module, twin: Twin) -> Iterator[tuple[str, list[ast.stmt]]]:
    for node in module.body:
        if isinstance(node, ast.ClassDef):
            bases = [ast.unparse(base).partition("[")[0] for base in node.bases]
            twin.bases[node.name] = bases[0] if bases else ""
            yield node.name, node.body


def _targets(node: ast.AST) -> Iterator[ast.expr]:
    found = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    for target in found:
        if isinstance(target, ast.expr):
            yield from target.elts if isinstance(target, ast.Tuple) else [target]


def _attributes(nodes: list[ast.AST]) -> list[str]:
    return [
        target.attr
        for node in nodes
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign)
        for target in _targets(node)
        if isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self"
    ]


def _note_value(node: ast.stmt, twin: Twin) -> None:
    value = getattr(node, "value", None)
    if isinstance(value, ast.Constant) and isinstance(value.value, int):
        twin.values.update(
            (name.id, value.value) for name in _targets(node) if isinstance(name, ast.Name)
        )


def differences(pxd: str, code: str) -> list[str]:
    """List what the .pxd declares and the .py lacks or has differently."""
    here, there = declared(pxd), written(code)
    values, bases = there.values, there.bases
    found = [f"{name} = {n}" for name, n in here.values.items() if values.get(name) != n]
    if here.values:
        return found + [f"no {name}" for name in values if name not in here.values]
    found += [
        f"class {name}({base})" for name, base in here.bases.items() if bases.get(name) != base
    ]
    for owner, names in here.names.items():
        known = there.names.get(owner, [])
        found += [f"{owner}.{name} is idle" for name in names if name not in known]
        if owner and not here.bases[owner]:  # else the base may declare it
            undeclared = dict.fromkeys(name for name in known if name not in names)
            found += [f"{owner}.{name} is not declared" for name in undeclared]
    for key, arguments in here.functions.items():
        name = ".".join(key)
        if there.functions.get(key) != arguments:
            found.append(f"{name}({', '.join(arguments)})")
            continue
        known = [*arguments, *there.locals[key]]
        found += [f"{name}: {local} is idle" for local in here.locals[key] if local not in known]
    for owner in [MODULE, *here.bases]:
        mine = [key for key in here.functions if key[0] == owner]
        if not found and mine != [key for key in there.functions if key in mine]:
            found.append("functions are in another order")
    return found
