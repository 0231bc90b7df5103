"""`kvspec redact`: nothing of the content is left, and a replay has the same results."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import kvref
from kvcheck.cli._run import run
from kvcheck.play.recorder import Recorder
from kvcheck.records.redact import redact
from kvcheck.records.select import shipped_records
from kvcheck.records.trace import replay_trace
from kvref.implementation import ReferenceImplementation
from kvspec.config import ManagerConfig
from kvspec.record import START_VERSION, Finding, Header, Operation
from kvspec.record_file import read_trace, write_trace
from tests.contract.builders import make_config
from tests.records.changed import WrongWayRound

REFERENCE = kvref.implementation()
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
    subject = ReferenceImplementation(WrongWayRound)
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
