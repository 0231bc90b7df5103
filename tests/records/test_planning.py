"""Planning records: results in one form, errors by class, untried ones reported."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import kvref
from kvcheck.discovery import find_implementation
from kvcheck.records.planning import replay_planning
from kvspec.errors import ConfigError, FormatError, InvalidArgumentError, UnsupportedError
from kvspec.files.objects import Where
from kvspec.planning_functions import FUNCTIONS
from tests.records.changed import CACHE, PATH, RECORDS, SPEC, otherwise, written

REFERENCE = kvref.implementation()


def with_planner(planner: Any) -> Any:
    return SimpleNamespace(capabilities=REFERENCE.capabilities, planner=planner)


def test_what_was_recorded_of_each_function_passes() -> None:
    assert {record["fn"] for record in RECORDS} == set(FUNCTIONS)
    found = replay_planning(PATH, REFERENCE)
    assert (found.passed, found.mismatches) == (len(RECORDS), ())


def others(record: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the record with one thing of its output changed, where that is legal."""
    expected = FUNCTIONS[record["fn"]].expected
    for output in otherwise(record.get("output")):
        with suppress(FormatError, ConfigError):
            if expected(output, Where("")) != expected(record["output"], Where("")):
                yield {**record, "output": output}


@pytest.mark.parametrize("number", range(len(RECORDS)), ids=[each["fn"] for each in RECORDS])
def test_another_output_fails(number: int, tmp_path: Path) -> None:
    record = dict(RECORDS[number])
    wrong = list(others(record))
    if record.pop("output", None) is None:  # it checks, and has no output
        wrong = [{**record, "raises": "NotImplementedError", "message": ""}]
    assert wrong
    found = replay_planning(written(tmp_path / "p.jsonl", *wrong), REFERENCE)
    assert (found.passed, found.failed) == (0, len(wrong))
    first = found.mismatches[0]
    assert (first.what, first.line, first.call) == ("record 0", 2, record["fn"])


@pytest.mark.parametrize(
    ("raises", "error", "passes"),
    [
        ("ValueError", ConfigError("a", 1, "b"), True),
        ("ValueError", ValueError("another message"), True),
        ("ValueError", UnsupportedError("a", "b"), False),
        ("ValueError", KeyError("a"), False),
        ("NotImplementedError", UnsupportedError("a", "b"), True),
        ("NotImplementedError", ConfigError("a", 1, "b"), False),
        ("AssertionError", ConfigError("a", 1, "b"), True),
        ("AssertionError", InvalidArgumentError("a", 1, "b"), True),
        ("AssertionError", AssertionError("a"), False),
        ("AssertionError", ZeroDivisionError("a"), False),
        (None, ConfigError("a", 1, "b"), False),
    ],
)
def test_errors_are_compared_by_class(
    raises: str | None, error: Exception, passes: bool, tmp_path: Path
) -> None:
    """Compare as `except` would; for an AssertionError accept any typed error, and only those."""

    class Failing:
        def merge(self, specs: Any) -> Any:
            raise error

    outcome = {"output": SPEC} if raises is None else {"raises": raises, "message": "recorded"}
    record = {"fn": "merge", "input": {"specs": [SPEC]}, **outcome}
    found = replay_planning(written(tmp_path / "p.jsonl", record), with_planner(Failing()))
    assert (found.passed, found.failed) == (int(passes), int(not passes))


def test_an_answer_where_an_error_is_due_fails(tmp_path: Path) -> None:
    class Lenient:
        def merge(self, specs: Any) -> Any:
            return specs[0]

    record = {"fn": "merge", "input": {"specs": [SPEC]}, "raises": "ValueError", "message": "m"}
    found = replay_planning(written(tmp_path / "p.jsonl", record), with_planner(Lenient()))
    assert found.failed == 1
    assert "ValueError (recorded message: m)" in found.mismatches[0].render()


def test_quirks_are_left_out_and_failing_fast_stops(tmp_path: Path) -> None:
    record = {"fn": "merge", "input": {"specs": [SPEC]}, "output": SPEC}
    path = written(
        tmp_path / "p.jsonl",
        {**record, "quirks": ["odd"]},
        record,
        record,
        {**record, "fn": "merge"},
    )

    class Wrong:
        def merge(self, specs: Any) -> Any:
            return replace(specs[0], block_size=1)

    found = replay_planning(path, with_planner(Wrong()))
    assert (found.passed, found.failed, found.num_quirky) == (0, 3, 1)
    found = replay_planning(path, with_planner(Wrong()), fail_fast=True)
    assert (found.passed, found.failed, found.num_quirky) == (0, 1, 1)


def test_who_does_not_plan_is_not_asked_to(tmp_path: Path) -> None:
    record = {"fn": "merge", "input": {"specs": [SPEC]}, "output": SPEC}
    kvfast = find_implementation("kvfast-uncompiled")
    found = replay_planning(written(tmp_path / "p.jsonl", record, record), kvfast)
    assert (found.passed, found.failed, found.lacking, found.lacks) == (0, 0, 2, ("planning",))


@pytest.mark.parametrize(
    ("record", "field"),
    [
        ({"fn": "guess", "input": {}, "output": 1}, "fn"),
        ({"fn": "merge", "input": {"specs": [{}]}, "output": SPEC}, "input.specs[0].type"),
        ({"fn": "merge", "input": {}, "output": SPEC}, "input.specs"),
        ({"fn": "merge", "input": {"specs": [SPEC]}, "output": {}}, "output.type"),
    ],
)
def test_malformed_inputs_and_outputs_are_refused(
    record: dict[str, Any], field: str, tmp_path: Path
) -> None:
    path = written(tmp_path / "p.jsonl", record)
    with pytest.raises(FormatError) as caught:
        replay_planning(path, REFERENCE)
    assert (caught.value.line, caught.value.field) == (2, field)


@pytest.mark.parametrize(("alignment", "padded"), [(576, 4608), (None, 8640)])
def test_a_latent_in_an_input_is_padded_as_its_alignment_asks(
    alignment: int | None, padded: int, tmp_path: Path
) -> None:
    spec = {"type": "SlidingWindowMLASpec", "block_size": 4, "num_kv_heads": 1, "head_size": 256}
    spec |= {"dtype": "float32", "sliding_window": 8, "page_size_padded": 8640}
    spec |= {"alignment": alignment}
    uniform = {"type": "UniformTypeKVCacheSpecs", "block_size": 4, "kv_cache_specs": [["a", spec]]}
    groups = [{"layer_names": ["a"], "spec": uniform, "is_eagle_group": False}]
    given = {"kv_cache_configs": [{**CACHE, "kv_cache_groups": groups}]}
    built = [{**groups[0], "spec": {**spec, "head_size_v": 256, "page_size_padded": padded}}]
    answer = {**CACHE, "kv_cache_groups": built}
    record = {"fn": "generate_scheduler_kv_cache_config", "input": given, "output": answer}
    found = replay_planning(written(tmp_path / "p.jsonl", record), kvref.implementation())
    assert found.mismatches == ()
    assert found.passed == 1
