"""`pytest --kv-impl` as a project meets it."""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import kvref
from kvcheck import pytest_plugin
from kvcheck.judge.options import Options
from kvcheck.judge.outcome import Verdict
from kvcheck.play import watchdog
from kvcheck.play.verdicts import Level
from kvcheck.pytest_plugin.examination import DIRECTED_ONLY, Examination
from kvspec.interface import Implementation
from tests.commands import LEAKS
from tests.mistakes import mistaken
from tests.remote.servers import script
from tests.source import ROOT

pytest_plugins = "pytester"


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makepyfile(test_own="def test_own():\n    pass\n")
    return pytester


def outcomes(pytester: pytest.Pytester, *args: str) -> dict[str, str]:
    pytester.runpytest_subprocess(*args, "--junitxml=junit.xml", "-p", "no:cacheprovider")
    found = {}
    for case in ET.parse(pytester.path / "junit.xml").getroot().iter("testcase"):
        ends = {child.tag for child in case} & {"failure", "error", "skipped"}
        name = f"{case.get('classname')}::{case.get('name')}"
        found[name] = "".join(sorted(ends)) or "passed"
    return found


def named(found: dict[str, str], outcome: str) -> set[str]:
    return {name for name, ended in found.items() if ended == outcome}


def test_without_the_option_nothing_is_imported_and_nothing_collected(
    pytester: pytest.Pytester,
) -> None:
    """Import not even Hypothesis; the module itself needs the standard library alone."""
    pytester.makepyfile(
        """
        import sys

        def test_nothing_of_it_is_here(request):
            assert request.config.pluginmanager.hasplugin("kvspec")
            loaded = {name for name in sys.modules if name.startswith(("kvspec.", "kvcheck."))}
            assert loaded <= {"kvcheck.pytest_plugin"}
            assert "hypothesis" not in sys.modules
        """
    )
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=1)
    code = "import sys, kvcheck.pytest_plugin; print(*{name.split('.')[0] for name in sys.modules})"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert set(done.stdout.split()) - sys.stdlib_module_names == {"kvcheck", "__main__"}


def test_what_conforms_passes_every_test_and_xdist_changes_nothing(
    project: pytest.Pytester,
) -> None:
    options = ("--kv-impl", "kvfast", "--kv-rules", "KV-PO*")
    alone = outcomes(project, *options)
    assert named(alone, "failure") == set()
    assert len(named(alone, "passed")) > 15
    assert "kvspec::KV-POOL-4" in named(alone, "passed")
    assert named(alone, "skipped") == {"kvspec::KV-POL-1", "kvspec::KV-POL-5"}
    assert outcomes(project, *options, "-n", "2") == alone


@pytest.mark.parametrize(
    ("mistake", "rules"),
    [
        ("LeaksUnhashedBlocks", ["KV-POOL-15"]),
        ("NewestDuplicateFirst", ["KV-POOL-13"]),
        ("WindowCountsUpdates", ["KV-STAT-4", "KV-STAT-5"]),
    ],
)
def test_a_broken_twin_fails_the_tests_of_the_rules_it_breaks(
    project: pytest.Pytester, mistake: str, rules: list[str]
) -> None:
    options = ("--kv-rules", "KV-POOL-*", "--kv-rules", "KV-STAT-*")
    found = outcomes(project, "--kv-impl", f"mistake:{mistake}", *options)
    assert named(found, "failure") == {f"kvspec::{rule}" for rule in rules}


def test_a_failure_is_the_report_and_no_traceback(project: pytest.Pytester) -> None:
    done = project.runpytest_subprocess(
        "--kv-impl",
        LEAKS,
        "--kv-rules",
        "KV-POOL-*",
        "-rs",
    )
    assert done.ret == pytest.ExitCode.TESTS_FAILED
    done.stdout.fnmatch_lines(
        [
            "kvspec: kvref * at level identity, profile default",
            "KV-POOL-15 (conservation)  Each block but the null block is either*",
            "*allocate_slots(*",
            "*leaked*",
            "*def test_kv_pool_15():",
            "SKIPPED*some of its checks failed or ended early, which another rule explains",
        ]
    )
    assert "Traceback" not in done.stdout.str()
    assert "collection.py" not in done.stdout.str().partition("short test summary")[0]


def test_a_rule_tested_alone_shows_what_cut_its_program_short(project: pytest.Pytester) -> None:
    options = (
        "--kv-impl",
        LEAKS,
        "--kv-rules",
        "KV-POOL-*",
    )
    done = project.runpytest_subprocess(*options, "-k", "KV-POOL-3")
    assert done.parseoutcomes()["failed"] == 1
    assert "skipped" not in done.parseoutcomes()
    done.stdout.fnmatch_lines(["FAILED kvspec::KV-POOL-3 - KV-POOL-15 *"])


