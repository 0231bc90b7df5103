"""Profiles and the command `golden`: what a file may say, what is shipped, what is printed."""

from __future__ import annotations

import dataclasses
import json
import re
import tomllib
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from kvcheck.cli import main
from kvcheck.play.recorder import Recorder
from kvcheck.records.planning import replay_planning
from kvcheck.records.select import shipped_records
from kvcheck.records.trace import replay_trace
from kvref import ReferenceImplementation
from kvspec.errors import FormatError
from kvspec.planning import PlanningConfig
from kvspec.policy import LATER, Policy
from kvspec.profile import RECORDS_PROFILE, find_profile, read_profile, shipped_profiles
from kvspec.record_file import write_trace
from kvspec.specs import FullAttentionSpec
from tests.cases import Case, cases
from tests.commands import said_by
from tests.contract.builders import make_config
from tests.records.changed import CONFIG, MEMORY, Tape, written
from tests.records.test_planning import with_planner

HEAD = 'name = "mine"\nversion = "2"\ndescription = ""\n'


def profile_file(folder: Path, text: str) -> Path:
    path = folder / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return path


def refused(path: Path) -> FormatError:
    with pytest.raises(FormatError) as caught:
        read_profile(path)
    assert caught.value.file == str(path)
    return caught.value


@pytest.mark.rule("KV-POL-1")
def test_the_shipped_profiles_are_the_policies_of_the_package() -> None:
    assert shipped_profiles() == ("default", "vllm-0.24", "vllm-0.33")
    assert find_profile("default").policy == Policy()
    assert find_profile(RECORDS_PROFILE).policy == Policy.vllm_0_24()
    assert RECORDS_PROFILE == "vllm-0.24"


@pytest.mark.rule("KV-POL-1")
@pytest.mark.parametrize("name", shipped_profiles())
def test_a_shipped_profile_names_itself_and_every_choice(name: str) -> None:
    text = files("kvspec").joinpath("data", "profiles", f"{name}.toml").read_text("utf-8")
    assert find_profile(name).name == name
    assert find_profile(name).description
    older = set() if name == "vllm-0.33" else set(LATER) - {"lookups_counted"}
    assert set(tomllib.loads(text)["policy"]) == {
        field.name for field in dataclasses.fields(Policy) if field.name not in older
    }


@pytest.mark.rule("KV-POL-1")
def test_choices_that_are_left_out_are_those_of_the_rules(tmp_path: Path) -> None:
    path = profile_file(tmp_path, HEAD + '[policy]\nunhashed_freed_to = "back"\n')
    found = read_profile(path)
    assert (found.name, found.version, found.description) == ("mine", "2", "")
    assert found.policy == replace(Policy(), unhashed_freed_to="back")
    for text in (HEAD, HEAD + "[policy]\n"):
        assert read_profile(profile_file(tmp_path, text)).policy == Policy()


@pytest.mark.rule("KV-POL-1")
@pytest.mark.parametrize("case", cases(__file__, "profiles.txt"), ids=str)
def test_a_wrong_profile_is_refused_with_file_and_key(tmp_path: Path, case: Case) -> None:
    path = profile_file(tmp_path, "\n".join([*case.given, ""]))
    case.expect([str(refused(path)).replace(str(path), path.name)])


@pytest.mark.rule("KV-POL-1")
def test_what_is_no_toml_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bytes.toml"
    path.write_bytes(b"name = '\xff'")
    assert "UTF-8" in refused(path).problem
    refused(tmp_path)


@pytest.mark.rule("KV-POL-1")
def test_what_is_neither_shipped_nor_a_file_is_refused_with_the_names() -> None:
    with pytest.raises(FormatError, match=r"default, vllm-0\.24"):
        find_profile("vllm-0.25")


def played_with(policy: Policy, folder: Path) -> Path:
    """Write a record of a release, made under `policy` but without naming it."""
    config = make_config(4, 2, policy=policy)
    recorder = Recorder(ReferenceImplementation(), config)
    recorder.play("new_request", "r", prompt_token_ids=[1])
    recorder.play("allocate_slots", "r", num_computed_tokens=0, status="WAITING", num_new_tokens=1)
    recorder.play("free", "r")
    path = folder / "unnamed.jsonl"
    recorder.write(path)
    header, *rest = path.read_text("utf-8").splitlines()
    value = json.loads(header)
    del value["config"]["policy"]
    path.write_text("\n".join([json.dumps(value), *rest, ""]), encoding="utf-8")
    return path


def golden(*arguments: object) -> int:
    return main(["golden", *map(str, arguments), "--impl", "kvref"])


