"""The schema of the protocol accepts every message and every reply, and no damaged one."""

from __future__ import annotations

import copy
import json
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from functools import cache
from typing import Any

import pytest

from kvcheck.discovery import find_implementation
from kvcheck.judge.options import Budget, Options
from kvcheck.judge.suite import Suite
from kvcheck.play.verdicts import Level
from kvcheck.remote.client import RemoteImplementation
from kvcheck.remote.connection import Connection, Sent
from kvcheck.remote.operations import MESSAGES, check_hello
from kvspec.errors import FormatError
from kvspec.files.objects import Where
from kvspec.planning_functions import FUNCTIONS
from tests.remote.schema import PATH
from tests.remote.servers import config, serve
from tests.source import ROOT

jsonschema = pytest.importorskip("jsonschema", reason="the package jsonschema is not installed")

SCHEMA = json.loads((ROOT / PATH).read_text(encoding="utf-8"))
MOST = 20
"""Of one operation and outcome no more shapes are checked."""


@cache
def validator(name: str) -> Any:
    cls = jsonschema.Draft202012Validator
    return cls({**SCHEMA, "oneOf": [{"$ref": f"#/$defs/{name}"}]})


def problem(name: str, value: object) -> str | None:
    error = jsonschema.exceptions.best_match(validator(name).iter_errors(value))
    return None if error is None else f"{name}: {error.message} at {error.json_path}: {value!r}"


Exchange = tuple[dict[str, Any], dict[str, Any]]


def skeleton(value: Any) -> Any:
    """Drop a value's numbers and texts, so that equal shapes are checked once."""
    if isinstance(value, dict):
        return tuple(sorted((name, skeleton(item)) for name, item in value.items()))
    if isinstance(value, list):
        return ("list", *sorted({repr(skeleton(item)) for item in value}))
    return type(value).__name__


def conversation(monkeypatch: pytest.MonkeyPatch, rules: Sequence[str]) -> list[Exchange]:
    """Return the messages of a check of the reference; of equal shapes the first.

    They are read inside the connection, where the client has a reply but has not yet checked it.
    """
    found: dict[Any, dict[str, Exchange]] = defaultdict(dict)
    answers = Connection._answers

    def heard(self: Connection, sent: Sequence[Sent], framed: bytes) -> list[dict[str, Any]]:
        came = answers(self, sent, framed)
        for message, answer in zip(sent, came, strict=True):
            exchange = message.to_json(), answer
            alike = found[message.op, answer.get("error", {}).get("class")]
            if len(alike) < MOST:
                alike.setdefault(repr([*map(skeleton, exchange)]), exchange)
        return came

    monkeypatch.setattr(Connection, "_answers", heard)
    subject = find_implementation(serve("kvref", options="+json"))
    assert isinstance(subject, RemoteImplementation)
    with closing(subject):
        options = Options(Level.IDENTITY, Budget(0.0, 0), tuple(rules))
        report = Suite(subject, find_implementation("kvref"), options).run()
        window = subject.make_hit_rate_window(3)
        manager = subject.create(config())
        stats = manager.make_prefix_cache_stats()
        assert stats is not None
        window.observe(stats)
        assert manager.take_residency_samples() == ()
        subject.restore(manager.config, subject.clone(manager).snapshot())
    assert not report.violations
    return [exchange for alike in found.values() for exchange in alike.values()]


def result_name(message: Mapping[str, Any]) -> str:
    if message["op"] == "plan":
        return f"plan.{message['args']['fn']}.result"
    return f"{message['op']}.result"


def judged(exchange: Exchange) -> Iterator[str]:
    message, answer = exchange
    checked = {"message": message, "answer": answer, f"{message['op']}.message": message}
    if "result" in answer:  # then its arguments are of the types that the implementation wants
        checked[result_name(message)] = answer["result"]
        checked[f"{message['op']}.arguments"] = message.get("args", {})
    for name, value in checked.items():
        found = problem(name, value)
        if found is not None:
            yield found


