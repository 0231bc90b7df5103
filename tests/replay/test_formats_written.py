"""Requests written in a format are read back unchanged."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcheck.tools.replay.formats.choice import reader_of
from kvcheck.tools.replay.formats.input import json_objects
from kvcheck.tools.replay.formats.text import ASSUMED_OUTPUT_TOKENS, RUN_LENGTH
from kvcheck.tools.replay.trace import TraceRecord
from tests.replay.reading import error_of, lines_of, read, session

lengths = st.integers(1, 200)
outputs = st.integers(0, 50)


@st.composite
def hashed_requests(draw: st.DrawFn) -> tuple[int, int, int, list[int]]:
    length = draw(lengths)
    ids = draw(st.lists(st.integers(0, 9), min_size=-(-length // 16), max_size=-(-length // 16)))
    return draw(st.integers(0, 10**6)), length, draw(outputs), ids


@given(st.lists(hashed_requests(), max_size=8))
def test_bailian_is_read_as_it_was_written(asked: list[tuple[int, int, int, list[int]]]) -> None:
    content = lines_of(
        [
            {"chat_id": 1, "timestamp": ms / 1000, "input_length": a, "output_length": b}
            | {"hash_ids": ids}
            for ms, a, b, ids in asked
        ]
    )
    assert read("bailian", content) == [
        TraceRecord(line, ms, a, b, tuple(ids), 16)
        for line, (ms, a, b, ids) in enumerate(asked, start=1)
    ]


@given(st.lists(st.lists(hashed_requests(), max_size=4), max_size=4), st.booleans())
def test_sessions_of_weka_follow_each_other_and_share_no_id(
    sessions: list[list[tuple[int, int, int, list[int]]]], in_one_list: bool
) -> None:
    objects = [session(each) for each in sessions]
    found = read("weka", json.dumps(objects, indent=1) if in_one_list else lines_of(objects))
    began, expected = 0, []
    for number, asked in enumerate(sessions):
        for ms, a, b, ids in sorted(asked, key=lambda each: each[0]):
            expected.append((began + ms, a, b, [(number, each) for each in ids]))
        began = max([began + each[0] for each in asked], default=began)
    assert [(each.timestamp_ms, each.input_length, each.output_length) for each in found] == [
        each[:3] for each in expected
    ]
    names = [each for *_, ids in expected for each in ids]
    given_ids = [each for record in found for each in record.hash_ids]
    assert len(set(zip(names, given_ids, strict=True))) == len(set(names)) == len(set(given_ids))


def test_times_of_subagents_count_from_their_start_or_that_of_the_session() -> None:
    inner = [{"t": 0.5, "type": "n", "in": 5, "out": 1, "hash_ids": [1]}]
    marker = {"t": 2, "type": "subagent", "requests": inner}
    outer = {"t": 9, "type": "n", "in": 6, "out": 1, "hash_ids": [2]}
    relative = {"id": "x", "block_size": 16, "requests": [outer, marker]}
    assert [each.timestamp_ms for each in read("weka", json.dumps(relative))] == [2_500, 9_000]
    inner[0]["t"] = 2.5
    absolute = {**relative, "requests": [outer, marker]}
    assert [each.timestamp_ms for each in read("weka", json.dumps(absolute))] == [2_500, 9_000]


def test_requests_of_weka_without_ids_share_nothing() -> None:
    bare = {"t": 0, "type": "n", "in": 20, "out": 1}
    found = read("weka", json.dumps({"block_size": 16, "requests": [bare, bare]}))
    assert len({each for record in found for each in record.hash_ids}) == 4


@pytest.mark.parametrize("form", ["burstgpt", "azure"])
@given(asked=st.lists(st.tuples(st.integers(0, 10**5), st.integers(0, 2_000), outputs), max_size=8))
def test_tables_are_read_as_they_were_written(form: str, asked: list[tuple[int, int, int]]) -> None:
    asked = sorted(asked, key=lambda each: each[0])
    if form == "burstgpt":
        rows = ["Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"]
        rows += [f"{ms / 1000},m,{a},{b},{a + b},l" for ms, a, b in asked]
        began = 0
    else:
        rows = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
        rows += [
            f"2024-05-10 00:{ms // 60_000:02}:{ms / 1000 % 60:010.7f}+00:00,{a},{b}"
            for ms, a, b in asked
        ]
        began = asked[0][0] if asked else 0
    found = read(form, "\r\n".join(rows))
    kept = [(line, *each) for line, each in enumerate(asked, start=2) if each[1]]
    assert [(e.line, e.timestamp_ms, e.input_length, e.output_length) for e in found] == [
        (line, ms - began, a, b) for line, ms, a, b in kept
    ]
    ids = [each for record in found for each in record.hash_ids]
    assert len(set(ids)) == len(ids)


texts = st.text(st.sampled_from('ab é漢\n"\\{}[]'), max_size=120)
turns = st.lists(st.tuples(st.sampled_from(["human", "gpt", "system"]), texts), max_size=6)


def model_tokens(messages: Sequence[tuple[str, str]]) -> list[object]:
    found: list[object] = []
    for role, content in messages:
        data = content.encode()
        found.append(role)
        found += [data[at : at + 4] for at in range(0, len(data), 4)]
    return found


def expected_requests(
    conversations: Sequence[Sequence[tuple[str, str]]], answer: str
) -> Iterator[tuple[list[object], int]]:
    for messages in conversations:
        for number, (role, content) in enumerate(messages):
            if role == answer and number:
                yield model_tokens(messages[:number]), -(-len(content.encode()) // 4)
        if messages and messages[-1][0] != answer:
            yield model_tokens(messages), ASSUMED_OUTPUT_TOKENS


def same_requests(found: list[TraceRecord], expected: list[tuple[list[object], int]]) -> None:
    """Compare lengths; ids must be equal exactly where the tokens of the run are."""
    assert [(each.input_length, each.output_length) for each in found] == [
        (len(tokens), output) for tokens, output in expected
    ]
    runs = [
        tuple(tokens[at : at + RUN_LENGTH])
        for tokens, _ in expected
        for at in range(0, len(tokens), RUN_LENGTH)
    ]
    ids = [each for record in found for each in record.hash_ids]
    assert len(set(zip(runs, ids, strict=True))) == len(set(runs)) == len(set(ids))


@given(st.lists(turns, max_size=4), st.sampled_from([None, 1]), st.integers(1, 90))
def test_every_answer_of_sharegpt_is_a_request_with_all_before_it(
    conversations: list[list[tuple[str, str]]], indent: int | None, chunk_bytes: int
) -> None:
    objects = [{"conversations": [{"from": a, "value": b} for a, b in c]} for c in conversations]
    content = json.dumps(objects, indent=indent, ensure_ascii=False)
    found = read("sharegpt", content, chunk_bytes=chunk_bytes)
    same_requests(found, list(expected_requests(conversations, "gpt")))


@given(st.lists(turns, max_size=4), st.booleans())
def test_messages_say_the_same_as_sharegpt(
    conversations: list[list[tuple[str, str]]], in_parts: bool
) -> None:
    def content(words: str) -> object:
        half = len(words) // 2
        parts = [{"type": "text", "text": each} for each in (words[:half], words[half:])]
        return parts if in_parts else words

    named = [
        [("assistant" if role == "gpt" else role, words) for role, words in each]
        for each in conversations
    ]
    objects = [{"messages": [{"role": a, "content": content(b)} for a, b in c]} for c in named]
    same_requests(read("messages", lines_of(objects)), list(expected_requests(named, "assistant")))


def test_a_line_of_a_batch_file_is_one_request() -> None:
    asked = [{"role": "user", "content": "abcdefgh"}, {"role": "assistant", "content": "ijkl"}]
    bodies: list[dict[str, Any]] = [
        {"messages": asked, "max_tokens": 7},
        {"messages": asked},
        {"prompt": "abcdefgh", "max_tokens": 9},
    ]
    found = read("messages", lines_of([{"custom_id": "x", "body": each} for each in bodies]))
    lengths = [(each.input_length, each.output_length) for each in found]
    assert lengths == [(5, 7), (5, ASSUMED_OUTPUT_TOKENS), (2, 9)]


def test_tools_and_tool_calls_are_part_of_a_prompt() -> None:
    user = {"role": "user", "content": "a"}
    call = {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}
    bare = [user, {"role": "assistant", "content": ""}, user]
    plain, tools, called = (
        read("messages", lines_of([each]))[-1].input_length
        for each in (
            {"messages": bare},
            {"messages": bare, "tools": [1]},
            {"messages": [user, call, user]},
        )
    )
    assert tools == plain + 1 + 1  # "[1]" is a token, as is the role of the tools
    assert called == plain + 4  # [{"id": "1"}]


tokens = st.lists(st.integers(0, 9), min_size=1, max_size=60)


@given(st.lists(st.tuples(st.one_of(tokens, texts.filter(bool)), st.none() | outputs), max_size=6))
def test_prompts_are_read_as_they_were_written(
    asked: list[tuple[list[int] | str, int | None]],
) -> None:
    objects = [
        {"prompt": prompt} | ({} if output is None else {"output_tokens": output})
        for prompt, output in asked
    ]
    expected: list[tuple[list[object], int]] = []
    for prompt, output in asked:
        own: list[object] = (
            model_tokens([("", prompt)])[1:] if isinstance(prompt, str) else [*prompt]
        )
        expected.append((own, ASSUMED_OUTPUT_TOKENS if output is None else output))
    same_requests(read("prompts", lines_of(objects)), expected)


@given(
    st.lists(st.tuples(tokens, st.integers(1, 9), st.none() | tokens), max_size=6), st.booleans()
)
def test_a_log_of_vllm_is_read_as_it_was_written(
    asked: list[tuple[list[int], int, list[int] | None]], is_coloured: bool
) -> None:
    head, end = "(APIServer pid=1) DEBUG 12-31 23:59:5", " [a/.../b.py:64] "
    if is_coloured:
        head, end = (
            "\x1b[0;36m(A pid=1)\x1b[0;0m \x1b[37mDEBUG\x1b[0m \x1b[90m12-31 23:59:5",
            ("\x1b[0m \x1b[90m[b.py:64]\x1b[0m "),
        )
    log = []
    for number, (prompt, most, _) in enumerate(asked):
        text = f"prompt: 'prompt_token_ids: [1]', prompt_token_ids: {prompt}"
        log.append(
            f"{head}{number}{end}Request r{number} details: {text}, prompt_embeds shape: None."
        )
        params = f"SamplingParams(n=1, max_tokens={most}, min_tokens=0), lora_request: None."
        log.append(f"{head}{number}{end}Received request r{number}: params: {params}")
    for number, (_, _, output) in enumerate(asked):
        for part in [] if output is None else [output[:1], output[1:]]:
            said = f"(streaming delta) details: output_token_ids: {part}"
            log.append(f"{head}9{end}Generated response r{number} {said}")
    found = read("vllm-log", "\n".join(log))
    assert [each.timestamp_ms for each in found] == [1_000 * n for n in range(len(asked))]
    same_requests(
        found,
        [([*prompt], most if output is None else len(output)) for prompt, most, output in asked],
    )


def test_the_form_that_older_versions_log_is_read_too() -> None:
    line = (
        "INFO 06-01 10:00:00 [logger.py:41] Received request cmpl-1: prompt: 'max_tokens=3',"
        " params: SamplingParams(n=1, max_tokens=16), prompt_token_ids: [1, 2, 3],"
        " prompt_embeds shape: None, lora_request: None, prompt_adapter_request: None."
    )
    (found,) = read("vllm-log", line)
    assert (found.input_length, found.output_length) == (3, 16)


def test_a_log_goes_on_in_a_new_year() -> None:
    log = "".join(
        f"DEBUG {at} [a.py:1] Request {n} details: prompt: '', prompt_token_ids: [1],"
        " prompt_embeds shape: None.\n"
        for n, at in enumerate(("12-31 23:59:59", "01-01 00:00:01", "01-01 00:00:00"))
    )
    assert [each.timestamp_ms for each in read("vllm-log", log)] == [0, 2_000, 2_000]


values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(
    st.lists(st.dictionaries(st.text(max_size=4), values, max_size=3), max_size=4),
    st.integers(1, 40),
    st.sampled_from(["list", "indented", "lines", "pretty"]),
    st.booleans(),
)
def test_objects_are_found_however_they_stand(
    objects: list[dict[str, Any]], chunk_bytes: int, layout: str, ascii_only: bool
) -> None:
    def dumped(value: object, indent: int | None = None) -> str:
        return json.dumps(value, ensure_ascii=ascii_only, indent=indent)

    content = {
        "list": dumped(objects),
        "indented": dumped(objects, 2),
        "lines": "".join(dumped(each) + "\n" for each in objects),
        "pretty": "\n\n".join(dumped(each, 1) for each in objects),
    }[layout]
    data = content.encode()
    chunks = [data[at : at + chunk_bytes] for at in range(0, len(data), chunk_bytes)]
    found = list(json_objects(chunks, "t", "a form"))
    assert [each.value for each in found] == objects
    if layout == "lines":
        assert [each.line for each in found] == list(range(1, len(objects) + 1))


CHAT = [("user", "who is there " * 9), ("assistant", "nobody " * 9), ("user", "and now " * 9)]


def messages_of(*said: tuple[str, str], **more: object) -> dict[str, object]:
    return {"messages": [{"role": role, "content": text} for role, text in said], **more}


@pytest.mark.parametrize("more", [{"max_tokens": 8}, {"temperature": 0.5, "max_tokens": 8}, {}])
def test_each_line_of_a_request_log_with_the_whole_history_is_one_request(
    more: dict[str, object],
) -> None:
    """Read as conversations these three lines would be five requests."""
    lines = [messages_of(*CHAT[:1], **more), messages_of(*CHAT, **more)]
    lines.append(messages_of(*CHAT, ("assistant", "you"), ("user", "who"), **more))
    found = read("messages", lines_of(lines))
    assert [each.place for each in found] == ["1", "2", "3"]
    assert {each.output_length for each in found} == {8 if more else ASSUMED_OUTPUT_TOKENS}
    batch = read("messages", lines_of([{"body": each} for each in lines]))
    assert [each.hash_ids for each in found] == [each.hash_ids for each in batch]


def test_conversations_that_begin_alike_stay_conversations() -> None:
    lines = [messages_of(*CHAT[:2]), messages_of(*CHAT)]
    assert [each.place for each in read("messages", lines_of(lines))] == ["1", "2", "2.1"]


def test_prompts_of_tokens_are_no_estimates() -> None:
    for content in ({"prompt": [1, 2, 3]}, {"body": {"prompt": [1, 2, 3], "max_tokens": 4}}):
        reader = reader_of("prompts" if "prompt" in content else "messages")
        list(reader.records([lines_of([content]).encode()], "t"))
        assert not [note for note in reader.notes if "estimates" in note or "role" in note]


def turn(length: int, ids: Sequence[int], **more: object) -> dict[str, object]:
    return {"input_length": length, "output_length": 4, "hash_ids": list(ids), **more}


def test_mooncake_s_form_has_other_run_lengths_float_times_and_no_id_for_a_cut_run() -> None:
    lines = [
        turn(96, [1, 2], timestamp=0.5),
        turn(100, [1, 2], timestamp=7.4),
        turn(96, [1, 2], timestamp=9),
    ]
    reader = reader_of("mooncake", run_length=48)
    found = list(reader.records([lines_of(lines).encode()], "t"))
    assert [each.timestamp_ms for each in found] == [1, 7, 9]
    assert [each.hash_ids[:2] for each in found] == [(1, 2)] * 3
    assert [len(each.hash_ids) for each in found] == [2, 3, 2]
    assert [note for note in reader.notes if "no id: 1;" in note]
    assert (
        "--run-length 64 fits"
        in error_of("mooncake", lines_of([turn(100, [1, 2], timestamp=0)])).problem
    )


def test_a_turn_of_a_session_has_all_that_came_before_it() -> None:
    lines = [
        turn(512, [1], session_id="a", timestamp=10),
        turn(600, [2, 3], session_id="a", delay=5.0),
        turn(512, [1], session_id="b"),
    ]
    found = read("mooncake", lines_of(lines))
    assert [each.input_length for each in found] == [512, 512 + 4 + 600, 512]
    assert [each.timestamp_ms for each in found] == [10, 15, 15]
    assert found[1].hash_ids[:32] == found[0].hash_ids == found[2].hash_ids
    mixed = [turn(512, [1], timestamp=0), lines[0]]
    assert error_of("mooncake", lines_of(mixed)).field == "session_id"
