"""The report of a run of the suite: text, JSON, and a test to paste."""

from __future__ import annotations

import shlex
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import chain, repeat
from typing import Any

from kvcheck.judge.applying import chosen_rules, counts_of, grouped, rule_outcomes
from kvcheck.judge.findings import Compared, Finding
from kvcheck.judge.happened import happened
from kvcheck.judge.options import Options
from kvcheck.judge.outcome import Report, RuleOutcome, Verdict
from kvcheck.judge.pasted import example_test, program_test
from kvcheck.play.text import operation_text
from kvcheck.play.verdicts import Violation
from kvcheck.rulebook import rule_names, rule_sentences, stated, titled
from kvcheck.view.text import config_words
from kvspec.editions import edition_of_rules, has_come

WIDTH = 80

ENCODER = frozenset({"num_encoder_tokens"})
"""Arguments that only cross attention reads."""

SHOWN_REASONS = 6
"""Most reasons shown in text for each verdict on unchecked rules; JSON has them all."""

SHOWN_SUSPECTS = 5
"""Most suspected rules shown in text; JSON has them all."""

TOLD, NAMED_FINDINGS = 3, 12
"""Violations with their story, and those with a name, where the report is not verbose."""

NAMED = 6
"""Most rules newer than the subject's edition named in text; JSON has them all."""


def text_lines(
    report: Report, remarks: Sequence[str] = (), *, verbose: bool = True
) -> Iterator[str]:
    """Yield the report as text: the verdict, every violation, and what was and was not checked.

    `remarks`: a line for each violation, such as where it was recorded. Unless `verbose`, tests to
    paste and lists of names are left out, and only the first violations have their story.
    """
    outcomes = rule_outcomes(report)
    name = report.options.name
    name += "" if report.subject in name else f" ({report.subject})"
    yield f"{name} {verdict_of(report)}"
    yield from _wrapped("", counted(outcomes, report.options.level), "")
    if report.gave_up:
        yield "stopped early      too many programs failed slowly; the rest was not run"
    if report.interrupted:
        yield "interrupted        the report covers what had run"
    if report.options.fail_fast and report.violations:
        yield "stopped early      at the first failure; the rest was not run"
    yield ""
    rows = zip(report.violations, chain(remarks, repeat("")), strict=False)
    shown = [(each, remark) for each, remark in rows if known_as(report, each) is None]
    for index, (violation, remark) in enumerate(shown):
        is_told = verbose or index < TOLD
        if not is_told and index >= NAMED_FINDINGS:
            rest = len(shown) - index
            yield f"… and {rest} more, which -v, --html and --json show"
            break
        yield from _wrapped(f"{index + 1}. ", happened(violation), "   ")
        if is_told:
            is_new = index == 0 or shown[index - 1][0].rule != violation.rule
            rule = stated(violation.rule) if is_new else titled(violation.rule)
            yield from _wrapped("  rule      ", rule)
            with_test = verbose and index == 0
            yield from _story_lines(report.options, violation, remark, with_test=with_test)
            yield f"  repeat    {to_repeat(report, violation)}"
            number, ways = way_of(violation, [each for each, _ in shown])
            if number == ways and violation.rule in report.more:
                yield f"  {more_ways(report, violation.rule)}"
            yield ""
        else:
            yield from _wrapped("  rule      ", titled(violation.rule))
    if len(shown) > TOLD and not verbose:
        yield ""
    yield from _suspect_lines(report)
    yield from _checked_lines(report, outcomes, verbose=verbose)
    yield from _expected_lines(report)


