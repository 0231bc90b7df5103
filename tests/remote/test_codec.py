"""Both framings: messages survive the round trip, and any other bytes are an error."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcheck.remote import codec
from kvcheck.remote.codec import FRAMINGS, MessageBuffer, MessageStream, decode, encode
from kvspec.errors import FormatError
from tests.cases import Case, cases, repeated

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=10)
plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)
messages = st.dictionaries(texts, plain, max_size=5)
framings = pytest.mark.parametrize("framing", FRAMINGS)


def same(one: Any, other: Any) -> bool:
    return repr(one) == repr(other) and one == other


@framings
@settings(max_examples=40)
@given(sent=st.lists(messages, min_size=1, max_size=4), sizes=st.lists(st.integers(1, 9)))
def test_messages_come_out_as_they_went_in_however_they_are_cut(
    framing: str, sent: list[dict[str, Any]], sizes: list[int]
) -> None:
    data = b"".join(encode(message, framing) for message in sent)
    buffer, found = MessageBuffer(framing), []
    cuts = iter(sizes)
    while data:
        size = next(cuts, len(data))
        buffer.feed(data[:size])
        data = data[size:]
        while (body := buffer.take()) is not None:
            found.append(decode(body, framing))
    assert same(found, sent)
    assert len(buffer) == 0


def test_an_empty_frame_is_there_with_its_length() -> None:
    buffer = MessageBuffer("cbor")
    buffer.feed(bytes(codec.LENGTH_BYTES))
    assert buffer.take() == b""


def test_an_empty_line_is_there_too_and_what_is_left_can_be_shown() -> None:
    buffer = MessageBuffer("json")
    buffer.feed(b"{}")
    assert buffer.take() is None
    buffer.feed(b"\n\n" + b"x" * 50)
    assert [buffer.take(), buffer.take(), buffer.take()] == [b"{}", b"", None]
    assert buffer.start() == b"x" * 40
    assert buffer.start(3) == b"xxx"


@framings
@settings(max_examples=40)
@given(sent=st.lists(messages, min_size=1, max_size=4))
def test_the_server_reads_what_the_client_writes(framing: str, sent: list[dict[str, Any]]) -> None:
    stream = MessageStream(io.BytesIO(b"".join(encode(m, framing) for m in sent)))
    found = []
    while (body := stream.next()) is not None:
        found.append(decode(body, stream.framing))
    assert stream.framing == framing
    assert same(found, sent)


@framings
@given(st.binary(max_size=60))
def test_any_bytes_are_a_message_or_a_format_error(framing: str, body: bytes) -> None:
    with suppress(FormatError):
        assert isinstance(decode(body, framing), dict)


@pytest.mark.parametrize("case", cases(__file__, "no_messages.txt"), ids=str)
def test_what_is_no_message_is_a_format_error(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, _, *in_hex = case.name.split(" ", 2)
    text = repeated(case.given[0])
    data = bytes.fromhex(text) if in_hex or kind == "cbor" else text.encode()
    read: Callable[[], object] = partial(decode, data, kind)
    if kind == "stream":
        monkeypatch.setattr(codec, "MAX_MESSAGE_BYTES", 101)
        read = MessageStream(io.BytesIO(data)).next
    with pytest.raises(FormatError) as caught:
        read()
    assert case.said[0] == "…" or str(caught.value) == f"message: {case.said[0]}"


def test_the_longest_message_is_one_and_a_longer_one_is_known_as_soon_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(codec, "MAX_MESSAGE_BYTES", 8)
    for message, framing in (({"a": 12}, "json"), ({"a": "1234"}, "cbor")):
        framed = encode(message, framing)
        assert len(framed) == (9 if framing == "json" else 12)
        buffer = MessageBuffer(framing)
        buffer.feed(framed)
        body = buffer.take()
        assert body is not None
        assert decode(body, framing) == message
        assert MessageStream(io.BytesIO(framed)).next() == body
        longer = {"a": 123} if framing == "json" else {"a": "12345"}
        with pytest.raises(FormatError, match="9 bytes"):
            encode(longer, framing)
    for data, said in ((b"x" * 9, "at least 9 bytes"), (b"x" * 10 + b"\n", "at least 10 bytes")):
        buffer = MessageBuffer("json")
        buffer.feed(data)
        with pytest.raises(FormatError, match=f"a line of {said}; a message has at most 8"):
            buffer.take()
    for line in (b"", b"x" * 8):  # whatever follows
        buffer = MessageBuffer("json")
        buffer.feed(line + b"\n" + b"x" * 9)
        assert buffer.take() == line
    buffer = MessageBuffer("cbor")
    buffer.feed(b"\0\0\0\x08" + bytes(7))
    assert (buffer.take(), len(buffer)) == (None, 11)
    buffer = MessageBuffer("cbor")
    buffer.feed(b"\0\0\0\x09")
    with pytest.raises(FormatError, match="a frame of 9 bytes"):
        buffer.take()


def test_cbor_is_as_the_protocol_says() -> None:
    """Use definite lengths and shortest ints, so that a small decoder suffices."""
    body = bytes.fromhex("a26269640161618419012cf6f5fb3fe0000000000000")
    assert encode({"id": 1, "a": [300, None, True, 0.5]}, "cbor") == b"\0\0\0\x16" + body


def test_json_has_no_number_that_is_none() -> None:
    with pytest.raises(ValueError, match="JSON"):
        encode({"a": float("nan")}, "json")
    assert encode({"a": [1, "é"]}, "json") == b'{"a":[1,"\\u00e9"]}\n'
