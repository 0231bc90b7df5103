"""The mutants of a file, as mutmut makes them.

Left out, beside what mutmut itself leaves alone (annotations, `len` and `isinstance`, decorated
functions but for properties, tables outside of functions): changes of texts. A text is an f-string,
a string literal with a space in it, or what a ConfigError says is allowed: what an error or an
offence says in words is no behaviour.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider
from mutmut.mutation.file_mutation import Mutation, MutationVisitor, deep_replace
from mutmut.mutation.mutators import mutation_operators
from mutmut.mutation.pragma_handling import IgnoredCode

from tests.mutation.targets import ROOT, Target

EXPLAINING = frozenset({"ConfigError", "InvalidArgumentError"})
PROPERTY = re.compile(r"^(\s*)(@(?:cached_)?property)$", re.MULTILINE)


@dataclass(frozen=True)
class Mutant:
    """One change in one function.

    `name` stays the same when other functions of the file change. `lines`: those of the file where
    the changed code stands.
    """

    path: str
    function: str
    change: str
    lines: tuple[int, int]
    file: SourceFile
    mutation: Mutation

    @property
    def name(self) -> str:
        """File, function and change in one line."""
        return f"{self.path}:{self.function}: {self.change}"

    @property
    def source(self) -> str:
        """The file with the change, decorators of properties as comments."""
        new = deep_replace(
            self.file.module, self.mutation.original_node, self.mutation.mutated_node
        )
        if not isinstance(new, cst.Module):
            raise TypeError(f"{self.name} leaves no module")
        return new.code

    def rank(self, seed: int) -> str:
        """What draws are ordered by: a change elsewhere moves no mutant."""
        return sha256(f"{seed}:{self.name}".encode()).hexdigest()


class SourceFile:
    """A file, parsed once; read when the run begins, whoever edits it meanwhile."""

    def __init__(self, path: Path) -> None:
        self.path = path.relative_to(ROOT).as_posix()
        self.text = path.read_text(encoding="utf-8")
        visible = self.text
        if ".setter" not in visible:  # which needs the property
            # mutmut leaves decorated functions alone, for a reason that we do not have.
            visible = PROPERTY.sub(r"\1# \2", visible)
        visitor = MutationVisitor(mutation_operators, IgnoredCode(set(), set(), set()))
        wrapper = MetadataWrapper(cst.parse_module(visible))
        self.module = wrapper.visit(visitor)
        self.mutations: Sequence[Mutation] = visitor.mutations
        self.positions = wrapper.resolve(PositionProvider)
        self.original = visible

    @cached_property
    def statements(self) -> list[tuple[int, int]]:
        """First and last line of each statement, of a compound one those before its body."""
        spans = []
        for node in ast.walk(ast.parse(self.original)):
            if isinstance(node, ast.stmt):
                last = node.end_lineno or node.lineno
                body = getattr(node, "body", None)
                if body:
                    last = max(node.lineno, body[0].lineno - 1)
                spans.append((node.lineno, last))
        return spans

    def lines_of(self, function: str) -> range:
        """The lines of a function, by its qualified name."""
        body: list[ast.stmt] = ast.parse(self.original).body
        found: ast.stmt | None = None
        for part in function.split("."):
            named = [node for node in body if getattr(node, "name", None) == part]
            found = named[-1]
            body = getattr(found, "body", [])
        return range(found.lineno, (found.end_lineno or found.lineno) + 1) if found else range(0)

    def mutants(self) -> Iterator[Mutant]:
        """All that count, in the order of the file."""
        functions = _names_of_functions(self.module)
        inside_texts = {*_nodes_inside_texts(self.module), *_explanations(self.module)}
        seen: Counter[str] = Counter()
        for mutation in self.mutations:
            function = functions.get(id(mutation.contained_by_top_level_function))
            if function is None or _changes_a_text(mutation, inside_texts):
                continue
            change = self._change(mutation)
            seen[f"{function}: {change}"] += 1
            number = seen[f"{function}: {change}"]
            yield Mutant(
                self.path,
                function,
                f"{change} #{number}" if number > 1 else change,
                self._lines(mutation.original_node),
                self,
                mutation,
            )

    def _change(self, mutation: Mutation) -> str:
        old, new = (
            " ".join(self.module.code_for_node(node).split())
            for node in (mutation.original_node, mutation.mutated_node)
        )
        return f"{old} → {new}"

    def _lines(self, node: cst.CSTNode) -> tuple[int, int]:
        """The lines of the statement around a node; those of the node if it has no place."""
        place = self.positions.get(node)
        if place is None:
            return (0, 0)
        first, last = place.start.line, place.end.line
        around = [span for span in self.statements if span[0] <= first <= span[1]]
        start, end = max(around, default=(first, last))
        return (start, max(end, last))


def mutants_of(target: Target) -> list[Mutant]:
    """All mutants of a target."""
    return [mutant for path in target.paths() for mutant in SourceFile(path).mutants()]


def drawn(mutants: Sequence[Mutant], number: int, seed: int) -> list[Mutant]:
    """So many of them, in the order of the draw."""
    return sorted(mutants, key=lambda mutant: mutant.rank(seed))[:number]


def is_text(node: cst.BaseExpression) -> bool:
    """An f-string, a string literal with a space in it, or what is put together from them."""
    if isinstance(node, cst.FormattedString):
        return True
    if isinstance(node, cst.SimpleString):
        return " " in node.value
    if isinstance(node, cst.ConcatenatedString | cst.BinaryOperation):
        return is_text(node.left) or is_text(node.right)
    return False


def _changes_a_text(mutation: Mutation, inside_texts: set[int]) -> bool:
    """Whether it alters a text, puts something in its place, or leaves it out."""
    old, new = mutation.original_node, mutation.mutated_node
    if id(old) in inside_texts:
        return True
    if isinstance(old, cst.Call) and isinstance(new, cst.Call):
        kept = {id(arg) for arg in new.args}
        gone = [arg.value for arg in old.args if id(arg) not in kept]
        return bool(gone) and all(is_text(v) or id(v) in inside_texts for v in gone)
    if isinstance(old, cst.Assign | cst.AnnAssign):
        return old.value is not None and is_text(old.value)
    return isinstance(old, cst.BaseExpression) and is_text(old)


def _explanations(node: cst.CSTNode) -> Iterator[int]:
    """What an error says is allowed, its third argument: a text, be it a single word."""
    for child in node.children:
        if (
            isinstance(child, cst.Call)
            and isinstance(child.func, cst.Name)
            and child.func.value in EXPLAINING
            and len(child.args) == 3
        ):
            yield id(child.args[2].value)
            yield from _nodes_inside_texts(child.args[2], inside=True)
        yield from _explanations(child)


def _nodes_inside_texts(node: cst.CSTNode, inside: bool = False) -> Iterator[int]:
    """The nodes below every text."""
    for child in node.children:
        if inside:
            yield id(child)
        text = isinstance(child, cst.BaseExpression) and is_text(child)
        yield from _nodes_inside_texts(child, inside or text)


def _names_of_functions(module: cst.Module) -> dict[int, str]:
    """Qualified names of functions and methods, by the identity of their nodes."""
    found: dict[int, str] = {}
    for node in module.body:
        if isinstance(node, cst.FunctionDef):
            found[id(node)] = node.name.value
        if isinstance(node, cst.ClassDef):
            for child in node.body.body:
                if isinstance(child, cst.FunctionDef):
                    found[id(child)] = f"{node.name.value}.{child.name.value}"
    return found