def _checked_lines(
    report: Report, outcomes: Mapping[str, RuleOutcome], *, verbose: bool
) -> Iterator[str]:
    """Yield what ran, and if `verbose` all that did not."""
    if not verbose:
        number = f"{len(report.left_out)} examples left out; " if report.left_out else ""
        ran = f"{report.directed} examples, {report.random} random programs; "
        more = "; `kvspec rule ID` shows a rule" if report.violations else ""
        yield from _wrapped("", f"{ran}{number}-v says what was not checked, and why{more}", "")
        return
    yield f"examples           {report.directed}"
    yield f"random programs    {report.random}"
    if report.left_out:
        lacks = sorted({lack for reasons in report.left_out.values() for lack in reasons})
        yield f"left out           {len(report.left_out)} examples, for lack of {', '.join(lacks)}"
    if new := new_since(report):
        named = ", ".join(new[:NAMED]) + (" …" if len(new) > NAMED else "")
        yield f"new since {report.edition}      {len(new)} rules, which were not checked: {named}"
    if report.unseen:
        yield f"not checked        {', '.join(report.unseen)}: the subject offers no snapshot"
    if report.missed and report.directed + report.random:
        yield f"never came up      {', '.join(report.missed)}"
    for verdict in (Verdict.NOT_EXERCISED, Verdict.NOT_APPLICABLE, Verdict.HIDDEN):
        yield from _reason_lines(outcomes, verdict)


def to_repeat(report: Report, violation: Violation) -> str:
    options = report.options
    command = f"kvspec check {shlex.quote(options.name)} --level {options.level}"
    if violation.is_example:
        rules = violation.program.rules or (violation.rule,)
        return f"{command} --budget directed --rules {rules[0]}"
    return f"{command} --seed {options.seed} --programs {report.random}"


def new_since(report: Report) -> list[str]:
    """Return the rules that are newer than the subject's edition and were not checked."""
    came = edition_of_rules()
    chosen = chosen_rules(report).keys() - report.exercised
    return sorted(rule for rule in chosen if not has_come(came[rule], report.edition))


def way_of(violation: Violation, among: Sequence[Violation]) -> tuple[int, int]:
    """Return the violation's number among those of its rule, from 1, and how many there are."""
    same = [id(each) for each in among if each.rule == violation.rule]
    return same.index(id(violation)) + 1, len(same)


def more_ways(report: Report, rule: str) -> str:
    return f"broken in {report.more[rule]} more ways, not shown"


def counted(outcomes: Mapping[str, RuleOutcome], level: str) -> str:
    """Say how many rules hold and are broken, and why others were not checked."""
    counts = counts_of(outcomes)
    holding, broken, doubtful = (
        counts[Verdict.UNBROKEN],
        counts[Verdict.BROKEN],
        counts[Verdict.IN_DOUBT],
    )
    if broken or doubtful:
        in_doubt = f", {doubtful} in doubt" if doubtful else ""
        said = f"Rules: {holding} hold, {broken} broken{in_doubt}."
    else:
        what = f"All {holding} rules" if holding != 1 else "The one rule"
        said = f"{what} that level {level} decides hold{'s' * (holding == 1)}."
    rest = (
        (counts[Verdict.NOT_EXERCISED], "not exercised"),
        (counts[Verdict.NOT_APPLICABLE], "need undeclared features"),
        (counts[Verdict.HIDDEN], "cannot be checked"),
    )
    others = ", ".join(f"{number} {why}" for number, why in rest if number)
    return f"{said} Not checked: {others}." if others else said


def _reason_lines(outcomes: Mapping[str, RuleOutcome], verdict: str) -> Iterator[str]:
    """Yield the rules of a verdict, a line for each of the most frequent reasons."""
    groups = list(grouped(outcomes, verdict).items())
    for reason, rules in groups[:SHOWN_REASONS]:
        named = titled(rules[0]) if len(rules) == 1 else f"{len(rules)} rules"
        yield f"{verdict:<18} {named}: {reason}"
    more = sum(len(rules) for _, rules in groups[SHOWN_REASONS:])
    if more:
        number = len(groups) - SHOWN_REASONS
        yield f"{verdict:<18} {more} rules: {number} more reasons, which --json lists by rule"


def known_as(report: Report, violation: Violation) -> Finding | None:
    """Return the known difference that explains a violation, or None."""
    return report.expected.known_as(violation.cause) if report.expected else None


