"""Damage in any format names its place, what belongs there and what to do."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from kvcheck.tools.replay.formats.choice import FORMATS, reader_of
from kvcheck.tools.replay.trace import TraceError
from tests.replay.reading import error_of, lines_of, read, session

CALL = {"t": 0, "type": "n", "in": 5, "out": 1, "hash_ids": [1]}
LOGGED = "DEBUG 06-01 10:00:00 [a.py:1] Request r details: prompt: '', prompt_token_ids: "
AZURE_HEAD = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


@pytest.mark.parametrize(
    ("form", "content", "line", "field", "problem"),
    [
        ("bailian", lines_of([{"timestamp": -1}]), 1, "timestamp", "must be seconds"),
        ("bailian", '{"timestamp": true}', 1, "timestamp", "must be seconds"),
        (
            "bailian",
            '{"timestamp":1,"input_length":17,"output_length":1,"hash_ids":[1]}',
            1,
            "hash_ids",
            "has 1 ids, but 17 input tokens need 2 (one per 16 tokens)",
        ),
        ("weka", '\n[{"requests": [],\n "id": 1}]', 2, "block_size", "is missing"),
        ("weka", lines_of([session([]), session([], block_size=32)]), 2, "block_size", "split"),
        (
            "weka",
            json.dumps({"block_size": 64, "requests": [{**CALL, "in": 0}]}),
            1,
            "requests[0].in",
            "at least 1, not 0",
        ),
        ("weka", '{"block_size": 64, "requests": 7}', 1, "requests", "must be a list of objects"),
        ("weka", '{"block_size": 64, "requests": [7]}', 1, "requests[0]", "must be an object"),
        (
            "sharegpt",
            '[{"conversations": []},\n{"conversation": 1}]',
            2,
            "conversations",
            "missing",
        ),
        (
            "sharegpt",
            json.dumps([{"conversations": [{"from": "human", "value": "a"}, {"from": "gpt"}]}]),
            1,
            "conversations[1].value",
            "is missing",
        ),
        ("sharegpt", '[\n{"conversations": []},\n{"conversations"', 3, None, "is cut off"),
        ("sharegpt", '[{"conversations": []}', 1, None, "is cut off"),
        ("sharegpt", '[\n{"conversations": []}, 5]', 2, None, "is no JSON object"),
        ("sharegpt", '[\n[{"conversations": []}]]', 2, None, "[ where one should begin"),
        ("sharegpt", '{"conversations": ]}', 1, None, "not JSON at column"),
        ("messages", '{"messages": [{"role": "user", "content": 5}]}', 1, None, "must be a text"),
        ("messages", '{"body": 5}', 1, "body", "must be an object"),
        ("messages", '{"body": {"messages": []}}', 1, "body.messages", "at least one message"),
        ("prompts", '{"prompt": ""}', 1, "prompt", "must not be empty"),
        ("prompts", '{"prompt": [1, 4294967296]}', 1, "prompt", "token of 2^32 or more"),
        ("prompts", '{"prompt": "a"}\n{"prompt": ["a"]}', 2, "prompt[0]", 'not "a"'),
        ("prompts", '{"prompt": "a", "output_tokens": -1}', 1, "output_tokens", "not -1"),
        ("vllm-log", LOGGED + "[1, 2", 1, None, "or they are cut off"),
        ("vllm-log", LOGGED + "[1,, 2], prompt_embeds", 1, None, "that are no tokens"),
        (
            "vllm-log",
            "INFO 06-01 10:00:00 [a.py:1] Received request r: params: S(max_tokens=3)",
            1,
            None,
            "not made at level DEBUG",
        ),
        ("vllm-log", LOGGED.replace("06-01", "13-01") + "[1], prompt_embeds", 1, None, "no date"),
        ("azure", "TIMESTAMP,ContextTokens\n", 1, "GeneratedTokens", "is no column"),
        ("azure", AZURE_HEAD + "2024-05-10,1", 2, None, "has 2 cells, but the table has 3"),
        ("azure", AZURE_HEAD + "noon,1,2", 2, "TIMESTAMP", "must be a date and time"),
        ("azure", AZURE_HEAD + "2024-05-10,1.5,2", 2, "ContextTokens", "a number of tokens"),
        (
            "azure",
            AZURE_HEAD + "2024-05-10,1,2\n2024-05-09,1,2",
            3,
            "TIMESTAMP",
            "is before the first row",
        ),
        (
            "burstgpt",
            "Timestamp,Request tokens,Response tokens\nsoon,1,2",
            2,
            "Timestamp",
            "must be seconds",
        ),
    ],
)
def test_damage_names_its_place_and_what_is_expected(
    form: str, content: str, line: int, field: str | None, problem: str
) -> None:
    error = error_of(form, content)
    assert error.line == line
    assert problem in error.problem
    if field is not None:
        assert error.field == field


@pytest.mark.parametrize("form", FORMATS)
def test_an_empty_file_has_no_requests(form: str) -> None:
    assert read(form, "") == []


def test_a_session_that_does_not_end_is_not_read_into_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kvcheck.tools.replay.formats.input.MAX_OBJECT_BYTES", 1_000)
    taken = []

    def endless() -> Iterator[bytes]:
        yield b'{"block_size": 16, "requests": ['
        while True:
            taken.append(1)
            yield b"1, " * 100

    with pytest.raises(TraceError, match="more than 1000 bytes"):
        list(reader_of("weka").records(endless(), "t"))
    assert len(taken) < 10


def test_requests_wait_for_their_outputs_but_not_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kvcheck.tools.replay.formats.vllm_log._MOST_WAITING", 2)
    lines = [
        f"{LOGGED.replace('Request r', f'Request r{n}')}[{n}], prompt_embeds\n" for n in range(9)
    ]
    taken = []

    def log() -> Iterator[bytes]:
        for each in lines:
            taken.append(1)
            yield each.encode()

    next(reader_of("vllm-log").records(log(), "t"))
    assert len(taken) < 5
