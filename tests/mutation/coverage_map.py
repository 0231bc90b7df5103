"""Which tests run a line, and how long each takes: one run of the suite, measured."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pytest
from coverage import Coverage

from tests.mutation.generate import Mutant
from tests.mutation.targets import ROOT


@dataclass(frozen=True)
class Reach:
    """`tests[path][line]`: the tests that ran the line; `seconds`: what a test took."""

    tests: Mapping[str, Mapping[int, Sequence[str]]]
    seconds: Mapping[str, float]

    def of(self, mutant: Mutant) -> set[str]:
        """Tests that run the changed statement; those of the whole function where it has none."""
        by_line = self.tests.get(mutant.path, {})
        found = _over(by_line, range(mutant.lines[0], mutant.lines[1] + 1))
        return found or _over(by_line, mutant.file.lines_of(mutant.function))


def _over(by_line: Mapping[int, Sequence[str]], lines: Iterable[int]) -> set[str]:
    return {test for line in lines for test in by_line.get(line, ())}


class Measuring:
    """A plugin of pytest that notes, for each test that passes, the lines it runs."""

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = paths
        self.coverage = Coverage(
            data_file=None, include=[str(ROOT / path) for path in paths], config_file=False
        )
        self.seconds: dict[str, float] = {}
        self.failed: list[str] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self) -> Iterator[None]:
        """Measure while tests run."""
        self.coverage.start()
        try:
            return (yield)
        finally:
            self.coverage.stop()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """What the lines are noted for."""
        self.coverage.switch_context(item.nodeid)
        start = time.process_time()
        answer = yield
        self.seconds[item.nodeid] = time.process_time() - start
        return answer

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A test that fails without any mutant would kill all of them."""
        if report.failed:
            self.failed.append(report.nodeid)

    def reach(self) -> Reach:
        """What was noted."""
        data = self.coverage.get_data()
        tests: dict[str, dict[int, list[str]]] = {}
        for path in self.paths:
            by_line = data.contexts_by_lineno(str(ROOT / path))
            tests[path] = {
                line: [name for name in names if name] for line, names in by_line.items()
            }
        return Reach(tests, self.seconds)
