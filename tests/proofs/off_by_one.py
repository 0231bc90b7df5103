"""Off-by-ones in the code that proofs name: `python -m tests.proofs.off_by_one PROOF…`.

Each mutant is a smallest wrong change of one expression: `<` for `<=`, one more or less, floor for
ceiling, one forgotten term. The proof runs on the changed code until a statement fails. `rule`: the
statement compares the code with a rule, so it fails too if the other twin makes the same mistake.
`twin`: only a statement that compares the twins fails: a contract, or one whose name begins with
`twins`. Of the formal model, kvref is explored until an edge is none of today's, which are the
model's.
"""

from __future__ import annotations

import ast
import importlib
import multiprocessing
import os
import resource
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import cache, partial
from multiprocessing.connection import Connection
from random import Random
from typing import Any

import click

from kvcheck.mistakes.twin import changed_package, source_of
from tests.proofs.named import EQUIVALENT, NAMED

COMPARING = "twins"
FORMAL = "models.formal"
TWINS = ("kvref", "kvfast")
CONTRACTS = "code.contracts"
UNSEEN, BY_TWIN, BY_RULE, LIMIT = "unseen", "twin", "rule", "limit"
SWAPPED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
}  # fmt: skip
NUMBERS = (ast.Name, ast.Attribute, ast.Subscript, ast.BinOp, ast.Call, ast.Constant)


class FoundError(Exception):
    """An answer differs from the one on the unchanged code."""


@dataclass(frozen=True)
class OffByOne:
    """In a function of a module the text from `start` to `end` is `new`."""

    place: str
    line: int
    start: int
    end: int
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.place}:{self.line}: {self.new} for {self.old}"

    def sources(self) -> dict[str, str]:
        """Return the text of the changed module, by name."""
        module = self.place.partition(":")[0]
        text = source_of(module).encode()
        return {module: (text[: self.start] + self.new.encode() + text[self.end :]).decode()}


def off_by_ones(place: str) -> Iterator[OffByOne]:
    module, _, name = place.partition(":")
    text = source_of(module)
    starts = [0]
    for each in text.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(each))
    for node in _expressions(_definition(ast.parse(text), name)):
        for new in _changed(node):
            end_line, end_column = node.end_lineno or 0, node.end_col_offset or 0
            yield OffByOne(
                place,
                node.lineno,
                starts[node.lineno - 1] + node.col_offset,
                starts[end_line - 1] + end_column,
                ast.unparse(node),
                f"({new})",
            )


def _definition(tree: ast.AST, name: str) -> ast.FunctionDef:
    for part in name.split("."):
        body: list[ast.stmt] = tree.body  # type: ignore[attr-defined]  # a module or a class
        tree = next(
            each
            for each in body
            if isinstance(each, (ast.FunctionDef, ast.ClassDef)) and each.name == part
        )
    assert isinstance(tree, ast.FunctionDef)
    return tree


def _expressions(node: ast.FunctionDef) -> Iterator[ast.expr]:
    """Yield the body's expressions, without annotations and texts of errors."""
    left: list[ast.AST] = list(node.body)
    while left:
        each = left.pop()
        if isinstance(each, (ast.Raise, ast.JoinedStr)):
            continue
        if isinstance(each, ast.expr):
            yield each
        annotation = getattr(each, "annotation", None)
        left += [child for child in ast.iter_child_nodes(each) if child is not annotation]


def _changed(node: ast.expr) -> Iterator[str]:
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in SWAPPED:
        swapped = ast.Compare(node.left, [SWAPPED[type(node.ops[0])]()], node.comparators)
        yield ast.unparse(ast.fix_missing_locations(swapped))
    elif isinstance(node, ast.BinOp):
        yield from _changed_sum(node)
    elif isinstance(node, ast.Call):
        yield from _changed_call(node)
    elif isinstance(node, ast.Constant) and type(node.value) is int:
        yield str(node.value + 1)


def _changed_sum(node: ast.BinOp) -> Iterator[str]:
    left, right = ast.unparse(node.left), ast.unparse(node.right)
    if isinstance(node.op, (ast.Add, ast.Sub)):
        if isinstance(node.left, NUMBERS) and isinstance(node.right, NUMBERS):
            yield left  # without the other
    elif isinstance(node.op, ast.FloorDiv):
        yield f"-(-({left}) // ({right}))"
        yield f"{ast.unparse(node)} + 1"


def _changed_call(node: ast.Call) -> Iterator[str]:
    called, arguments = ast.unparse(node.func), [ast.unparse(each) for each in node.args]
    last = called.rpartition(".")[2]
    if last == "cdiv":
        yield f"({arguments[0]}) // ({arguments[1]})"
        yield f"{ast.unparse(node)} + 1"
    elif last == "range":
        at = min(len(arguments) - 1, 1)
        for more in ("- 1", "+ 1"):
            changed = f"({arguments[at]}) {more}"
            yield f"range({', '.join([*arguments[:at], changed, *arguments[at + 1 :]])})"
    elif last in ("min", "max") and len(arguments) == 2:
        yield arguments[0]
        yield f"{ast.unparse(node)} + 1"


