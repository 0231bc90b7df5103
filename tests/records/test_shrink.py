"""`kvspec shrink` and `kvspec redact`: records made smaller, and without their content."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import kvref
from kvcheck.cli._run import run
from kvcheck.judge.evidence import write_record
from kvcheck.play.recorder import Recorder
from kvcheck.play.verdicts import Level, first_violation
from kvcheck.records.redact import redact
from kvcheck.records.script import perform, script_of
from kvcheck.records.select import shipped_records
from kvcheck.records.shrink import NotFailingError, Shrinker, Shrunk
from kvcheck.records.trace import replay_trace
from kvspec.config import ManagerConfig
from kvspec.errors import InvalidArgumentError
from kvspec.record import START_VERSION, Finding, Header, Operation
from kvspec.record_file import read_trace, write_trace
from tests.contract.builders import make_config
from tests.mistakes import mistaken
from tests.programs import SCENARIOS

REFERENCE = kvref.implementation()
WRONG_WAY_ROUND = mistaken("FreesFirstToLast")
LIFE = shipped_records() / "life_of_blocks.jsonl"


def shrunk(path: Path) -> Shrunk:
    return Shrinker(path, WRONG_WAY_ROUND, REFERENCE).run(30.0)


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
    subject = WRONG_WAY_ROUND
    with pytest.raises(InvalidArgumentError, match="name another"):
        Shrinker(LIFE, subject, subject).run(1.0)


def test_a_finding_stays_with_its_rule(tmp_path: Path) -> None:
    subject = WRONG_WAY_ROUND
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
    name = "mistake:FreesFirstToLast"
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


SECRET_TOKENS = tuple(range(7_000_001, 7_000_012))
SECRET_TEXTS = ("the-customers-salt", "the-customers-adapter", "sha256:picture", "request-of-acme")


def config(num_blocks: int = 12, **options: Any) -> ManagerConfig:
    return make_config(num_blocks, 2, enable_events=True, log_stats=True, **options)


def story(recorder: Recorder) -> Recorder:
    """Play two requests that share a prefix, with a salt, an adapter and an item; free one."""
    for name in (SECRET_TEXTS[3], "second"):
        recorder.play(
            "new_request",
            name,
            prompt_token_ids=list(SECRET_TOKENS[:7]),
            cache_salt=SECRET_TEXTS[0],
            lora={"name": SECRET_TEXTS[1], "id": 4711},
            mm_features=[{"identifier": SECRET_TEXTS[2], "offset": 1, "length": 2}],
        )
        recorder.admit(name, num_tokens=7)
    recorder.play("append_tokens", "second", token_ids=list(SECRET_TOKENS[7:9]))
    recorder.play(
        "allocate_slots", "second", num_computed_tokens=7, status="RUNNING", num_new_tokens=2
    )
    recorder.play("new_request", "third", prompt_token_ids=list(SECRET_TOKENS[9:]))
    recorder.play("take_events")
    recorder.play("free", SECRET_TEXTS[3])
    recorder.play("free", "second")
    recorder.play("reset_prefix_cache")
    recorder.play("take_events")
    recorder.play("make_prefix_cache_stats")
    return recorder


def recorded(path: Path, **options: Any) -> Path:
    recorder = story(Recorder(REFERENCE, config(**options), scenario="a secret of acme"))
    recorder.write(path)
    return path


def lines(path: Path) -> tuple[Header, list[Operation]]:
    header, *rest = read_trace(path)
    assert isinstance(header, Header)
    return header, [line for line in rest if isinstance(line, Operation)]


def redacted(path: Path) -> Path:
    target = path.with_suffix(".redacted")
    redact(path, target, REFERENCE)
    return target


OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"num_blocks": 80},
    {"hash_function": "sha256_cbor_64bit", "trusted_tenants": True, "int_event_hashes": True},
    {"enable_caching": False},
)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_no_token_and_no_name_is_left(options: dict[str, Any], tmp_path: Path) -> None:
    before = recorded(tmp_path / "record.jsonl", **options)
    after = redacted(before).read_text("utf-8")
    for token in (*SECRET_TOKENS, 4711):
        number = re.compile(rf"(?<![0-9a-f]){token}(?![0-9a-f])")  # not by chance inside a hash
        assert number.search(before.read_text("utf-8"))
        assert not number.search(after)
    for text in (*SECRET_TEXTS, "acme"):
        assert text in before.read_text("utf-8")
        assert text not in after
    old = set(re.findall(r'"([0-9a-f]{16,})"', before.read_text("utf-8")))
    assert lines(before)[0].none_hash.hex() in old
    states = {op.observed.state_sha256 for op in lines(before)[1]}
    assert not any(text in after for text in old - empty_states(states, before))


def empty_states(states: set[str | None], path: Path) -> set[str]:
    initial = lines(path)[0].initial
    assert initial is not None
    shown = {initial.state_sha256, *initial.state_parts.values()}
    for operation in lines(path)[1]:
        observed = operation.observed
        # Parts that hold no hash and no name: free queue and references.
        shown |= {observed.state_parts.get(name) for name in ("free_queue", "ref_cnt")}
        if observed.num_free_blocks == initial.num_free_blocks:
            shown |= {observed.state_sha256, *observed.state_parts.values()}
    return {text for text in shown if text}


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_redacted_record_passes_as_before(options: dict[str, Any], tmp_path: Path) -> None:
    path = recorded(tmp_path / "record.jsonl", **options)
    result = replay_trace(redacted(path), REFERENCE)
    assert result.mismatch is None
    assert result.compared == len(lines(path)[1])


@pytest.mark.parametrize("path", sorted(shipped_records().rglob("*.jsonl")), ids=lambda p: p.stem)
def test_shipped_records_pass_as_before(path: Path, tmp_path: Path) -> None:
    target = tmp_path / "redacted.jsonl"
    redact(path, target, REFERENCE)
    before, after = replay_trace(path, REFERENCE), replay_trace(target, REFERENCE)
    assert (after.passed, after.compared) == (before.passed, before.compared)


@pytest.mark.parametrize("num_blocks", [12, 80])
def test_a_subject_fails_it_where_it_failed_the_record(num_blocks: int, tmp_path: Path) -> None:
    before = recorded(tmp_path / "record.jsonl", num_blocks=num_blocks)
    subject = WRONG_WAY_ROUND
    failed = [replay_trace(path, subject).mismatch for path in (before, redacted(before))]
    assert failed[0] is not None
    assert failed[1] is not None
    assert failed[0].line == failed[1].line
    assert failed[0].differences[0].field == failed[1].differences[0].field


def test_a_wrong_hash_stays_wrong(tmp_path: Path) -> None:
    path = recorded(tmp_path / "record.jsonl")
    header, operations = lines(path)
    first = operations[0]
    hashes = [*first.result["block_hashes"]]
    hashes[1] = "ab" * 32
    wrong = replace(first, result={**first.result, "block_hashes": hashes})
    write_trace(path, header, [wrong, *operations[1:]], {})
    mismatch = replay_trace(redacted(path), REFERENCE).mismatch
    assert mismatch is not None
    assert mismatch.line == 2
    assert "ab" * 32 not in redacted(path).read_text("utf-8")


@pytest.mark.parametrize(
    ("prompts", "renamed"),
    [
        ([[7, 7, 7]], [[0, 1, 2]]),
        ([[1, 2, 3], [1, 9, 3]], [[0, 1, 2], [0, 3, 4]]),
        ([[1, 2, 3], [2, 3]], [[0, 1, 2], [3, 4]]),
        ([[5, 6], [5, 6, 7]], [[0, 1], [0, 1, 2]]),
    ],
)
def test_a_token_has_one_number_only_where_prompts_are_alike(
    tmp_path: Path, prompts: list[list[int]], renamed: list[list[int]]
) -> None:
    """Renumber elsewhere: frequencies would reveal which token it is."""
    recorder = Recorder(REFERENCE, config())
    for number, tokens in enumerate(prompts):
        recorder.play("new_request", f"r{number}", prompt_token_ids=tokens)
    recorder.write(tmp_path / "record.jsonl")
    _, operations = lines(redacted(tmp_path / "record.jsonl"))
    assert [each.arguments["prompt_token_ids"] for each in operations] == renamed


def test_seed_first_parent_hash_and_quirks_are_replaced(tmp_path: Path) -> None:
    path = recorded(tmp_path / "record.jsonl", hash_seed="4711-of-acme")
    header, operations = lines(path)
    operations[3] = replace(operations[3], quirks=("as acme has it",))
    write_trace(path, replace(header, quirks=("acme", "acme")), operations, {})
    target = redacted(path)
    new_header, new_operations = lines(target)
    assert new_header.config.hash_seed not in (None, "4711-of-acme")
    assert new_header.none_hash != header.none_hash
    assert new_header.seed == 0
    assert new_header.quirks == ("redacted", "redacted")
    assert new_operations[3].quirks == ("redacted",)
    assert "acme" not in target.read_text("utf-8")


def test_each_run_makes_other_hashes(tmp_path: Path) -> None:
    path = recorded(tmp_path / "record.jsonl")
    runs = []
    for key in (None, None, b"k" * 32, b"k" * 32):
        redact(path, tmp_path / "redacted.jsonl", REFERENCE, key=key)
        runs.append((tmp_path / "redacted.jsonl").read_bytes())
    assert len(set(runs)) == 3
    assert runs[2] == runs[3]


def test_a_finding_keeps_its_rule_only(tmp_path: Path) -> None:
    path = recorded(tmp_path / "record.jsonl")
    header, operations = lines(path)
    finding = Finding("KV-POOL-6", f"block of {SECRET_TOKENS[0]}", SECRET_TEXTS[0])
    operations[-1] = replace(operations[-1], finding=finding)
    write_trace(path, replace(header, version=START_VERSION), operations, {SECRET_TEXTS[1]: 1})
    _, after = lines(redacted(path))
    assert after[-1].finding == Finding("KV-POOL-6", "redacted", "redacted")
    text = redacted(path).read_text("utf-8")
    assert not any(secret in text for secret in SECRET_TEXTS)


def test_the_command_writes_the_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "redacted.jsonl"
    assert run(["redact", "life_of_blocks", "-o", str(target)]) == 0
    assert "34 operations, redacted" in capsys.readouterr().out
    assert replay_trace(target, REFERENCE).passed
    assert run(["redact", str(tmp_path / "nowhere.jsonl"), "-o", str(target)]) == 2
