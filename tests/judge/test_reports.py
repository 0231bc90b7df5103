"""Whole reports of small runs, in each of their forms: read the difference when one changes."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections import Counter
from dataclasses import replace

import pytest

import kvref
from kvcheck.discovery import find_implementation
from kvcheck.judge.exchange import github_lines, to_junit, to_sarif
from kvcheck.judge.options import BUDGETS, Options, same_code
from kvcheck.judge.outcome import Report
from kvcheck.judge.report import text_lines, to_json
from kvcheck.judge.suite import Suite
from kvcheck.play.situations import SITUATIONS
from kvcheck.play.verdicts import Level, Violation
from kvref import ReferenceImplementation
from kvref.block_pool import BlockPool
from tests.cases import Case, cases
from tests.judge.minimal import minimal
from tests.mistakes import mistaken
from tests.programs import SCENARIOS

REFERENCE = kvref.implementation()
DIRECTED = dict(BUDGETS)["directed"]
SEEN = Counter([situation for situation in SITUATIONS if situation != "eviction"])
"""Whatever situations there are, so that a new one changes no report but the JSON."""


def run(subject: str, level: str, *rules: str) -> Report:
    made = {"alone": REFERENCE, "minimal": minimal()}.get(subject) or mistaken(subject)
    options = Options(Level(level), DIRECTED, rules, name=f"mine:{subject}", oracle="kvref")
    options = replace(options, self_checks_only=subject == "alone")
    return Suite(made, None if subject == "minimal" else REFERENCE, options).run()


def ways(*numbers: str) -> Report:
    """Return a run with these violations of one rule, the last of another."""
    made = [
        Violation("KV-POOL-6", "name", "", SCENARIOS[0], (("free", "r0", {}),) * int(number), "1")
        for number in numbers
    ]
    told = (*(replace(each, observed="2") for each in made), replace(made[0], rule="KV-POOL-11"))
    options = Options(Level.IDENTITY, DIRECTED, ("KV-POOL-6", "KV-POOL-11"))
    return Report("mine", options, told, 1, 0, {}, Counter(), 0.0, more={"KV-POOL-6": 2})


def as_lines(form: str, report: Report) -> list[str]:
    if form in ("json", "sarif"):
        content = to_json(report) if form == "json" else to_sarif(report)
        return json.dumps(content, indent=1, ensure_ascii=False).splitlines()
    if form == "github":
        return list(github_lines(report))
    if form == "brief":
        return list(text_lines(report, verbose=False))
    if form == "junit":
        root = ET.fromstring(to_junit(report))
        ET.indent(root)
        return ET.tostring(root, encoding="unicode").splitlines()
    return list(text_lines(report))


@pytest.mark.parametrize("case", cases(__file__, "reports.txt"), ids=str)
def test_a_report_is_as_it_was_read(case: Case) -> None:
    (asked,) = case.given
    form, *words = asked.split()
    report = ways(*words[1:]) if words[0] == "ways" else run(*words)
    case.expect(as_lines(form, replace(report, seconds=0.0, situations=SEEN)))


class OtherPool(BlockPool):
    """Another one by name."""


def test_the_same_code_is_one_class_with_the_same_parts() -> None:
    assert same_code(REFERENCE, kvref.implementation())
    assert not same_code(ReferenceImplementation(OtherPool), REFERENCE)
    assert not same_code(find_implementation("kvfast-uncompiled"), REFERENCE)
