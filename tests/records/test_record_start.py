"""Version 2 of traces: records that start from a state, and operations that leave things out."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from kvcheck.play.player import Player
from kvcheck.play.state import look, observed
from kvcheck.records.trace import replay_trace
from kvcheck.tools.view import NotShownError, load
from kvref import ReferenceImplementation
from kvspec.config import ManagerConfig
from kvspec.errors import FormatError
from kvspec.record import Header, Observed, Operation
from kvspec.record_file import read_trace, write_trace
from tests.contract.builders import make_config

REFERENCE = ReferenceImplementation()
Step: TypeAlias = tuple[str, str | None, dict[str, Any]]

FIRST: Step = ("new_request", "a", {"prompt_token_ids": [1, 2, 3, 4, 5]})
ALLOCATE = {"num_computed_tokens": 0, "status": "WAITING", "num_new_tokens": 5}
BEFORE: tuple[Step, ...] = (FIRST, ("allocate_slots", "a", ALLOCATE), ("free", "a", {}))
AFTER: tuple[Step, ...] = (
    ("new_request", "b", {"prompt_token_ids": [1, 2, 3, 4, 6]}),
    ("get_computed_blocks", "b", {}),
    (
        "allocate_slots",
        "b",
        {**ALLOCATE, "num_new_tokens": 1}
        | {"num_new_computed_tokens": 4, "new_computed_blocks": [[1, 2]]},
    ),
    ("take_events", None, {}),
    ("free", "b", {}),
)


def config(num_blocks: int) -> ManagerConfig:
    return make_config(num_blocks, 2, max_model_len_tokens=16, enable_events=True)


def recorded(
    path: Path, num_blocks: int = 6, alter: Callable[[Operation], Operation] = lambda line: line
) -> Path:
    """Record `AFTER` from the state left by `BEFORE`; the allocation shows no state."""
    manager = REFERENCE.create(config(num_blocks))
    player = Player(REFERENCE, manager)
    for name, request, arguments in BEFORE:
        player.perform(name, request, arguments)
    view = look(manager)
    header = Header(manager.config, manager.none_hash, None, start=view.snapshot)
    header = replace(header, initial=observed(view, None, is_small=header.is_small))
    lines = []
    for index, (name, request, arguments) in enumerate(AFTER):
        result = player.perform(name, request, arguments).result
        after = look(manager)
        seen = observed(after, view, is_small=header.is_small)
        uncompared: tuple[str, ...] = ()
        if name == "allocate_slots":
            uncompared, seen = ("state",), Observed(after.num_free_blocks, after.usage)
        else:
            view = after
        if name == "take_events":
            uncompared = ("result",)  # it mentions request a as well
        line = Operation(index, name, request, arguments, seen, result, uncompared=uncompared)
        lines.append(alter(line))
    write_trace(path, header, lines, {})
    return path


def at(index: int, **changes: Any) -> Callable[[Operation], Operation]:
    return lambda line: replace(line, **changes) if line.index == index else line


@pytest.mark.parametrize("num_blocks", [6, 70])
def test_a_record_that_starts_from_a_state_replays(tmp_path: Path, num_blocks: int) -> None:
    path = recorded(tmp_path / "r.jsonl", num_blocks)
    assert json.loads(path.read_text().splitlines()[0])["version"] == 2
    header, *rest = read_trace(path)
    assert isinstance(header, Header)
    assert header.start is not None
    write_trace(tmp_path / "again.jsonl", header, [x for x in rest if isinstance(x, Operation)], {})
    assert (tmp_path / "again.jsonl").read_bytes() == path.read_bytes()
    result = replay_trace(path, REFERENCE)
    assert result.mismatch is None, result.mismatch.render()
    assert result.compared == 5


@pytest.mark.parametrize(
    ("alter", "differs_at"),
    [
        (at(2, result=[[5]]), "operation 2"),
        (at(2, observed=Observed(5, 0.0)), "operation 2"),
        (at(4, raises="ValueError"), "operation 4"),
        (at(4, observed=Observed(2, 0.6)), "operation 4"),
        (at(3, uncompared=()), "operation 3"),
        (at(3, result=[], uncompared=("result",)), None),
        (at(2, uncompared=()), "operation 2"),
    ],
    ids=[
        "an answer without its state is compared",
        "free blocks are compared always",
        "what comes after is compared",
        "states after a gap are compared",
        "events queued before the start are missing",
        "an uncompared answer",
        "a state that is said to be unchanged",
    ],
)
def test_what_is_not_left_out_is_compared(
    tmp_path: Path, alter: Callable[[Operation], Operation], differs_at: str | None
) -> None:
    mismatch = replay_trace(recorded(tmp_path / "r.jsonl", alter=alter), REFERENCE).mismatch
    if differs_at is None:
        assert mismatch is None
    else:
        assert mismatch is not None
        assert mismatch.what.startswith(differs_at)


def test_an_older_version_has_none_of_it(tmp_path: Path) -> None:
    path = recorded(tmp_path / "r.jsonl")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    spoilt = tmp_path / "spoilt.jsonl"

    def problem(*texts: dict[str, Any]) -> str:
        spoilt.write_text("\n".join(map(json.dumps, texts)) + "\n")
        with pytest.raises(FormatError) as caught:
            list(read_trace(spoilt))
        return f"{caught.value.field}: {caught.value.problem}"

    old = {**lines[0], "version": 1}
    fresh = {name: value for name, value in old.items() if name != "start"}
    partial = {**lines[2], "i": 1, "op": "cache_partial_block"}
    assert problem(old, *lines[1:]).startswith("start: unknown")
    assert problem(fresh, *lines[1:]).startswith(("uncompared", "state", "result"))
    assert problem(fresh, lines[1], partial) == "op: unknown operation 'cache_partial_block'"
    cut = {**lines[0], "start": {**lines[0]["start"]}}
    del cut["start"]["free_queue"]
    assert problem(cut).startswith("start.free_queue: missing")
    assert problem(lines[0], {**lines[1], "uncompared": ["usage"]}).startswith("uncompared[0]: ")
    failing = {**lines[0], "raises": "ValueError", "initial": None}
    assert problem(failing).startswith("start: ")


def test_a_page_shows_a_record_that_starts_from_a_state(tmp_path: Path) -> None:
    small = recorded(tmp_path / "r.jsonl")
    shown = load(small)
    assert len(shown.frames) == 6
    assert any("without the state" in note for note in shown.notes)
    assert shown.frames[3].state.fields["ref_cnt"] == [0] * 6
    told = load(small, REFERENCE)
    assert told.violation is None
    assert told.frames[3].state.fields["ref_cnt"] == [0, 1, 1, 1, 0, 0]
    large = recorded(tmp_path / "large.jsonl", 70)
    with pytest.raises(NotShownError):
        load(large)
    assert len(load(large, REFERENCE).frames) == 6
