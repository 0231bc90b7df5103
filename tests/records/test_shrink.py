"""`kvspec shrink`: a record that fails becomes the smallest one that fails in the same way."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import kvref
from kvcheck.cli._run import run
from kvcheck.judge.evidence import write_record
from kvcheck.play.recorder import Recorder
from kvcheck.play.verdicts import Level, first_violation
from kvcheck.records.script import perform, script_of
from kvcheck.records.select import shipped_records
from kvcheck.records.shrink import NotFailingError, Shrinker, Shrunk
from kvref.block_pool import BlockPool
from kvref.implementation import ReferenceImplementation
from kvspec.errors import InvalidArgumentError
from kvspec.record import Header, Operation
from kvspec.record_file import read_trace
from tests.programs import SCENARIOS
from tests.records.changed import WrongWayRound

REFERENCE = kvref.implementation()
LIFE = shipped_records() / "life_of_blocks.jsonl"


def wrong_way_round() -> ReferenceImplementation:
    return ReferenceImplementation(WrongWayRound)


def shrunk(path: Path, pool: type[BlockPool] = WrongWayRound, seconds: float = 30.0) -> Shrunk:
    return Shrinker(path, ReferenceImplementation(pool), REFERENCE).run(seconds)


def test_a_long_record_becomes_one_request_that_is_freed(tmp_path: Path) -> None:
    result = shrunk(LIFE)
    assert len(result.before.calls) > 20
    assert [call.name for call in result.after.calls][-1] == "free"
    assert len(result.after.calls) <= 4
    assert len(result.after.request_ids) == 1
    assert result.after.num_tokens <= 8
    assert {token for call in result.after.calls for token in tokens(call.arguments)} == {0}
    assert result.after.config.kv_cache.num_blocks == 3


def tokens(arguments: object) -> list[int]:
    assert isinstance(arguments, dict)
    return [*arguments.get("prompt_token_ids", ()), *arguments.get("token_ids", ())]


def test_a_record_that_passes_has_nothing_to_shrink() -> None:
    with pytest.raises(NotFailingError, match="follows this record"):
        Shrinker(LIFE, REFERENCE, REFERENCE).run(1.0)


def test_an_oracle_that_fails_the_record_itself_is_refused() -> None:
    subject = ReferenceImplementation(WrongWayRound)
    with pytest.raises(InvalidArgumentError, match="name another"):
        Shrinker(LIFE, subject, subject).run(1.0)


def test_a_finding_stays_with_its_rule(tmp_path: Path) -> None:
    subject = wrong_way_round()
    for program in SCENARIOS:
        violation = first_violation(program, subject, Level.IDENTITY, REFERENCE)
        if violation is not None:
            break
    assert violation is not None
    write_record(violation, subject, REFERENCE, tmp_path / "found.jsonl")
    result = shrunk(tmp_path / "found.jsonl")
    assert len(result.after.calls) <= len(result.before.calls)
    finding = result.operations[-1].finding
    assert finding is not None
    assert finding.rule == violation.rule
    assert finding.expected.startswith("state.free_queue: [")
    result.write(tmp_path / "small.jsonl")
    again = [line for line in read_trace(tmp_path / "small.jsonl") if isinstance(line, Operation)]
    assert again[-1].finding == finding


@pytest.mark.parametrize("path", sorted(shipped_records().rglob("*.jsonl")), ids=lambda p: p.stem)
def test_every_shipped_record_is_a_script_that_comes_back(path: Path) -> None:
    header, *lines = read_trace(path)
    assert isinstance(header, Header)
    operations = [line for line in lines if isinstance(line, Operation)]
    if header.start is not None or header.raises is not None:
        pytest.skip("does not begin with a new manager")
    recorder = perform(script_of(header.config, operations), REFERENCE, strict=False)
    assert recorder is not None
    asked = [(op.name, op.request_id, op.result, op.raises) for op in recorder.operations]
    assert asked == [(op.name, op.request_id, op.result, op.raises) for op in operations]


def test_calls_follow_the_answers_that_they_were_given(tmp_path: Path) -> None:
    config = replace(SCENARIOS[0].config, enable_events=False)
    recorder = Recorder(REFERENCE, config)
    for name in ("first", "second"):
        recorder.play("new_request", name, prompt_token_ids=[1, 2, 3, 4, 5])
        recorder.admit(name, num_tokens=5)
    popped = recorder.play("pop_blocks_for_free", "second")
    recorder.play("free_blocks", block_ids=popped[::-1])
    script = script_of(config, recorder.operations)
    alone = replace(script, calls=tuple(c for c in script.calls if c.request_id != "first"))
    again = perform(alone, REFERENCE)
    assert again is not None
    allocation = next(op for op in again.operations if op.name == "allocate_slots")
    assert allocation.arguments["num_new_tokens"] == 5
    assert allocation.arguments["new_computed_blocks"] is None
    assert again.operations[-1].arguments == {"block_ids": [3, 2, 1]}


def test_the_command_writes_the_record_and_says_how_large_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small, report = tmp_path / "small.jsonl", tmp_path / "report.json"
    name = "tests.records.test_shrink:wrong_way_round"
    code = run(["shrink", str(LIFE), "--impl", name, "-o", str(small), "--json", str(report)])
    assert code == 0
    assert "of 28 operations" in capsys.readouterr().out
    said = json.loads(report.read_text("utf-8"))
    assert said["before"]["operations"] == 28
    assert said["after"]["operations"] == len(list(read_trace(small))) - 2
    assert run(["golden", str(small), "--impl", "kvref"]) == 0
    assert run(["golden", str(small), "--impl", name]) == 1


def test_the_command_tells_apart_what_does_not_fail_and_what_it_cannot_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["shrink", str(LIFE), "--impl", "kvref"]) == 1
    assert run(["shrink", str(tmp_path / "nowhere.jsonl"), "--impl", "kvref"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 2