def expected_rows(compared: Compared) -> Iterator[tuple[str, Finding, str]]:
    yield from (("known", each, each.reason or "no reason given") for each in compared.known)
    yield from (("new", each, "") for each in compared.new)
    ask = f"remove it from {compared.file} or run --write-expect"
    yield from (("no longer found", each, ask) for each in compared.gone)
    yield from (("not looked for", each, each.reason) for each in compared.not_seen)


def _expected_lines(report: Report) -> Iterator[str]:
    """Yield every finding with its state in the file, then the number of each state."""
    if report.expected is None:
        return
    rows = list(expected_rows(report.expected))
    for state, each, remark in rows:
        line = f"{state:<18} {titled(each.rule)}: {each.cause}, shown by {places(each)}"
        yield f"{line}: {remark}" if remark else line
    counts = Counter(state for state, _, _ in rows)
    said = ", ".join(f"{counts[state]} {state}" for state in ("known", "new", "no longer found"))
    verb = "agrees with" if report.expected.agrees else "differs from"
    yield f"{verb} {report.expected.file}: {said}"


def places(finding: Finding) -> str:
    """Name the first example or program that shows a finding, and count the others."""
    part, _, name = finding.shown_by[0].partition(" ")
    first, more = f"{part} {name!r}" if name else f"{part} programs", len(finding.shown_by) - 1
    return f"{first} and {more} more" if more else first


def _suspect_lines(report: Report) -> Iterator[str]:
    """Yield the rules that most likely explain the failures, the most likely first."""
    label = "likely causes"
    for each in report.suspects[:SHOWN_SUSPECTS]:
        number = each.num_failed + each.num_passed
        checks = f"{each.num_failed} of its {number} checks failed"
        if not number:
            checks = "a known mistake fails in the same way"
        yield from _wrapped(f"{label:<18} ", f"{titled(each.rule)}: {checks}", " " * 19)
        label = ""


def verdict_of(report: Report) -> str:
    """Return the verdict as a predicate, to follow the subject's name."""
    level = f"at level {report.options.level}"
    if report.refusal:
        return f"makes no manager of a type that it declares: {report.refusal}"
    if not report.conforms:
        return f"does not conform {level}"
    if report.options.self_checks_only:
        return f"breaks no rule {level}; self-checks only: nothing to compare with"
    return f"conforms {level}"


def violation_lines(options: Options, violation: Violation) -> Iterator[str]:
    """Yield a violation: its rule, the calls, expected and observed, and a test to paste."""
    yield from _wrapped("", stated(violation.rule), "  ")
    yield from _story_lines(options, violation, "", with_test=True)


def _story_lines(
    options: Options, violation: Violation, remark: str, *, with_test: bool
) -> Iterator[str]:
    for label, text in facts(violation, remark):
        if label == "expected":
            for number, call in enumerate(calls(violation), 1):
                mark = ">" if number == len(violation.operations) else " "
                yield from _wrapped(f"  {mark} {number:>3}  ", call, " " * 12)
        line = f"  {label:<10}"
        yield from [line + text] if label == "record" else _wrapped(line, text)
    if with_test and violation.messages:
        yield "  as messages of spec/protocol.md, with the last reply:"
        yield from (f"    {line}" for line in violation.messages)
    elif with_test:
        yield "  as a test:"
        yield from (f"    {line}".rstrip() for line in test_of(options, violation).splitlines())


def facts(violation: Violation, remark: str) -> list[tuple[str, str]]:
    """Return what there is to say about a violation besides its calls, with labels.

    The calls come before what was expected, which is always there.
    """
    expected, observed = said(violation)
    rows = (
        ("shown by", violation.program.name),
        ("with", configuration(violation) or ""),
        ("expected", expected),
        ("observed", observed),
        ("first at", violation.first_at),
        ("just as", violation.like and f"the reference with this mistake: {violation.like}"),
        ("record", remark),
    )
    return [(label, text) for label, text in rows if text or label in ("expected", "observed")]


def configuration(violation: Violation) -> str | None:
    """Describe the configuration of the program in words; None without a manager."""
    config = violation.program.config
    return config_words(config) if config.kv_cache.groups else None


