"""Records of copies: histories of reports, an engine with loads, and the same with mistakes."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

import kvfast
import kvref
from kvcheck.hazards.checker import HazardChecker
from kvcheck.hazards.lines import HazardRecordError, lines_of
from kvcheck.mistakes import Mistake
from kvcheck.rules.notation.running import outcomes_of
from kvcheck.rules.notation.shipped import written_stories
from kvspec.errors import InvalidArgumentError
from kvspec.interface import Implementation
from kvspec.policy import Policy
from tests.commands import python, said_by
from tests.examples.test_embed_lives import EMBED, Life
from tests.hazards.recorder import Recorded, watched
from tests.source import ROOT

FOLDER = ROOT / "examples/hazards"
NUM_LIVES = 40

HISTORIES = {
    "vllm-29870": "KV-HAZ-3",
    "vllm-45704": "KV-HAZ-1",
    "vllm-47282": "KV-HAZ-3",
    "vllm-52360": "KV-HAZ-3",
    "vllm-ascend-14055": "KV-HAZ-4",
}
MISTAKES = [each for each in EMBED if each.rules[0].startswith("KV-HAZ-")]


def test_the_examples_of_the_rules_run() -> None:
    stories = [story for story in written_stories() if story.is_of_copies]
    assert {story.rules[0] for story in stories} == {f"KV-HAZ-{number}" for number in range(1, 7)}
    found = outcomes_of(stories, kvref.implementation(), Policy())
    assert [outcome.place for outcome in found if outcome.violation or outcome.left_out] == []


def test_every_history_has_its_rule_and_every_file_is_a_history() -> None:
    assert HISTORIES.keys() == {path.stem for path in FOLDER.glob("*.jsonl")}


@pytest.mark.parametrize(("name", "rule"), HISTORIES.items())
def test_a_history_is_named_by_its_rule(
    name: str, rule: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "report.json"
    said = said_by(f"hazards {FOLDER / name}.jsonl --json {report}", capsys)
    assert said[-1] == "exit code 1"
    assert f"1 hazard: {rule} 1" in said[-2]
    found = json.loads(report.read_text(encoding="utf-8"))
    assert [each["rule"] for each in found] == [rule]


@pytest.mark.parametrize("name", HISTORIES)
def test_a_history_is_right_if_the_second_waits_for_the_first(name: str) -> None:
    lines = (FOLDER / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    checker = HazardChecker()
    for number, line in lines_of(lines):
        for hazard in checker.take(line, number):
            second = json.loads(lines[number - 1])
            lines[number - 1] = json.dumps({**second, "after": [hazard.first]})
            lines[number - 1] *= hazard.first is not None
    checker = HazardChecker()
    assert [each for number, line in lines_of(lines) for each in checker.take(line, number)] == []


@pytest.fixture(params=["recorded", "by the monitor"])
def make(request: pytest.FixtureRequest) -> Callable[[], Implementation]:
    if request.param == "recorded":
        return kvfast.implementation
    return lambda: watched(kvfast.implementation())


def test_an_engine_with_loads_failures_and_aborts_has_no_hazard(
    make: Callable[[], Implementation],
) -> None:
    num_lines = 0
    for seed in range(NUM_LIVES):
        life = Life(seed, make(), Recorded)
        life.live()
        assert isinstance(life.engine, Recorded)
        assert life.engine.recorder.rules == [], f"seed {seed}"
        num_lines += life.engine.recorder.num_lines
    assert num_lines > 50 * NUM_LIVES


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda one: str(one.id))
def test_a_mistake_of_the_engine_is_named_by_its_rule(
    mistake: Mistake, make: Callable[[], Implementation]
) -> None:
    first = Counter[str]()
    for seed in range(NUM_LIVES):
        with mistake.make(), suppress(AssertionError, InvalidArgumentError, KeyError):
            life = Life(seed, make(), Recorded)
            life.live()
        assert isinstance(life.engine, Recorded)
        first.update(life.engine.recorder.rules[:1])
    assert (first.most_common(1)[0][0],) == mistake.rules, first


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"op": "run", "id": "a"}', "stream"),
        ('{"op": "walk"}', "op 'walk' is none of"),
        ('{"op": "give", "request": "a", "places": "disk/3"}', "'disk/3' is no place of gpu"),
        ('{"op": "give", "request": "a", "places": "gpu/3:3-4"}', "not inside a block of 4"),
        ("{", "line 2"),
    ],
)
def test_a_line_that_is_none_is_refused_with_its_number(
    tmp_path: Path, text: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = ['{"op": "pools", "gpu": 4}', text]
    with pytest.raises(HazardRecordError, match="line 2") as caught:
        list(lines_of(lines))
    assert reason in str(caught.value)
    record = tmp_path / "record.jsonl"
    record.write_text("\n".join(lines), encoding="utf-8")
    assert said_by(f"hazards {record}", capsys)[-1] == "exit code 2"


@pytest.mark.parametrize(("option", "drawn"), [("", 5), (" -v", 6)])
def test_five_hazards_are_drawn_or_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str, drawn: int
) -> None:
    lines = [{"op": "pools", "gpu": 4}, {"op": "give", "request": "a", "places": "gpu/1"}]
    lines += [{"op": "run", "id": f"r{i}", "stream": "main", "reads": "gpu/1"} for i in range(6)]
    (tmp_path / "six.jsonl").write_text("\n".join(map(json.dumps, lines)))
    said = said_by(f"hazards {tmp_path}/six.jsonl{option}", capsys)
    assert sum(line.startswith("gpu/1") for line in said) == drawn


def test_work_that_was_never_issued_is_refused() -> None:
    (_, line), (_, ended) = lines_of(['{"op": "pools", "gpu": 4}', '{"op": "ended", "id": "x"}'])
    checker = HazardChecker()
    checker.take(line)
    with pytest.raises(InvalidArgumentError, match="id"):
        checker.take(ended)


def test_the_page_prints_what_it_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs/hazards.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```(console|python)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (_, console), (_, code) = blocks
    command, *output = console.splitlines()
    said = said_by(
        command.removeprefix("$ kvspec ").replace("examples", str(ROOT / "examples")), capsys
    )
    assert said == [*output, "exit code 1"]
    expected = re.findall(r"^# (.*)$", code, re.MULTILINE)
    assert python("-c", code, folder=tmp_path).stdout.splitlines() == expected