def damaged(value: Any, chance: random.Random) -> Iterator[Any]:
    places = [(value, name) for name in value]
    for parent, name in places:
        inner = parent[name]
        if isinstance(inner, (dict, list)) and inner:
            keys = list(inner) if isinstance(inner, dict) else range(len(inner))
            places.append((inner, chance.choice(keys)))
    parent, name = chance.choice(places)
    kept = parent[name]
    for wrong in ([[["x"]]], {"x": {"y": None}}, "\u2212", -0.5):
        if not isinstance(kept, type(wrong)) or not isinstance(wrong, str):
            parent[name] = wrong
            yield copy.deepcopy(value)
    parent[name] = kept
    if isinstance(parent, dict):
        yield {**copy.deepcopy(value), "surplus": 1}
        del parent[name]
        yield copy.deepcopy(value)


def client_takes(message: Mapping[str, Any], result: Any) -> bool:
    check = MESSAGES[message["op"]].result
    if message["op"] == "hello":
        check = check_hello
    if message["op"] == "plan":
        check = FUNCTIONS[message["args"]["fn"]].answer.read
    try:
        check(result, Where("answer"))
    except (FormatError, TypeError):
        return False
    return True


@pytest.fixture(scope="module")
def exchanges() -> Iterator[list[Exchange]]:
    with pytest.MonkeyPatch.context() as patch:
        some = (
            "MGR-1*",
            "MGR-2*",
            "ERR-*",
            "PLAN-1*",
            "EVT-*",
            "POL-18",
            "STAT-*",
            "PART-*",
            "FLEET-*",
            "TIER-*",
        )
        yield conversation(patch, [f"KV-{rules}" for rules in some])


@pytest.fixture(scope="module")
def few(exchanges: list[Exchange]) -> list[Exchange]:
    found: dict[str, list[Exchange]] = defaultdict(list)
    for message, answer in exchanges:
        if "result" in answer and len(found[message["op"]]) < 2:
            found[message["op"]].append((message, answer))
    return [exchange for alike in found.values() for exchange in alike]


def test_every_message_and_every_answer_is_one(exchanges: list[Exchange]) -> None:
    assert len(exchanges) > 150
    assert [found for exchange in exchanges for found in judged(exchange)] == []
    assert {message["op"] for message, _ in exchanges} >= set(MESSAGES) - {"drop"}


@pytest.mark.deep
def test_the_whole_directed_suite_speaks_the_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    found = conversation(monkeypatch, ("*",))
    assert [each for exchange in found for each in judged(exchange)] == []
    assert {message["op"] for message, _ in found} == set(MESSAGES)


def test_a_damaged_message_is_none(few: list[Exchange]) -> None:
    for message, _ in few:
        op = message["op"]
        for name in ("id", "op", *MESSAGES[op].handles, "args"):
            less = {key: value for key, value in message.items() if key != name}
            is_needed = name != "args" or MESSAGES[op].required
            assert name not in message or bool(problem("message", less)) == bool(is_needed)
        assert problem("message", {**message, "surplus": 1})
        assert problem("message", {**message, "id": "0"})
        assert problem("message", {**message, "op": op.upper()})
        assert problem("message", {**message, "args": {**message.get("args", {}), "surplus": 1}})
        assert problem("answer", {"id": 0, "result": 1, "error": None})


def test_the_schema_takes_an_answer_where_the_client_does(few: list[Exchange]) -> None:
    chance = random.Random(0)
    refused = 0
    objects = [each for each in few if isinstance(each[1]["result"], dict)]
    for message, answer in 4 * objects:
        result = copy.deepcopy(answer["result"])
        for wrong in damaged(result, chance):
            found = problem(result_name(message), wrong)
            assert client_takes(message, wrong) == (found is None), (message, wrong, found)
            refused += found is not None
    assert refused > 100
