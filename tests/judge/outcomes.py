"""Write the findings of the directed suite for every mistake, for `kvcheck.judge.outcomes`.

    python -m tests.judge.outcomes

Runs what is not known yet: new checks and new mistakes (`--again`: everything, about an hour of one
core). What is done is kept in a file beside the temporary ones, so that a run can be cut off and go
on. Writes kvcheck/data/outcomes.json.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from kvcheck.discovery import find_implementation
from kvcheck.judge.blame import Kind
from kvcheck.judge.faults import IMPLEMENTATIONS
from kvcheck.judge.outcomes import FILE, Outcomes, from_text
from kvcheck.mistakes import Mistake
from kvcheck.play.left_out import LeftOut
from kvcheck.rules.directed import EXAMPLES, example_violation
from kvcheck.rules.example import Example
from kvspec.interface import Implementation
from kvspec.policy import Policy
from tests.kills.directed import directed_checks, interrupted
from tests.mistakes import mistakes, of_kvfast
from tests.source import ROOT

PATH = ROOT / "kvcheck" / FILE
CHECKS: Mapping[str, Example] = {each.name: each for each in EXAMPLES}
"""In the order in which the suite runs them."""


def registry() -> tuple[Mistake, ...]:
    """All that are made as an implementation and that somebody can see."""
    among = (*mistakes(), *of_kvfast())
    return tuple(each for each in among if each.kind in IMPLEMENTATIONS and not each.equivalent)


def written(path: Path = PATH) -> Outcomes:
    return from_text(path.read_text("utf-8")) if path.exists() else Outcomes((), {}, {})


def to_text(outcomes: Outcomes) -> str:
    """A line per mistake: its rules, and the numbers of a kind of violation and of its checks."""
    kinds = sorted({kind for failed in outcomes.failed.values() for kind in failed.values()})
    lines = []
    for name, failed in sorted(outcomes.failed.items()):
        by_kind: dict[int, list[int]] = {}
        for check, kind in failed.items():
            by_kind.setdefault(kinds.index(kind), []).append(outcomes.checks.index(check))
        lines.append(f'"{name}":{_dumped([outcomes.rules[name], sorted(by_kind.items())])}')
    checks, named, rows = (
        ",\n".join(each) for each in (map(_dumped, outcomes.checks), map(_dumped, kinds), lines)
    )
    return f'{{"checks":[\n{checks}\n],\n"kinds":[\n{named}\n],\n"failed":{{\n{rows}\n}}}}\n'


def _dumped(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def found(name: str, subject: Implementation, oracle: Implementation) -> Kind | None:
    check = CHECKS[name]
    with interrupted():
        try:
            violation = example_violation(check, subject, Policy(), oracle)
        except LeftOut:
            return None
    return None if violation is None else violation.kind


def failures(mistake: Mistake, checks: Iterable[str]) -> dict[str, Kind]:
    subject, oracle = mistake.make(), find_implementation("kvref")
    among = {check.name for check in directed_checks(mistake.kind)}
    kinds = {name: found(name, subject, oracle) for name in checks if name in among}
    return {name: kind for name, kind in kinds.items() if kind is not None}


def completed(known: Outcomes, done: Mapping[str, Mapping[str, Kind]]) -> Outcomes:
    """Merge known findings of checks that still exist with new ones, never half a mistake."""
    rules, failed = {}, {}
    for mistake in registry():
        if mistake.id not in done and missing(mistake.id, known):
            continue
        both = {**known.failed.get(mistake.id, {}), **done.get(mistake.id, {})}
        rules[mistake.id] = mistake.rules
        failed[mistake.id] = {name: both[name] for name in CHECKS if name in both}
    return Outcomes(tuple(CHECKS), rules, failed)


def missing(mistake: str, known: Outcomes) -> list[str]:
    shown = set(known.checks) if mistake in known.failed else set()
    return [name for name in CHECKS if name not in shown]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--again", action="store_true", help="Run what is known already, too.")
    kept = Path(tempfile.gettempdir()) / "kvspec-outcomes.jsonl"
    parser.add_argument("--kept", type=Path, default=kept, help="What an interrupted run found.")
    parser.add_argument("mistakes", nargs="*", help="Only these are shown what they were not.")
    options = parser.parse_args(arguments)
    known = Outcomes((), {}, {}) if options.again else written()
    lines = options.kept.read_text("utf-8").splitlines() if options.kept.exists() else []
    done = {name: _kinds(failed) for name, failed in map(json.loads, lines)}
    with options.kept.open("a", encoding="utf-8") as file:
        for number, mistake in enumerate(registry(), 1):
            checks = missing(mistake.id, known)
            wanted = not options.mistakes or mistake.id in options.mistakes
            if checks and wanted and mistake.id not in done:
                done[mistake.id] = failures(mistake, checks)
                print(json.dumps([mistake.id, done[mistake.id]]), file=file, flush=True)
                print(f"{number} {mistake.id}: {len(done[mistake.id])} fail", file=sys.stderr)
    PATH.write_text(to_text(completed(known, done)), "utf-8")
    options.kept.unlink()
    return 0


def _kinds(failed: Mapping[str, Sequence[str]]) -> dict[str, Kind]:
    return {check: (rule, name) for check, (rule, name) in failed.items()}


if __name__ == "__main__":
    sys.exit(main())
