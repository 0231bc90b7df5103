"""A violation as a test to paste, with values written as the Python that makes them."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

from kvcheck.play.steps import Program
from kvcheck.play.text import changed_members
from kvspec.policy import Policy

WIDTH = 88
LONG = 16
"""Length from which a sequence of numbers is written by its runs."""


def program_test(rule: str, program: Program, name: str, oracle: str, level: str) -> str:
    """Return a test that fails as long as the program shows a violation at this level."""
    body = [
        f"program = {source(program)}",
        f"subject = find_implementation({source(name)})",
        f"oracle = find_implementation({source(oracle)})",
        f"assert first_violation(program, subject, Level({source(level)}), oracle) is None",
    ]
    verdicts = "kvcheck.play.verdicts"
    return _test(rule, body, {(verdicts, "Level"), (verdicts, "first_violation")}, program)


def example_test(
    rule: str, example: str, name: str, policy: Policy, oracle: str, level: str
) -> str:
    """Return a test that fails as long as the subject breaks this example at this level."""
    body = [
        f"example = find_example({source(example)})",
        f"subject = find_implementation({source(name)})",
        f"oracle = find_implementation({source(oracle)})",
        f"policy, level = {source(policy)}, Level({source(level)})",
        "assert example_violation(example, subject, policy, oracle, level) is None",
    ]
    examples = "kvcheck.rules.directed"
    names = {(examples, "example_violation"), (examples, "find_example")}
    names.add(("kvcheck.play.verdicts", "Level"))
    return _test(rule, body, names, policy)


def _test(rule: str, body: list[str], names: set[tuple[str, str]], value: object) -> str:
    imports = {("kvcheck.discovery", "find_implementation"), *names, *_classes(value)}
    title = rule.lower().replace("-", "_")
    lines = [*_import_lines(imports), "", "", f"def test_{title}():"]
    return "\n".join([*lines, *(textwrap.indent(part, "    ") for part in body)])


def source(value: object) -> str:
    """Return Python that makes this value, without default members, one per line if long."""
    if isinstance(value, Enum):
        return repr(value.value)
    if is_dataclass(value) and not isinstance(value, type):
        parts = [f"{member.name}={source(getattr(value, member.name))}" for member in _said(value)]
        return _in_brackets(f"{type(value).__name__}(", parts, ")")
    if isinstance(value, tuple) and len(value) > LONG and {type(item) for item in value} == {int}:
        return _long(value)
    if isinstance(value, tuple):
        parts = [source(item) for item in value]
        return _in_brackets("(", parts, ",)" if len(parts) == 1 else ")")
    if isinstance(value, str) and '"' not in value:
        return f'"{repr(value)[1:-1]}"'
    return repr(value)


def _long(numbers: tuple[int, ...]) -> str:
    """Write thousands of tokens by their runs, each of equal or of consecutive numbers."""
    runs: list[str] = []
    start = 0
    while start < len(numbers):
        end = start + 1
        step = numbers[end] - numbers[start] if end < len(numbers) else 0
        while step in (0, 1) and end < len(numbers) and numbers[end] == numbers[end - 1] + step:
            end += 1
        if end - start <= 3:
            end = start + 1
            runs.append(str(numbers[start]))
        elif step:
            runs.append(f"*range({numbers[start]}, {numbers[end - 1] + 1})")
        else:
            runs.append(f"*({numbers[start]},) * {end - start}")
        start = end
    return _in_brackets("(", runs, ",)" if len(runs) == 1 else ")")


def _in_brackets(opening: str, parts: list[str], closing: str) -> str:
    line = opening + ", ".join(parts) + closing
    if len(line) <= WIDTH and "\n" not in line:
        return line
    inner = "".join(textwrap.indent(part, "    ") + ",\n" for part in parts)
    return f"{opening}\n{inner}{closing.lstrip(',')}"


def _said(value: Any) -> list[Any]:
    """Return the members to write: those that the program uses, not its report's."""
    hidden = {"name", "rules"} if isinstance(value, Program) else set()
    changed = {member.name for member in changed_members(value)} - hidden
    return [member for member in fields(value) if member.name in changed]


def _classes(value: object) -> Iterator[tuple[str, str]]:
    """Yield (module, name) of every class that `source` names."""
    if isinstance(value, Policy) or (is_dataclass(value) and not isinstance(value, (type, Enum))):
        yield type(value).__module__, type(value).__name__
        for member in _said(value):
            yield from _classes(getattr(value, member.name))
    elif isinstance(value, tuple):
        for item in value:
            yield from _classes(item)


def _import_lines(imports: set[tuple[str, str]]) -> Iterator[str]:
    for module in sorted({module for module, _ in imports}):
        names = sorted(name for place, name in imports if place == module)
        line = f"from {module} import {', '.join(names)}"
        if len(line) <= WIDTH:
            yield line
        else:
            yield f"from {module} import (\n" + "".join(f"    {name},\n" for name in names) + ")"
