"""Which rules apply to a subject, and the verdict of a run on each; the counts add up.

A rule is checked by the examples about it. It does not apply if each of them needs a feature that
the subject does not declare, or is of a configuration that the subject does not support. So an
example must need no more than its rule does; where one did, it was split.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from kvcheck.judge.outcome import Report, RuleOutcome, Verdict
from kvcheck.rulebook import rule_sentences
from kvcheck.rules.directed import EXAMPLES


def chosen_rules(report: Report) -> dict[str, str]:
    wanted = report.options.is_wanted
    return {rule: sentence for rule, sentence in rule_sentences().items() if wanted(rule)}


def rule_outcomes(report: Report) -> dict[str, RuleOutcome]:
    """Return the verdict on each selected rule and on each broken one."""
    broken = {violation.rule for violation in report.violations}
    lacks = _lacks_of_checks(report)
    rules = dict.fromkeys((*chosen_rules(report), *(v.rule for v in report.violations)))

    def outcome(rule: str) -> RuleOutcome:
        needed = lacks.get(rule, [])
        if rule in broken:
            return RuleOutcome(rule, Verdict.BROKEN)
        if rule in UNOBSERVABLE:
            return RuleOutcome(rule, Verdict.HIDDEN, UNOBSERVABLE[rule])
        if rule in report.in_doubt:
            reason = "some of its checks failed or ended early, which another rule explains"
            return RuleOutcome(rule, Verdict.IN_DOUBT, reason)
        if rule in report.exercised:
            return RuleOutcome(rule, Verdict.UNBROKEN)
        if needed and all(needed):
            least = min((each for each in needed if each), key=len)
            return RuleOutcome(rule, Verdict.NOT_APPLICABLE, f"needs {', '.join(sorted(least))}")
        return RuleOutcome(rule, Verdict.NOT_EXERCISED, _why_not_exercised(report))

    return {rule: outcome(rule) for rule in rules}


def counts_of(outcomes: Mapping[str, RuleOutcome]) -> dict[str, int]:
    counts = Counter(found.verdict for found in outcomes.values())
    return {verdict: counts[verdict] for verdict in Verdict}


def grouped(outcomes: Mapping[str, RuleOutcome], verdict: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for rule, each in outcomes.items():
        if each.verdict == verdict:
            found.setdefault(each.reason, []).append(rule)
    return dict(sorted(found.items(), key=lambda pair: -len(pair[1])))


def _lacks_of_checks(report: Report) -> dict[str, list[tuple[str, ...] | None]]:
    """Return for each rule and each check about it why the check was left out, or None."""
    found: dict[str, list[tuple[str, ...] | None]] = {}
    for example in EXAMPLES if report.options.budget.directed else ():
        if example.binds_at(report.options.level):
            for rule in example.rules:
                found.setdefault(rule, []).append(report.left_out.get(example.name))
    return found


def _why_not_exercised(report: Report) -> str:
    """Say why nothing that ran decided a rule that applies."""
    options = report.options
    if report.interrupted or report.gave_up or (options.fail_fast and report.violations):
        return "the run ended before its checks did"
    if not options.budget.directed:
        return "the directed checks are not part of this budget"
    if options.self_checks_only:
        return "there is nothing to compare with"
    return f"level {options.level} does not decide it"


UNOBSERVABLE: Mapping[str, str] = {
    "KV-POL-1": "A profile is a file that kvspec reads; an implementation never sees it.",
    **dict.fromkeys(
        (f"KV-FLEET-{number}" for number in (10, 11, 13, 14, 15, 16, 18)),
        "It concerns messages, but a run passes batches without messages.",
    ),
    **dict.fromkeys(
        (f"KV-HAZ-{number}" for number in range(1, 7)),
        "It concerns copies, which `kvspec hazards` checks in a record of an engine.",
    ),
    "KV-ERR-7": "A run makes one call at a time.",
    "KV-ERR-8": "A run cannot exhaust the memory of an implementation.",
}
"""Rule -> why a run cannot check it. Every other rule has an example."""
