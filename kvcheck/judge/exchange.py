"""The report of a run in forms that other tools read: JUnit, SARIF, annotations of GitHub."""

from __future__ import annotations

import importlib.util
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kvcheck.judge.applying import rule_outcomes
from kvcheck.judge.findings import Finding
from kvcheck.judge.happened import happened
from kvcheck.judge.outcome import Report, Verdict
from kvcheck.judge.report import known_as, places, said, to_repeat, violation_lines
from kvcheck.play.verdicts import Violation
from kvcheck.rulebook import rule_names, rule_sentences, titled


def new_violations(report: Report) -> list[Violation]:
    """Return the violations that no file of known differences explains."""
    return [each for each in report.violations if known_as(report, each) is None]


def github_lines(report: Report) -> Iterator[str]:
    """Yield a workflow command for each violation: GitHub shows it beside the run."""
    for each in new_violations(report):
        text = f"{_difference(each)}\n{to_repeat(report, each)}"
        title = f"{titled(each.rule)}: {happened(each)}"
        for mark, code in (("%", "%25"), ("\r", "%0D"), ("\n", "%0A")):
            title, text = title.replace(mark, code), text.replace(mark, code)
        yield f"::error title={title.replace(':', '%3A').replace(',', '%2C')}::{text}"


def to_sarif(report: Report) -> dict[str, Any]:
    """Return the report as SARIF 2.1.0, with a result for each violation.

    Its place is the file of the implementation, the only one that a reader can act on.
    """
    found = new_violations(report)
    rules = sorted({each.rule for each in found})
    place = {"physicalLocation": {"artifactLocation": {"uri": _file_of(report.options.name)}}}
    driver = {
        "name": "kvspec",
        "informationUri": "https://pypi.org/project/kvspec/",
        "rules": [
            {
                "id": rule,
                "name": rule_names().get(rule, rule),
                "shortDescription": {"text": rule_sentences().get(rule, rule)},
            }
            for rule in rules
        ],
    }
    results = [
        {
            "ruleId": each.rule,
            "level": "error",
            "message": {"text": f"{happened(each)}: {_difference(each)}"},
            "locations": [place],
            "partialFingerprints": {"kvspec/v1": each.cause or " ".join(each.kind)},
        }
        for each in found
    ]
    return {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "results": results}],
    }


def _difference(violation: Violation) -> str:
    return "expected {}, observed {}".format(*said(violation))


def _file_of(name: str) -> str:
    """Return the path of an implementation's file below this folder; its name for any other."""
    module = name.partition(":")[0]
    words = name.removeprefix("cmd:").split()
    spec = None
    if all(part.isidentifier() for part in module.split(".")):
        spec = importlib.util.find_spec(module)
    path = Path(words[0] if spec is None or spec.origin is None else spec.origin)
    path = path.resolve()
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else name


def to_junit(report: Report) -> bytes:
    """Return the report as JUnit XML, with one test case per rule."""
    broken: dict[str, list[Violation]] = {}
    for violation in report.violations:
        broken.setdefault(violation.rule, []).append(violation)
    found = rule_outcomes(report)
    gone: dict[str, list[Finding]] = {rule: [] for rule in found}
    for finding in report.expected.gone if report.expected else ():
        gone.setdefault(finding.rule, []).append(finding)
    suite = ET.Element("testsuite", name=f"kvspec check {report.subject} at {report.options.level}")
    for rule in gone:
        case = ET.SubElement(suite, "testcase", classname="kvspec", name=rule)
        known = [known_as(report, violation) for violation in broken.get(rule, [])]
        if all(known) and not gone[rule] and found[rule].verdict != Verdict.UNBROKEN:
            reasons = [f"known: {each.reason or each.cause}" for each in known if each]
            rest = ": ".join(filter(None, (found[rule].verdict, found[rule].reason)))
            ET.SubElement(case, "skipped", message="; ".join(reasons) or rest)
        for violation in broken.get(rule, []):
            if known_as(report, violation) is None:
                failure = ET.SubElement(case, "failure", message=_difference(violation))
                failure.text = "\n".join(violation_lines(report.options, violation))
        for finding in gone[rule]:
            message = f"no longer found: {finding.cause}, shown by {places(finding)}"
            ET.SubElement(case, "failure", message=message)
    suite.set("tests", str(len(suite)))
    for kind, name in (("failure", "failures"), ("skipped", "skipped")):
        suite.set(name, str(sum(case.find(kind) is not None for case in suite)))
    suite.set("time", f"{report.seconds:.3f}")
    text: str = ET.tostring(suite, encoding="unicode")
    shown = _NOT_IN_XML.sub(lambda found: ascii(found.group())[1:-1], text)
    return f"<?xml version='1.0' encoding='utf-8'?>\n{shown}".encode()


_NOT_IN_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML forbids, such as a terminal's escape character."""
