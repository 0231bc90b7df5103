"""The report of a run of the suite: text, JSON, JUnit, and a test to paste."""

from __future__ import annotations

import fnmatch
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from typing import Any

from kvspec.conformance.suite import Options, Report, rule_sentences
from kvspec.conformance.verdicts import Violation


def chosen_rules(report: Report) -> dict[str, str]:
    """The rules that the run was about."""
    return {
        rule: sentence
        for rule, sentence in rule_sentences().items()
        if any(fnmatch.fnmatchcase(rule, pattern) for pattern in report.options.rules)
    }


def text_lines(report: Report) -> Iterator[str]:
    """The report for a reader: every violation, then what was covered, then the verdict."""
    for violation in report.violations:
        yield from violation_lines(report.options, violation)
        yield ""
    yield f"directed programs  {report.directed}"
    yield f"random programs    {report.random}"
    if report.left_out:
        yield f"left out           {len(report.left_out)} directed: not among the capabilities"
    if report.missed:
        yield f"never came up      {', '.join(report.missed)}"
    broken = sorted({violation.rule for violation in report.violations})
    verdict = "conforms" if report.conforms else "does not conform"
    yield f"{report.subject} {verdict} at level {report.options.level}"
    yield f"{len(chosen_rules(report)) - len(broken)} rules unbroken, {len(broken)} broken"


def violation_lines(options: Options, violation: Violation) -> Iterator[str]:
    """One violation: the rule, what went wrong, the calls that lead there, and a test to paste."""
    yield f"{violation.rule}  {rule_sentences().get(violation.rule, '')}"
    yield f"  {violation.name}: {violation.detail}"
    yield f"  shown by {violation.program.name!r}, {len(violation.operations)} operations:"
    for name, request, arguments in violation.operations:
        yield f"    {operation_text(name, request, arguments)}"
    yield "  as a test:"
    yield from (f"    {line}" for line in python_test(options, violation).splitlines())


def operation_text(name: str, request: str | None, arguments: dict[str, Any]) -> str:
    """One operation as a call, members at their defaults left out."""
    shown = [f"{key}={value!r}" for key, value in arguments.items() if value or value == []]
    return f"{name}({', '.join([repr(request)] * (request is not None) + shown)})"


def python_test(options: Options, violation: Violation) -> str:
    """A test that fails as long as the violation is there, ready to paste."""
    title = violation.rule.lower().replace("-", "_")
    if violation.is_example:
        return "\n".join(
            [
                "from kvspec.conformance.examples import example_violation, find_example",
                "from kvspec.discovery import find_implementation",
                "from kvspec.policy import Policy",
                "",
                "",
                f"def test_{title}():",
                f"    example = find_example({violation.program.name!r})",
                f"    subject = find_implementation({options.name!r})",
                f"    policy = {options.policy!r}",
                "    assert example_violation(example, subject, policy) is None",
            ]
        )
    return "\n".join(
        [
            "from kvspec.config import *",
            "from kvspec.conformance.steps import *",
            "from kvspec.conformance.verdicts import Level, first_violation",
            "from kvspec.discovery import find_implementation",
            "from kvspec.policy import Policy",
            "from kvspec.specs import *",
            "",
            "",
            f"def test_{title}():",
            f"    program = {violation.program!r}",
            f"    subject = find_implementation({options.name!r})",
            f"    oracle = find_implementation({options.oracle!r})",
            f"    level = Level({str(options.level)!r})",
            "    assert first_violation(program, subject, level, oracle) is None",
        ]
    )


def to_json(report: Report) -> dict[str, Any]:
    """The report for machines."""
    sentences = rule_sentences()
    return {
        "subject": report.subject,
        "level": str(report.options.level),
        "seed": report.options.seed,
        "conforms": report.conforms,
        "violations": [
            {
                "rule": violation.rule,
                "sentence": sentences.get(violation.rule),
                "check": violation.name,
                "detail": violation.detail,
                "program": violation.program.name,
                "operations": [
                    {"op": name, "req": request, "args": arguments}
                    for name, request, arguments in violation.operations
                ],
            }
            for violation in report.violations
        ],
        "directed": report.directed,
        "random": report.random,
        "left_out": {name: list(lacks) for name, lacks in report.left_out.items()},
        "situations": dict(report.situations),
        "missed": list(report.missed),
        "seconds": round(report.seconds, 3),
    }


def to_junit(report: Report) -> bytes:
    """One test case per rule, for CI systems."""
    broken: dict[str, list[Violation]] = {}
    for violation in report.violations:
        broken.setdefault(violation.rule, []).append(violation)
    rules = {**chosen_rules(report), **dict.fromkeys(broken, "")}
    suite = ET.Element(
        "testsuite",
        name=f"kvspec check {report.subject} at {report.options.level}",
        tests=str(len(rules)),
        failures=str(len(broken)),
        time=f"{report.seconds:.3f}",
    )
    for rule in rules:
        case = ET.SubElement(suite, "testcase", classname="kvspec", name=rule)
        for violation in broken.get(rule, []):
            failure = ET.SubElement(case, "failure", message=violation.detail[:200])
            failure.text = "\n".join(
                operation_text(name, request, arguments)
                for name, request, arguments in violation.operations
            )
    text: bytes = ET.tostring(suite, encoding="utf-8", xml_declaration=True)
    return text
