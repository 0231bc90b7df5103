"""Known differences: a file of findings, and what another run makes of it."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from kvcheck.judge.expected import Asked, compare, expected_text, read_expected, renewed
from kvcheck.judge.findings import RANDOM, Finding
from kvcheck.judge.options import Budget, Options
from kvcheck.judge.outcome import Report
from kvcheck.play.verdicts import Level, Violation
from kvspec.errors import FormatError
from tests.cases import Case, cases, repeated
from tests.commands import kvspec
from tests.programs import SCENARIOS

ASKED = Asked("mine", "identity", "default", "kvref", ("*",))
OPTIONS = Options(Level.IDENTITY, Budget(0.0, 0))
CHECK, OTHER = "directed a window", "vectors small"
FILE = Path("known.toml")
ABOUT = ("--rules", "KV-CHUNK-*")  # one set of vectors is about these, seven about windows
RUN = ("--budget", "directed", *ABOUT)
SUBJECT = "mistake:ChunkIsMasked"
NUM_KNOWN = 4
"""Findings of the examples about it."""


def report(looked_at: str = "vectors directed", **shown_by: tuple[str, ...]) -> Report:
    one = Violation("KV-SW-1", "answers", "", SCENARIOS[0], ())
    violations = tuple(replace(one, cause=cause) for cause in shown_by)
    empty = Report("mine", OPTIONS, violations, 1, 0, {}, Counter(), 0.0)
    return replace(empty, shown_by=shown_by, looked_at=frozenset(looked_at.split()))


def known(cause: str, *shown_by: str, reason: str = "") -> Finding:
    return Finding("KV-SW-1", cause, shown_by, reason)


SHOWN_BY = {"directed": CHECK, "vectors": OTHER, "random": RANDOM}


def shown(cause: str, _by: str, *names: str) -> dict[str, tuple[str, ...]]:
    return {cause: tuple(map(SHOWN_BY.__getitem__, names))}


@pytest.mark.parametrize("case", cases(__file__, "gone.txt"), ids=str)
def test_only_what_was_looked_for_can_be_gone(case: Case) -> None:
    before, now, looked_at = case.name.split("; ")
    ((cause, checks),) = shown(*before.split()).items()
    listed = known(cause, *checks)
    run = report(looked_at.partition(" ")[2], **shown(*now.split()) if now != "nothing" else {})
    compared = compare(FILE, [listed], run)
    states = ("known", "new", "gone", "not_seen")
    said = [state for state in states if getattr(compared, state)]
    case.expect([" ".join(said)])
    assert compared.agrees == (not {"new", "gone"} & {*said})
    again = compare(FILE, renewed([listed], run), run)
    assert again.agrees, "the file that is written agrees with the run that wrote it"


def test_a_file_written_again_keeps_reasons_and_what_was_not_looked_for() -> None:
    listed = [known("a", CHECK, reason="on purpose"), known("b", OTHER), known("c", CHECK)]
    again = renewed(listed, report("directed", a=(CHECK,), d=(RANDOM,)))
    assert {each.cause: each.reason for each in again} == {"a": "on purpose", "d": "", "b": ""}


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "known.toml"
    listed = (known("a", CHECK, reason='"\\ \x7f\x00\n\U0001f600'), known("b", OTHER, RANDOM))
    path.write_text(expected_text(ASKED, listed), "utf-8")
    assert read_expected(path, ASKED) == listed
    assert read_expected(path, replace(ASKED, subject="another")) == listed


@pytest.mark.parametrize("case", cases(__file__, "damaged.txt"), ids=str)
def test_a_damaged_file_and_one_of_another_run_are_refused(case: Case, tmp_path: Path) -> None:
    before, after = map(repeated, case.name.split(" -> "))
    path = tmp_path / "known.toml"
    written = expected_text(ASKED, [known("a", CHECK), known("b", OTHER)])
    assert before in written
    path.write_text(written.replace(before, "" if after == "nothing" else after, 1), "utf-8")
    with pytest.raises(FormatError, match=r"known\.toml") as refused:
        read_expected(path, ASKED)
    assert case.said[0] in str(refused.value)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("expected")
    done = kvspec(path, "check", SUBJECT, *RUN, "--write-expect", str(FILE))
    assert done.returncode == 0, done.stderr
    text = (path / FILE).read_text("utf-8")
    (path / FILE).write_text(text.replace('reason = ""', 'reason = "on purpose"'), "utf-8")
    return path


def test_nothing_new_is_no_failure(folder: Path) -> None:
    outputs = ("--json", "r.json", "--junit", "r.xml", "--html", "r.html")
    done = kvspec(folder, "check", SUBJECT, *RUN, "--expect", str(FILE), *outputs)
    assert done.returncode == 0, done.stdout + done.stderr
    verdict, rules, *_, last = [line for line in done.stdout.splitlines() if "  " not in line]
    assert verdict.endswith("does not conform at level identity")
    assert rules.startswith("Rules: ")
    assert last == f"agrees with known.toml: {NUM_KNOWN} known, 0 new, 0 no longer found"
    assert "as a test:" not in done.stdout
    told = json.loads((folder / "r.json").read_text())["expected"]
    assert [each["reason"] for each in told["known"]] == ["on purpose"] * NUM_KNOWN
    assert (told["new"], told["gone"]) == ([], [])
    suite = ET.parse(folder / "r.xml").getroot()
    assert suite.get("failures") == "0"
    skipped = {each.get("message") for each in suite.iter("skipped")}
    assert "known: on purpose" in skipped
    assert "on purpose" in (folder / "r.html").read_text("utf-8")


def test_another_mistake_is_new_and_this_one_gone(folder: Path) -> None:
    other = "mistake:SkipsTheChunkItself"
    done = kvspec(folder, "check", other, *RUN, "--expect", str(FILE), "--junit", "r.xml")
    assert done.returncode == 1, done.stderr
    starts = [line[:19].rstrip() for line in done.stdout.splitlines()]
    assert {"new", "no longer found"} <= set(starts)
    assert "remove it from known.toml or run --write-expect" in done.stdout
    messages = [each.get("message", "") for each in ET.parse(folder / "r.xml").iter("failure")]
    assert any(message.startswith("no longer found: ") for message in messages)
    assert any(message.startswith("expected ") for message in messages)


def test_a_file_of_other_rules_cannot_be_expected(folder: Path) -> None:
    for option in ("--expect", "--write-expect"):
        before = (folder / FILE).read_bytes()
        done = kvspec(folder, "check", SUBJECT, "--budget", "directed", option, str(FILE))
        assert done.returncode == 2
        assert "field 'rules': of another run" in done.stderr
        assert (folder / FILE).read_bytes() == before
