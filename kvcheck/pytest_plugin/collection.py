"""The tests that pytest collects: `kvspec::KV-POOL-4` for a rule.

Every process collects the same tests in the same order and shares no results with the others, so
that pytest-xdist may distribute them in any way. Random programs are for `kvspec check`.
"""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from os import PathLike
from typing import Any, NoReturn

import pytest

from kvcheck.discovery import find_implementation
from kvcheck.judge.options import Options, level_for, same_code
from kvcheck.judge.outcome import Verdict
from kvcheck.judge.report import verdict_of, violation_lines
from kvcheck.play.verdicts import Level, Violation
from kvcheck.pytest_plugin.examination import DIRECTED_ONLY, Examination
from kvcheck.rulebook import rule_sentences
from kvspec.errors import KVSpecError
from kvspec.profile import find_profile

ORACLE = "kvref"
NAME = "kvspec"


class ContractBroken(Exception):  # noqa: N818 (it says what happened)
    """Fails a test; its text is the whole report."""


class Contract:
    """The plugin itself, registered if `--kv-impl` is given."""

    def __init__(self, examination: Examination, profile: str, *, alone: bool) -> None:
        self.examination = examination
        self.profile = profile
        self.alone = alone
        self.num_tried = 0

    @classmethod
    def of(cls, config: pytest.Config) -> Contract:
        """Make the plugin from the command line; raises UsageError for unknown names."""
        given = config.getoption
        rules = tuple(given("--kv-rules") or ("*",))
        if not any(fnmatchcase(rule, pattern) for rule in rule_sentences() for pattern in rules):
            raise pytest.UsageError(
                f"no rule matches {', '.join(rules)}; rules have names like KV-POOL-4"
            )
        try:
            subject = find_implementation(given("--kv-impl"))
            oracle = find_implementation(ORACLE)
            asked = given("--kv-level")
            level = level_for(None if asked is None else Level(asked), subject)
            options = Options(
                level,
                DIRECTED_ONLY,
                rules,
                policy=find_profile(given("--kv-profile")).policy,
                name=given("--kv-impl"),
                oracle=ORACLE,
                self_checks_only=level is not Level.SAFETY and same_code(subject, oracle),
            )
            examination = Examination(subject, oracle, options)
        except KVSpecError as error:
            raise pytest.UsageError(str(error)) from None
        return cls(examination, given("--kv-profile"), alone=_is_alone(config))

    @pytest.hookimpl
    def pytest_report_header(self) -> str:
        """Show the implementation, level, seed and profile at the top of the run."""
        options, can = self.examination.options, self.examination.subject.capabilities
        return (
            f"kvspec: {can.name} {can.version} at level {options.level}, profile {self.profile}"
            + ("; self-checks only: nothing to compare with" if options.self_checks_only else "")
        )

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self, session: pytest.Session) -> None:
        """Collect only the contract if the command line has no paths."""
        if self.alone:
            session.config.args[:] = []

    @pytest.hookimpl
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.num_tried += report.when == "call" and not report.skipped

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Exit with 5 if a run of the contract alone only skipped tests, and so checked nothing."""
        is_listing = session.config.getoption("collectonly")
        if self.alone and exitstatus == pytest.ExitCode.OK and not (self.num_tried or is_listing):
            session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(
        self, session: pytest.Session, items: list[pytest.Item]
    ) -> None:
        """Append the tests to those of the project, before other hooks, so that -k selects them."""
        tests = Tests.from_parent(session, name=NAME, nodeid=NAME, examination=self.examination)
        items.extend(session.genitems(tests))


def _is_alone(config: pytest.Config) -> bool:
    """Check whether `--kv-impl` was typed without a path.

    If it is set in `addopts`, every run of the project also keeps its own tests.
    """
    typed = any(str(argument).startswith("--kv-i") for argument in config.invocation_params.args)
    return typed and config.args_source is not pytest.Config.ArgsSource.ARGS


class Tests(pytest.Collector):
    def __init__(self, *, examination: Examination, **rest: Any) -> None:
        super().__init__(**rest)
        self.examination = examination

    def collect(self) -> Iterator[pytest.Item]:
        """Yield a test for each rule in order."""
        for rule in rule_sentences():
            if self.examination.options.is_wanted(rule):
                yield RuleTest.from_parent(self, name=rule)


class RuleTest(pytest.Item):
    """Tests whether an example breaks one rule; shows the report instead of a traceback."""

    parent: Tests

    @property
    def examination(self) -> Examination:
        return self.parent.examination

    @property
    def rules_of_the_run(self) -> frozenset[str]:
        """Rules whose own tests also run; options such as -k deselect some."""
        return frozenset(test.name for test in self.session.items if isinstance(test, RuleTest))

    def fail_with(self, violation: Violation) -> NoReturn:
        lines = violation_lines(self.examination.options, violation)
        raise ContractBroken("\n".join(lines))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Return the report, or a traceback if kvspec itself is defective."""
        if isinstance(excinfo.value, ContractBroken):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[PathLike[str] | str, int | None, str]:
        """Return a place that matches the test's id; there is no file."""
        return self.config.rootpath / NAME, 0, self.name

    def runtest(self) -> None:
        """Fail if the rule is broken or no manager is made; skip if no example ran to its end."""
        examination, found = self.examination, self.examination.outcomes[self.name]
        violation = examination.shown_for(self.name)
        # What cut an example short that is about this rule fails it, if no other test of this run
        # shows that.
        if violation is not None and (
            violation.rule == self.name or violation.rule not in self.rules_of_the_run
        ):
            self.fail_with(examination.told(violation))
        if examination.report.refusal:
            raise ContractBroken(verdict_of(examination.report))
        if found.verdict != Verdict.UNBROKEN:
            pytest.skip(found.reason)
