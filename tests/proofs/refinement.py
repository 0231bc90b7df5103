"""kvfast refines kvref: which check discharges which part of which action, and what it assumes.

Modules of `proofs` say in `ASSUMES` and `GUARANTEES` what they take for granted and what they show;
for other checks `refinement.toml` does. A part is discharged by a guarantee, an assumption by one
of another check, or it is in `TRUSTED`. `python -m tests.regenerate refinement` writes
proofs/REFINEMENT.md of that.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.source import ROOT

PAGE = "proofs/REFINEMENT.md"
HEAD = Path(__file__).parent / "refinement.md"
"""Text of the page before its tables, written by hand."""

PROVED, CONFIRMED, EXPLORED, SAMPLED = "proved", "contract", "explored", "sampled"


@dataclass(frozen=True)
class Source:
    """A check: its file, its strength, what it assumes and shows."""

    path: str
    how: str
    assumes: tuple[str, ...]
    guarantees: tuple[str, ...]


_DATA = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))

OTHERS = tuple(
    Source(each["path"], each["how"], (), tuple(each["guarantees"])) for each in _DATA["others"]
)
TRUSTED: Mapping[str, str] = _DATA["trusted"]
"""Assumptions without proof, and why each is taken."""
EVERYWHERE: Sequence[str] = _DATA["everywhere"]
ACTIONS: Mapping[str, Mapping[str, Sequence[str]]] = _DATA["actions"]
"""The parts of each action, and the guarantees that discharge them."""
EXPLORING: Sequence[str] = _DATA["exploring"]


def how_of(path: str) -> str:
    """Return how strong a file of `proofs` is."""
    if path.startswith("proofs/code/contracts/"):
        return CONFIRMED
    return EXPLORED if path in EXPLORING else PROVED


def sources(root: Path = ROOT) -> tuple[Source, ...]:
    found = []
    for path in sorted((root / "proofs").rglob("[!_]*.py")):
        said = declared(path)
        if said:
            name = path.relative_to(root).as_posix()
            assumes, guarantees = said.get("ASSUMES", ()), said.get("GUARANTEES", ())
            found.append(Source(name, how_of(name), assumes, guarantees))
    return (*found, *OTHERS)


def declared(path: Path) -> dict[str, tuple[str, ...]]:
    """Read `ASSUMES` and `GUARANTEES` of a module without running it."""
    found = {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        names: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            names = node.targets
        elif isinstance(node, ast.AnnAssign):
            names = [node.target]
        for name in names:
            if ast.unparse(name) in ("ASSUMES", "GUARANTEES"):
                value = node.value  # type: ignore[attr-defined]  # both kinds have one
                found[ast.unparse(name)] = tuple(ast.literal_eval(value))
    return found


def problems(
    checks: Sequence[Source],
    trusted: Mapping[str, str] = TRUSTED,
    actions: Mapping[str, Mapping[str, Sequence[str]]] = ACTIONS,
) -> list[str]:
    shown = {each: check for check in checks for each in check.guarantees}
    assumed = {each for check in checks for each in check.assumes}
    parts = {each for action in actions.values() for part in action.values() for each in part}
    circles = [
        f"{check.path}: guarantees its own assumption: {each}"
        for check in checks
        for each in check.assumes
        if each in check.guarantees
    ]
    return [
        *circles,
        *(
            f"{check.path}: not discharged: {each}"
            for check in checks
            for each in check.assumes
            if each not in shown and each not in trusted
        ),
        *(f"a part is not discharged: {each}" for each in sorted(parts - shown.keys())),
        *(f"trusted for nothing: {each}" for each in trusted if each not in assumed),
        *(f"trusted, though it is shown: {each}" for each in trusted if each in shown),
        *(f"no such file: {c.path}" for c in checks if not (ROOT / c.path).exists()),
    ]


def by_guarantee(checks: Sequence[Source]) -> dict[str, list[Source]]:
    found: dict[str, list[Source]] = {}
    for check in checks:
        for each in check.guarantees:
            found.setdefault(each, []).append(check)
    return found


def page() -> str:
    checks = sources()
    lines = [
        HEAD.read_text(encoding="utf-8").rstrip(),
        "",
        *_actions(checks),
        *_assumptions(checks),
    ]
    return "\n".join(lines) + "\n"


def _who(shown: Mapping[str, Sequence[Source]], guarantee: str) -> str:
    return ", ".join(f"{each.how} (`{each.path}`)" for each in shown.get(guarantee, ()))


def _actions(checks: Sequence[Source]) -> Iterator[str]:
    shown = by_guarantee(checks)
    yield "## What discharges each action"
    yield ""
    yield "Of every action, besides what is below:"
    yield ""
    yield from (f"- {each}: {_who(shown, each)}" for each in EVERYWHERE)
    yield ""
    yield "| action | part | what is shown | by |"
    yield "|---|---|---|---|"
    only = 0
    for action, parts in ACTIONS.items():
        for part, guarantees in parts.items():
            hows = {each.how for name in guarantees for each in shown.get(name, ())}
            note = ""
            if hows == {SAMPLED}:
                only += 1
                note = " **only sampled**"
            said = ". ".join(f"{name[0].upper()}{name[1:]}" for name in guarantees)
            by = "; ".join(dict.fromkeys(_who(shown, name) for name in guarantees))
            yield f"| {action} | {part}{note} | {said} | {by} |"
    total = sum(map(len, ACTIONS.values()))
    yield ""
    yield f"{only} of {total} parts are only sampled, beside the small configurations."
    yield ""


def _assumptions(checks: Sequence[Source]) -> Iterator[str]:
    shown = by_guarantee(checks)
    yield "## Assumptions, and who discharges them"
    yield ""
    yield "| assumption | of | discharged by |"
    yield "|---|---|---|"
    users: dict[str, list[str]] = {}
    for check in checks:
        for each in check.assumes:
            users.setdefault(each, []).append(f"`{check.path}`")
    for each in sorted(users):
        by = _who(shown, each) or f"not proved: {TRUSTED[each]}"
        yield f"| {each} | {', '.join(users[each])} | {by} |"
