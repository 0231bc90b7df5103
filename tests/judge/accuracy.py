"""How often the judge blames the right rule, measured on mistakes whose rules are known.

    python -m tests.judge.accuracy                  # seconds, from kvcheck/data/outcomes.json
    python -m tests.judge.accuracy --examples       # first plants some in the examples, minutes
    python -m tests.judge.accuracy --play 10        # first plays so many at the default budget
    python -m tests.judge.accuracy --drawn 60       # first draws mutants of kvref, half an hour

Writes docs/BLAME.md. What the options find is kept in tests/judge/blamed.json.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any
from zlib import crc32

from kvcheck.discovery import find_implementation
from kvcheck.judge.blame import Evidence, suspects
from kvcheck.judge.options import BUDGETS, Budget, Options
from kvcheck.judge.outcomes import Outcomes, evidence_of, known, neighbours
from kvcheck.judge.suite import Suite
from kvcheck.play.verdicts import Level
from kvcheck.remote.client import RemoteImplementation
from tests.judge import blame_page
from tests.judge.drawn import blamed
from tests.judge.outcomes import CHECKS, registry
from tests.remote import test_cpp_example, test_rust_example
from tests.source import ROOT

PAGE = ROOT / "docs/BLAME.md"
KEPT = ROOT / "tests/judge/blamed.json"
WAYS = ("checks alone", "known mistakes without it", "all known mistakes")
RULES = {name: check.rules for name, check in CHECKS.items()}
EXAMPLES = {
    "C++": (ROOT / "examples/cpp", test_cpp_example),
    "Rust": (ROOT / "examples/rust/src", test_rust_example),
}
DIRECTED = Budget(0.0, 0, 0.0)


@dataclass(frozen=True)
class Row:
    """One mistake, and what is blamed in each of the ways; nothing where no check fails."""

    mistake: str
    rules: tuple[str, ...]
    blamed: tuple[tuple[str, ...], ...]

    def place(self, way: int, *, first_only: bool = False) -> int:
        """Of the first of its rules that is blamed, from 0."""
        rules = self.rules[:1] if first_only else self.rules
        order = self.blamed[way]
        return next((n for n, rule in enumerate(order) if rule in rules), len(RULES))


def row(mistake: str, rules: tuple[str, ...], evidence: Sequence[Evidence]) -> Row:
    """What is blamed for this evidence."""
    near = neighbours(evidence)
    others = [each for each in near if each.mistake != mistake]
    orders = (suspects(evidence, some) for some in ((), others, near))
    return Row(mistake, rules, tuple(tuple(each.rule for each in order) for order in orders))


def rows(outcomes: Outcomes) -> list[Row]:
    """All mistakes of the registry."""
    return [
        row(name, outcomes.rules[name], evidence_of(name, outcomes, RULES))
        for name in outcomes.failed
    ]


def planted(language: str) -> list[dict[str, Any]]:
    """Compile the example with each mistake, and blame a rule for what its directed checks find."""
    source, module = EXAMPLES[language]
    found = []
    for file, there, wrong, rule in module.MISTAKES:
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(shutil.copytree(source, Path(folder) / "source"))
            text = (copy / file).read_text("utf-8")
            (copy / file).write_text(text.replace(there, wrong), "utf-8")
            program = module.build(Path(folder), copy)
            subject = find_implementation(f"cmd+json:{program}")
            assert isinstance(subject, RemoteImplementation)
            with closing(subject):
                suite = Suite(
                    subject, find_implementation("kvref"), options(DIRECTED, str(program))
                )
                suite.run()
            alone, _, whole = row("", (rule,), suite.found.evidence).blamed
            failed = sum(each.kind is not None for each in suite.found.evidence)
            told = {"language": language, "rule": rule, "change": f"{file}: {there} → {wrong}"}
            found.append({**told, "failed": failed, "alone": alone[:3], "whole": whole[:3]})
            print(found[-1], flush=True)
    return found


def options(budget: Budget, name: str) -> Options:
    """At level identity, beside the reference."""
    return Options(Level.IDENTITY, budget, name=name, oracle="kvref")


def played(number: int, seed: int) -> list[dict[str, Any]]:
    """Some mistakes at the default budget, as `kvspec check` runs it."""
    found = []
    for mistake in Random(seed).sample(registry(), number):
        begin = time.process_time()
        asked = options(dict(BUDGETS)["fast"], f"mistake:{mistake.id}")
        report = Suite(mistake.make(), find_implementation("kvref"), asked).run()
        told = [each.rule for each in report.suspects[:3]]
        found.append({"mistake": mistake.id, "rules": mistake.rules, "blamed": told,
                      "first_violation": report.violations[0].rule if report.violations else "",
                      "cpu_s": round(time.process_time() - begin)})  # fmt: skip
        print(found[-1], flush=True)
    return found


def halves(measured: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """Those on which the weights of `kvcheck.judge.blame` were chosen, and the others."""
    parts: tuple[list[Row], list[Row]] = ([], [])
    for each in measured:
        parts[crc32(each.mistake.encode()[::-1]) % 2].append(each)
    return parts


def kept() -> Mapping[str, Any]:
    """What runs of the options found."""
    found: Mapping[str, Any] = json.loads(KEPT.read_text("utf-8")) if KEPT.exists() else {}
    return found


def as_lines(told: Mapping[str, Sequence[Any]]) -> str:
    """JSON with a line for each that was measured."""
    parts = []
    for key, found in told.items():
        each = ",\n".join(json.dumps(one, ensure_ascii=False) for one in found)
        parts.append(f'"{key}": [\n{each}\n]')
    return "{\n" + ",\n".join(parts) + "\n}\n"


def page(measured: Sequence[Row], told: Mapping[str, Any]) -> str:
    """docs/BLAME.md."""
    return blame_page.text(measured, told, halves(measured), WAYS, len(registry()))


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--examples", action="store_true")
    parser.add_argument("--play", type=int, default=0)
    parser.add_argument("--drawn", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(arguments)
    told = dict(kept())
    if given.examples:
        told["examples"] = [each for language in EXAMPLES for each in planted(language)]
    if given.play:
        told["played"] = played(given.play, given.seed)
    if given.drawn:
        with tempfile.TemporaryDirectory() as folder:
            told["drawn"] = []
            for each in blamed(given.drawn, given.seed, Path(folder)):
                told["drawn"].append(each)
                print(each, flush=True)
    if told:
        KEPT.write_text(as_lines(told), "utf-8")
    measured = rows(known())
    PAGE.write_text(page(measured, told), "utf-8")
    for number, way in enumerate(WAYS):
        shares = (blame_page.share(measured, number, places) for places in (1, 3))
        print(f"{way}: {', '.join(shares)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