def calls(violation: Violation) -> Iterator[str]:
    """Yield the operations of the program without arguments that its configuration ignores."""
    specs = violation.program.config.managed_specs
    hidden = set() if any(spec.reads_encoder for spec in specs) else ENCODER
    for name, request, arguments in violation.operations:
        given = {key: value for key, value in arguments.items() if key not in hidden}
        if not any(given.get("new_computed_blocks") or ()):
            given.pop("new_computed_blocks", None)
        yield operation_text(name, request, given)


def _wrapped(label: str, text: str, indent: str = " " * 12) -> list[str]:
    """Wrap a text to the width of a terminal, without breaking words."""
    return textwrap.wrap(
        label + text,
        WIDTH,
        subsequent_indent=indent,
        drop_whitespace=True,
        break_long_words=False,
        break_on_hyphens=False,
        replace_whitespace=True,
    ) or [label]


def said(violation: Violation) -> tuple[str, str]:
    """Return what was expected (by default the rule's sentence) and what was observed."""
    sentence = rule_sentences().get(violation.rule, "")
    return violation.expected or sentence, violation.observed or violation.detail


def test_of(options: Options, violation: Violation) -> str:
    rule, program = violation.rule, violation.program
    if violation.is_example:
        asked = (options.name, options.policy, options.oracle, str(options.level))
        return example_test(rule, program.name, *asked)
    return program_test(rule, program, options.name, options.oracle, str(options.level))


def to_json(report: Report) -> dict[str, Any]:
    """Return the report as a JSON document.

    `conforms` is null if nothing was compared and no rule is broken.
    """
    outcomes = rule_outcomes(report)
    is_open = report.conforms and report.options.self_checks_only
    return {
        "subject": report.subject,
        "implementation": report.options.name,
        "version": report.version,
        "level": str(report.options.level),
        "seed": report.options.seed,
        "conforms": None if is_open else report.conforms,
        "self_checks_only": report.options.self_checks_only,
        "violations": [_violation_json(report, violation) for violation in report.violations],
        "more": dict(report.more),
        "rules": {rule: found.verdict for rule, found in outcomes.items()},
        "reasons": {rule: found.reason for rule, found in outcomes.items() if found.reason},
        "counts": counts_of(outcomes),
        "suspects": [
            {
                "rule": each.rule,
                "suspicion": round(each.suspicion, 4),
                "failed": each.num_failed,
                "passed": each.num_passed,
            }
            for each in report.suspects
        ],
        **({} if report.expected is None else {"expected": asdict(report.expected)}),
        "interrupted": report.interrupted,
        "gave_up": report.gave_up,
        "directed": report.directed,
        "random": report.random,
        "edition": report.edition,
        "new_since_edition": new_since(report),
        "unseen": list(report.unseen),
        "left_out": {name: list(lacks) for name, lacks in report.left_out.items()},
        "situations": dict(report.situations),
        "missed": list(report.missed),
        "unobservable": {
            rule: found.reason
            for rule, found in outcomes.items()
            if found.verdict == Verdict.HIDDEN
        },
        "seconds": round(report.seconds, 3),
    }


def _violation_json(report: Report, violation: Violation) -> dict[str, Any]:
    expected, observed = said(violation)
    number, ways = way_of(violation, report.violations)
    return {
        "rule": violation.rule,
        "rule_name": rule_names().get(violation.rule),
        "sentence": rule_sentences().get(violation.rule),
        "check": violation.name,
        "cause": violation.cause,
        "number": number,
        "of": ways,
        "detail": violation.detail,
        "expected": expected,
        "observed": observed,
        "first_at": violation.first_at,
        "configuration": configuration(violation),
        "like": violation.like,
        "program": violation.program.name,
        "operations": [
            {"op": name, "req": request, "args": arguments}
            for name, request, arguments in violation.operations
        ],
        "test": test_of(report.options, violation),
        "messages": list(violation.messages),
    }
