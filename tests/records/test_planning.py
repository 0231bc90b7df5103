"""Planning records: results in one form, errors by class, untried ones reported."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import kvref
from kvcheck.discovery import find_implementation
from kvcheck.records.planning import replay_planning
from kvspec.codec import (
    decode_groups,
    decode_kv_cache,
    decode_layers,
    decode_planning_config,
    decode_spec,
)
from kvspec.errors import ConfigError, FormatError, InvalidArgumentError, UnsupportedError
from kvspec.planning_functions import FUNCTIONS
from tests.records.planner_tape import (
    ANSWERS,
    CACHE,
    CONFIG,
    DECODERS,
    GROUPS,
    HEADER,
    HERE,
    LAYERS,
    SPEC,
    TapePlanner,
    tape_of,
)


def with_planner(planner: Any) -> Any:
    return SimpleNamespace(capabilities=kvref.implementation().capabilities, planner=planner)


def written(path: Path, *records: dict[str, Any]) -> Path:
    numbered = [{"id": position, **record} for position, record in enumerate(records)]
    path.write_text("".join(json.dumps(line) + "\n" for line in [HEADER, *numbered]))
    return path


def test_every_function_has_a_case_here() -> None:
    assert set(ANSWERS) == set(FUNCTIONS) == set(DECODERS)


@pytest.mark.parametrize("function", ANSWERS)
def test_the_recorded_answer_passes_and_another_fails(function: str, tmp_path: Path) -> None:
    """Ignore defaults that a record leaves out; anything else is a difference."""
    given, answer, other = ANSWERS[function]
    path = written(tmp_path / "p.jsonl", {"fn": function, "input": given, "output": answer})
    planner = tape_of(path)
    wrong = TapePlanner([replace(planner.records[0], output=other)])
    if other == "raises":
        wrong = TapePlanner([replace(planner.records[0], raises="ValueError")])
    right = replay_planning(path, with_planner(planner))
    assert (right.passed, right.failed) == (1, 0)
    found = replay_planning(path, with_planner(wrong))
    assert (found.passed, found.failed) == (0, 1)
    assert found.mismatches[0].what == "record 0"
    assert found.mismatches[0].line == 2
    assert found.mismatches[0].call == function


class Recording:
    def __init__(self) -> None:
        self.asked: list[tuple[str, tuple[Any, ...]]] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def ask(*arguments: Any) -> Any:
            self.asked.append((name, arguments))
            raise ConfigError("a", 1, "b")

        return ask


@pytest.mark.parametrize("function", FUNCTIONS)
def test_each_function_asks_its_method_with_decoded_values(function: str, tmp_path: Path) -> None:
    given = ANSWERS[function][0]
    record = {"fn": function, "input": given, "raises": "ValueError", "message": ""}
    planner = Recording()
    replay_planning(written(tmp_path / "p.jsonl", record), with_planner(planner))
    ((method, arguments),) = planner.asked
    assert method == FUNCTIONS[function].method
    assert len(arguments) == len(given)
    values: dict[str, Any] = {
        "spec": decode_spec(SPEC, HERE),
        "specs": (decode_spec(SPEC, HERE),) * 2,
        "layers": decode_layers(LAYERS, HERE),
        "workers": (decode_layers(LAYERS, HERE),),
        "groups": decode_groups(GROUPS, HERE),
        "config": decode_planning_config(CONFIG, HERE),
        "kv_cache_config": decode_kv_cache(CACHE, HERE),
        "kv_cache_configs": (decode_kv_cache(CACHE, HERE),),
        "available_memory": tuple(given["available_memory"])
        if isinstance(given.get("available_memory"), list)
        else given.get("available_memory"),
    }
    # The configuration follows its subject, the memory is last.
    order = [name for name in given if name not in ("config", "available_memory")]
    order += [name for name in ("config", "available_memory") if name in given]
    assert arguments == tuple(values[name] for name in order)


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


def test_an_answer_of_another_kind_fails(tmp_path: Path) -> None:
    class Odd:
        def groups(self, layers: Any, config: Any) -> Any:
            return 3

    given, answer, _ = ANSWERS["get_kv_cache_groups"]
    record = {"fn": "get_kv_cache_groups", "input": given, "output": answer}
    found = replay_planning(written(tmp_path / "p.jsonl", record), with_planner(Odd()))
    assert found.failed == 1
    assert "TypeError" in found.mismatches[0].render()


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


def test_a_planner_that_is_declared_and_not_there_fails_every_record(tmp_path: Path) -> None:
    record = {"fn": "merge", "input": {"specs": [SPEC]}, "output": SPEC}
    found = replay_planning(written(tmp_path / "p.jsonl", record, record), with_planner(None))
    assert (found.passed, found.failed) == (0, 2)
    assert found.reason == "kvref has no planner"
    assert found.mismatches == ()


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
        replay_planning(path, with_planner(Recording()))
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


@pytest.mark.shared
@pytest.mark.parametrize("name", ["planning.jsonl.gz", "planning_exotic.jsonl.gz"])
def test_the_shared_planning_records_can_be_compared(name: str, shared: Path) -> None:
    path = shared / "golden" / name
    if not path.is_file():
        pytest.skip(f"{path} is not here")
    planner = tape_of(path)
    records = len(planner.records)
    found = replay_planning(path, with_planner(planner))
    assert (found.passed, found.failed) == (records, 0)
