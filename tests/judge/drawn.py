"""A hold-out: mutants of kvref that are drawn by chance, and which rule the judge blames.

Nobody wrote a check for them. Each runs as a server behind the directed suite. Right is a rule that
the docstring or a comment of the changed function names, else its class or, last, its module.
Left out are changes of words, and of a value to None, which is no slip of the pen.
"""

from __future__ import annotations

import ast
import os
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

from kvcheck.discovery import find_implementation
from kvcheck.judge.blame import suspects
from kvcheck.judge.options import Budget, Options
from kvcheck.judge.outcomes import neighbours
from kvcheck.judge.suite import Suite
from kvcheck.play.verdicts import Level
from kvcheck.remote.client import RemoteImplementation
from kvspec.errors import KVSpecError
from tests.mutation.draw import Mutant, names, prepared, shown

RULE = re.compile(r"KV-[A-Z]+-\d+")
SERVE = "from kvcheck.cli import main; main(['serve', 'kvref'])"
WITHOUT = ("planning", "tier", "fleet", "configuration", "config_checks")
"""Modules of which the directed suite of a manager plays little or nothing."""


def blamed(number: int, seed: int, folder: Path) -> Iterator[dict[str, Any]]:
    """What the suite blames for so many mutants. `folder`: keeps the mutants from run to run."""
    place = prepared("kvref", folder)
    files = names(place)
    known = {name: rules_of(place / file, Mutant(name, "").place) for name, file in files.items()}
    among = [name for name, rules in known.items() if rules and not _is_left_out(name)]
    Random(seed).shuffle(among)
    mutants = (shown(place, {name: ""})[0] for name in among)
    for mutant in islice(filter(_is_a_slip, mutants), number):
        change = f"{mutant.place}: {mutant.old} → {mutant.new}"
        rules = sorted(known[mutant.name])
        yield {"change": change, "rules": rules, **_checked(place, mutant.name)}


def rules_of(file: Path, place: str) -> frozenset[str]:
    """The rules that the function is about; `place` as `Mutant.place` has it."""
    source = file.read_text("utf-8")
    node: ast.AST = ast.parse(source)
    found = [frozenset(RULE.findall(ast.get_docstring(node) or ""))]  # type: ignore[arg-type]  # a module
    for part in place.partition(":")[2].split("."):
        inner = [each for each in ast.iter_child_nodes(node) if getattr(each, "name", "") == part]
        if not inner:
            return frozenset()
        node = inner[0]
        text = ast.get_source_segment(source, node) or ""
        if isinstance(node, ast.ClassDef):
            text = ast.get_docstring(node) or ""
        found.append(frozenset(RULE.findall(text)))
    return next((rules for rules in reversed(found) if rules), frozenset())


def _is_left_out(name: str) -> bool:
    return name.split(".")[1] in WITHOUT


def _is_a_slip(mutant: Mutant) -> bool:
    old, new = mutant.old, mutant.new
    is_words = "XX" in new or old.lower() == new.lower()
    return not is_words and new.count("None") <= old.count("None")


def _checked(place: Path, name: str) -> dict[str, Any]:
    here = place / "mutants"
    path = os.pathsep.join((str(here), str(here / "spec")))
    command = ["env", "-C", here, f"PYTHONPATH={path}", f"MUTANT_UNDER_TEST={name}"]
    words = [*command, sys.executable, "-c", SERVE]
    server = f"cmd:{shlex.join(map(str, words))}"
    asked = Options(Level.IDENTITY, Budget(0.0, 0, 0.0), name="cmd:mutant", oracle="kvref")
    try:
        subject = find_implementation(server)
    except KVSpecError:
        return {"failed": 0, "blamed": [], "starts": False}
    assert isinstance(subject, RemoteImplementation)
    with closing(subject):
        suite = Suite(subject, find_implementation("kvref"), asked)
        suite.run()
    evidence = suite.found.evidence
    failed = sum(each.kind is not None for each in evidence)
    order = suspects(evidence, neighbours(evidence)) if failed else ()
    return {"failed": failed, "blamed": [each.rule for each in order[:3]], "starts": True}