@pytest.mark.rule("KV-POL-1")
def test_a_trace_without_a_policy_is_replayed_under_the_profile(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = Policy(unhashed_freed_to="back")
    trace = played_with(policy, tmp_path)
    mine = profile_file(tmp_path, HEAD + '[policy]\nunhashed_freed_to = "back"\n')
    assert golden(trace, "--profile", mine) == 0
    assert golden(trace) == golden(trace, "--profile", "default") == 1
    assert replay_trace(trace, ReferenceImplementation(), policy=policy).passed
    capsys.readouterr()
    report = tmp_path / "report.json"
    golden(trace, "--profile", mine, "--json", report)
    assert json.loads(report.read_text("utf-8"))["profile"] == "mine"


@pytest.mark.rule("KV-POL-1")
def test_planning_records_too_are_replayed_under_the_profile(tmp_path: Path) -> None:
    record = {"fn": "estimate_max_model_len", "input": MEMORY, "output": 7}
    unnamed = {key: value for key, value in CONFIG.items() if key != "policy"}
    record["input"] = {**MEMORY, "config": unnamed}
    path = written(tmp_path / "p.jsonl", record)
    for policy in (None, Policy(), Policy(capacity_counts_null_block=False)):
        seen: list[Policy] = []
        replay_planning(path, with_planner(Asked(seen)), policy=policy)
        assert seen == [Policy.vllm_0_24() if policy is None else policy]


class Asked:
    def __init__(self, seen: list[Policy]) -> None:
        self.seen = seen

    def estimate_max_model_len(self, _: object, config: PlanningConfig, __: int) -> int:
        self.seen.append(config.policy)
        return 7


SMALL = shipped_records() / "life_of_blocks.jsonl"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tape = Tape.read(SMALL)
    records = tmp_path / "records"
    (records / "deeper").mkdir(parents=True)

    def write(name: str, altered: Tape, scenario: str) -> None:
        header = replace(altered.header, scenario=scenario)
        write_trace(records / name, header, altered.operations, {})

    wrong = {**tape.operations[5].result, "num_computed_tokens": 4}
    write("a_right.jsonl", tape, "right")
    write("b_wrong.jsonl", tape.altered(5, lambda op: replace(op, result=wrong)), "wrong")
    write("c_quirk.jsonl", tape.altered(5, lambda op: replace(op, quirks=("odd",))), "quirk")
    write("deeper/d_packed.jsonl.gz", tape, "packed")
    text = SMALL.read_text()
    (tmp_path / "late.jsonl").write_text(text.replace('"op":"free"', '"op":"fee"', 1))
    (tmp_path / "cut.jsonl").write_text("".join(text.splitlines(keepends=True)[:9]))
    (tmp_path / "empty").mkdir()
    spec = {"type": "FullAttentionSpec", "block_size": 1, "num_kv_heads": 1, "head_size": 1}
    answered = {"fn": "merge", "input": {"specs": []}, "output": {**spec, "dtype": "int8"}}
    header = {"type": "header", "format": "kv-cache-planning", "version": 1, "source": "test"}
    lines = [header, *({"id": number, **answered} for number in range(12))]
    many = "".join(json.dumps(line) + "\n" for line in lines)
    (tmp_path / "many.jsonl").write_text(many)
    return tmp_path


def test_without_a_path_the_shipped_records_are_replayed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    shipped = len(list(shipped_records().rglob("*.jsonl")))
    said = said_by("golden --impl kvref", capsys)
    assert said == [f"{shipped} passed, 0 failed", "exit code 0"]


class NoSpecs:
    def merge(self, specs: Any) -> Any:
        return 1


@pytest.mark.parametrize("case", cases(__file__, "golden.txt"), ids=str)
def test_what_is_printed_of_records(
    case: Case,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    planner = None if case.name == "who has no planner" else NoSpecs()
    monkeypatch.setattr(ReferenceImplementation, "planner", planner)
    if "lacking" in case.name:
        whole = ReferenceImplementation().capabilities
        less = replace(whole, name="small", spec_types=whole.spec_types - {FullAttentionSpec})
        monkeypatch.setattr(ReferenceImplementation, "capabilities", less)
    monkeypatch.chdir(folder)
    before = sorted(folder.rglob("*"))
    said = said_by(f"golden {case.given[0]} --impl kvref", capsys)
    case.expect(re.sub(r"dataclasses\.py:\d+", "dataclasses.py:…", line) for line in said)
    assert sorted(folder.rglob("*")) == before


def test_a_record_of_what_is_lacking_is_not_shrunk(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = ReferenceImplementation().capabilities
    less = replace(whole, name="small", spec_types=whole.spec_types - {FullAttentionSpec})
    monkeypatch.setattr(ReferenceImplementation, "capabilities", less)
    before = sorted(folder.rglob("*"))
    assert main(["shrink", str(folder / "records/b_wrong.jsonl"), "--impl", "kvref"]) == 1
    said = capsys.readouterr().err
    assert "b_wrong.jsonl: left out, small does not support FullAttentionSpec" in said
    assert sorted(folder.rglob("*")) == before