def outcome(proof: str, mutant: OffByOne, *, limit_s: int) -> tuple[str, str]:
    fork = multiprocessing.get_context("fork")
    if proof == FORMAL:
        todays_graphs()
    here, there = fork.Pipe(duplex=False)
    process = fork.Process(target=_send_outcome, args=(there, proof, mutant, limit_s))
    process.start()
    there.close()
    try:
        found: tuple[str, str] = here.recv()
    except EOFError:
        process.join()
        ended = process.exitcode == -signal.SIGXCPU
        found = (LIMIT, "") if ended else (BY_RULE, "the process ended")
    process.join()
    return found


def _send_outcome(there: Connection, proof: str, mutant: OffByOne, limit_s: int) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s + 1))
    only_twins: list[str] = []

    def record(self: object, name: str, expected: str, answer: str) -> None:
        if answer in (expected, "unknown") or name.startswith("mistake"):
            return
        if not name.startswith(COMPARING):
            raise FoundError(name)
        only_twins.append(name)

    try:
        with changed_package(mutant.sources()), open(os.devnull, "w") as nowhere:
            for loaded in [n for n in sys.modules if n.partition(".")[0] in ("proofs", *TWINS)]:
                del sys.modules[loaded]
            shared: Any = importlib.import_module("proofs._z3")
            planted: Any = importlib.import_module("proofs.code._planted")
            shared.Ledger._record = record
            planted.check_planted = lambda ledger, planted: None  # they are about the right code
            with redirect_stdout(nowhere):
                _run(proof, importlib.import_module(f"proofs.{proof}"), only_twins)
    except FoundError as found:
        there.send((BY_RULE, str(found)))
    except Exception as error:
        there.send((BY_RULE, f"{type(error).__name__}: {error}"))
    else:
        there.send((BY_TWIN, only_twins[0]) if only_twins else (UNSEEN, ""))


def _run(proof: str, module: Any, only_twins: list[str]) -> None:
    module.check_planted = lambda *_: None  # a proof's own mistakes are about the right code
    if proof == FORMAL:
        if found := first_other_edge():
            raise FoundError(found)
    elif proof.startswith(CONTRACTS):
        runner: Any = importlib.import_module("proofs.code.contracts._runner")
        for contract in module.CONTRACTS:
            if runner.ask(contract).outcome is runner.Outcome.REFUTED:
                only_twins.append(contract.name)
                return
    else:
        module.main()


@cache
def todays_graphs() -> dict[str, Any]:
    """Return the graph of each part of kvref that the model has."""
    search: Any = importlib.import_module("proofs.models._formal._search")
    return {name: search.explore(each) for name, each in _compared().items()}


def _compared() -> dict[str, Any]:
    bounds: Any = importlib.import_module("proofs.models._formal._bounds")
    compared: dict[str, Any] = bounds.compared()
    return compared


def first_other_edge() -> str | None:
    """Return the part of kvref that has an edge more or less than today's."""
    search: Any = importlib.import_module("proofs.models._formal._search")
    for name, bounds in _compared().items():
        graph = todays_graphs()[name]
        if search.explore(bounds, within=graph).edges != graph.edges:
            return name
    return None


@click.command()
@click.argument("proofs", nargs=-1)
@click.option("--number", default=20, show_default=True, help="Mutants drawn for each proof.")
@click.option("--seed", default=1, show_default=True)
@click.option(
    "--limit", "limit_s", default=60, show_default=True, help="Seconds of the processor for each."
)
@click.option("--jobs", default=2, show_default=True)
@click.option("--all", "shows_all", is_flag=True, help="Print those that are noticed, too.")
def command(
    proofs: tuple[str, ...], number: int, seed: int, limit_s: int, jobs: int, shows_all: bool
) -> None:
    """Draw off-by-ones of these proofs, or of all, and print how many are noticed."""
    total: Counter[tuple[str, str]] = Counter()
    click.echo(
        f"| proof | {' alone | '.join(TWINS)} alone | both | in all |\n|---|--:|--:|--:|--:|"
    )
    for proof in proofs or NAMED:
        every = [
            each
            for place in NAMED[proof]
            for each in off_by_ones(place)
            if each.old not in EQUIVALENT.get(place, {})
        ]
        drawn = Random(f"{proof}/{seed}").sample(every, min(number, len(every)))
        counts: Counter[tuple[str, str]] = Counter()
        with ThreadPoolExecutor(jobs) as executor:
            outcomes = executor.map(partial(outcome, proof, limit_s=limit_s), drawn)
            for mutant, (how, by) in zip(drawn, outcomes, strict=True):
                counts[mutant.place.partition(".")[0], how] += 1
                if shows_all or how != BY_RULE:
                    click.echo(f"  {how}: {mutant} {by}")
        total += counts
        click.echo(_row(proof, counts, len(every)))
    click.echo(_row("all", total, 0))


def _row(name: str, counts: Counter[tuple[str, str]], of: int) -> str:
    cells = []
    for twins, kinds in (*(((twin,), (BY_RULE, BY_TWIN)) for twin in TWINS), (TWINS, (BY_RULE,))):
        drawn = sum(number for (twin, _), number in counts.items() if twin in twins)
        seen = sum(counts[twin, how] for twin in twins for how in kinds)
        cells.append(f"{seen} of {drawn}" if drawn else "–")
    return f"| {name} | {' | '.join(cells)} | {of} |"


if __name__ == "__main__":
    command()