def test_a_level_and_capabilities_leave_rules_out_with_the_reason(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve = f"{sys.executable} -m kvcheck.cli serve one:OneType"
    project.makepyfile(
        one="""
        import dataclasses
        from kvref.implementation import ReferenceImplementation
        from kvspec.interface import Capabilities, Feature
        from kvspec.specs import FullAttentionSpec

        class OneType(ReferenceImplementation):
            @property
            def capabilities(self):
                return dataclasses.replace(
                    super().capabilities,
                    spec_types=frozenset({FullAttentionSpec}),
                    features=super().capabilities.features - {Feature.RESET},
                )
        """
    )
    rules = [word for rule in ("CHUNK", "POOL", "STAT") for word in ("--kv-rules", f"KV-{rule}-*")]
    options = ("--kv-level", "safety", "-rs", *rules)
    done = project.runpytest_subprocess("--kv-impl", f"cmd:{serve}", *options)
    assert done.ret == 0
    done.stdout.fnmatch_lines_random(
        [
            "SKIPPED*: needs ChunkedLocalAttentionSpec",
            "SKIPPED*: level safety does not decide it",
        ]
    )


@pytest.mark.parametrize(
    ("fault", "says"),
    [("time.sleep(60)", "no answer within 2 s"), ("sys.exit(3)", "ended with exit status 3")],
)
def test_a_server_that_hangs_or_dies_fails_a_test_in_time(
    project: pytest.Pytester, fault: str, says: str
) -> None:
    """Time out each call, start no more after a while (here a second), and let nothing that was not
    run count as passed."""
    project.makeconftest("from kvcheck.play import watchdog\nwatchdog.PATIENCE_SECONDS = 1.0")
    name = script(project.path, f"until('create_manager')\n{fault}", timeout_s=2.0)
    options = ("--kv-impl", name, "--kv-level", "safety")
    done = project.runpytest_subprocess(*options, timeout=60)
    assert done.ret == pytest.ExitCode.TESTS_FAILED
    assert done.parseoutcomes().keys() == {"failed", "skipped"}
    done.stdout.fnmatch_lines([f"*{says}*", "FAILED kvspec::KV-*"])


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("--kv-impl", "nowhere"), "unknown implementation 'nowhere'"),
        (("--kv-impl", "cmd:no-such-program"), "can't be started"),
        (("--kv-impl", "kvref", "--kv-rules", "KV-NONE-*"), "no rule matches KV-NONE-*"),
        (("--kv-impl", "kvref", "--kv-profile", "absent.toml"), "absent.toml"),
        (("--kv-impl", "kvref", "--kv-level", "high"), "invalid choice: 'high'"),
    ],
)
def test_what_cannot_be_checked_is_one_line_and_exit_code_4(
    pytester: pytest.Pytester, args: tuple[str, ...], says: str
) -> None:
    done = pytester.runpytest_subprocess(*args, "-n", "2")
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stderr.fnmatch_lines([f"*{says}*"])
    assert "Traceback" not in done.stderr.str() + done.stdout.str()


def test_a_run_that_only_skips_is_no_success(pytester: pytest.Pytester) -> None:
    """Select KV-POL-1, which is about files; a mere listing is a success."""
    options = ("--kv-impl", "kvref", "--kv-rules", "KV-POL-1")
    done = pytester.runpytest_subprocess(*options, "-n", "2")
    done.assert_outcomes(skipped=1)
    assert done.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    assert pytester.runpytest_subprocess(*options, "--collect-only").ret == pytest.ExitCode.OK


def test_without_paths_the_contract_is_all_there_is(project: pytest.Pytester) -> None:
    options = ("--kv-impl", "kvref", "--kv-rules", "KV-POOL-4")
    assert set(outcomes(project, *options)) == {"kvspec::KV-POOL-4"}
    both = {"kvspec::KV-POOL-4", "test_own::test_own"}
    assert set(outcomes(project, *options, "test_own.py")) == both
    project.makeini("[pytest]\naddopts = " + " ".join(options))
    assert set(outcomes(project)) == both


def test_the_levels_are_those_of_the_command() -> None:
    assert tuple(Level) == pytest_plugin.LEVELS


def test_no_rule_passes_where_no_manager_is_made(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        refuser="""
        from kvref.implementation import ReferenceImplementation
        from kvspec.errors import UnsupportedError

        class Refuser(ReferenceImplementation):
            def create(self, config, **options):
                raise UnsupportedError("anything", "refuser")
        """
    )
    rules = ("--kv-rules", "KV-POOL-1", "--kv-rules", "KV-SW-1")
    found = outcomes(pytester, "--kv-impl", "refuser:Refuser", "--kv-level", "safety", *rules)
    assert set(found.values()) == {"failure"}, found


REFERENCE = kvref.implementation()


def examine(subject: Implementation) -> Examination:
    return Examination(subject, REFERENCE, Options(Level.SAFETY, DIRECTED_ONLY, ("KV-POOL-*",)))


@contextmanager
def patience(seconds: float) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(watchdog, "PATIENCE_SECONDS", seconds)
        yield


def test_when_programs_failed_for_too_long_the_others_are_not_run() -> None:
    with patience(-1.0):
        found = examine(mistaken("LeaksUnhashedBlocks", audits=True))
        assert found.report.gave_up
        assert Verdict.UNBROKEN not in {outcome.verdict for outcome in found.outcomes.values()}


def test_a_rule_passes_only_if_something_about_it_came_to_its_end() -> None:
    right = examine(REFERENCE).outcomes
    assert right["KV-POOL-1"].verdict == Verdict.UNBROKEN
    assert right["KV-POOL-15"].verdict == Verdict.UNBROKEN  # checked in every program
    assert right["KV-POOL-6"].verdict == Verdict.NOT_EXERCISED
    assert right["KV-POOL-6"].reason == "level safety does not decide it"
