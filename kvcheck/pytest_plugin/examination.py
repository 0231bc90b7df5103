"""The results that the tests share: a process runs each example once."""

from __future__ import annotations

from functools import cached_property

from kvcheck.judge.applying import rule_outcomes
from kvcheck.judge.findings import DIRECTED
from kvcheck.judge.options import BUDGETS, Options, judged
from kvcheck.judge.outcome import Report, RuleOutcome
from kvcheck.judge.suite import Suite
from kvcheck.judge.telling import told
from kvcheck.play.verdicts import Violation
from kvcheck.rules.directed import EXAMPLES
from kvspec.interface import Implementation

DIRECTED_ONLY = dict(BUDGETS)["directed"]


class Examination:
    """Checks one subject under one set of options; results are computed when first needed."""

    def __init__(self, subject: Implementation, oracle: Implementation, options: Options) -> None:
        self.subject, self.oracle = subject, oracle
        self.options = judged(options, subject)

    @cached_property
    def report(self) -> Report:
        """The report of all examples of this level that check a selected rule."""
        return Suite(self.subject, None, self.options).run()

    @cached_property
    def outcomes(self) -> dict[str, RuleOutcome]:
        return rule_outcomes(self.report)

    def shown_for(self, rule: str) -> Violation | None:
        """Return a violation of this rule, else what ended the first failed example about it."""
        violations = self.report.violations
        found = [violation for violation in violations if violation.rule == rule]
        shown_by = self.report.shown_by.items()
        causes = {place: cause for cause, places in shown_by for place in places}
        names = (f"{DIRECTED} {example.name}" for example in EXAMPLES if rule in example.rules)
        for cause in (causes[name] for name in names if name in causes):
            found += [violation for violation in violations if violation.cause == cause]
        return found[0] if found else None

    def told(self, violation: Violation) -> Violation:
        """Return the violation of an example with all that a report shows."""
        return told(violation, self.subject, self.oracle, self.options)
