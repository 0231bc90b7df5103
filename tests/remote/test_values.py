"""The values that only the protocol writes: snapshots, errors, requests."""

from __future__ import annotations

from ctypes import c_int64
from dataclasses import replace
from typing import Any

import pytest

from kvcheck.remote.codec import FRAMINGS, decode, encode
from kvcheck.remote.operations import check_hello
from kvcheck.remote.values import (
    carried,
    decode_capabilities,
    decode_error,
    decode_sample,
    encode_capabilities,
    encode_error,
    encode_request,
    encode_sample,
    protocol_error,
)
from kvref import implementation
from kvspec.errors import (
    BlockReleaseError,
    BusyError,
    CacheMemoryError,
    ConfigError,
    FormatError,
    InvalidArgumentError,
    InvariantViolation,
    KVSpecError,
    PageSizeError,
    SpoiltError,
    StaleHitError,
    UnknownBlockError,
    UnsupportedError,
)
from kvspec.files.objects import Where
from kvspec.interface import Feature
from kvspec.request import RequestInput
from kvspec.specs import FullAttentionSpec
from kvspec.stats import ResidencySample

HERE = Where("test")
framings = pytest.mark.parametrize("framing", FRAMINGS)


def through(value: Any, framing: str) -> Any:
    return (
        decode(encode({"value": value}, framing), framing)["value"]
        if framing == "json"
        else (decode(encode({"value": value}, framing)[4:], framing)["value"])
    )


def test_a_prompt_that_is_no_sequence_is_named() -> None:
    foreign: Any = memoryview((c_int64.__ctype_be__ * 1)(1))
    with pytest.raises(InvalidArgumentError) as caught:
        encode_request(RequestInput("r", foreign))
    assert caught.value.field == "prompt_token_ids"


def test_a_token_that_no_message_can_hold_is_named_by_its_place() -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        encode_request(RequestInput("r", (1, 2**70)))
    assert caught.value.field == "prompt_token_ids[1]"


ERRORS = (
    KVSpecError("something"),
    InvalidArgumentError("num_new_tokens", -1, "an int of at least 0"),
    ConfigError("watermark", 2.5, "a number in 0 … 1"),
    PageSizeError("layer.3", 100, 256, "no divisor"),
    CacheMemoryError(4096, 10**9, 10**6, 17),
    StaleHitError(1, 2, 3),
    BlockReleaseError(5, 2, 1),
    UnknownBlockError("x", 9),
    UnsupportedError("planning", "mine"),
    BusyError("request", "r1"),
    BusyError("manager", None),
    SpoiltError("MemoryError"),
    InvariantViolation("nothing_is_lost", "KV-POOL-1", "block 3 is nowhere", "free queue: []"),
)


@framings
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_of_the_tree_comes_back_with_its_members(framing: str, error: KVSpecError) -> None:
    found = decode_error(through(encode_error(error), framing), HERE)
    assert type(found) is type(error)
    assert str(found) == str(error)
    assert vars(found) == vars(error)


def test_every_class_of_the_tree_that_a_call_may_raise_has_its_entry() -> None:
    from kvcheck.remote.values import ERRORS as CARRIED
    from kvspec import errors

    elsewhere = {
        errors.UnknownImplementationError,
        errors.FormatError,
        errors.SavedStateError,
        errors.RemoteError,
        errors.MonitorViolation,
    }
    tree = {
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, KVSpecError)
    }
    assert set(CARRIED) == tree - elsewhere


def test_an_error_of_a_subclass_travels_as_its_base() -> None:
    class MyError(StaleHitError):
        pass

    assert encode_error(MyError(0, 1, 2))["class"] == "StaleHitError"


def test_a_value_that_no_message_can_say_is_shown_in_an_error() -> None:
    shown = encode_error(InvalidArgumentError("block_ids", {1, 2}, "a sequence"))
    assert shown["fields"]["value"] == "{1, 2}"
    assert encode_error(ValueError("\ud800"))["message"] == "ValueError: \\ud800"


def test_an_error_outside_the_tree_is_an_internal_one() -> None:
    found = decode_error(encode_error(IndexError("list index out of range")), HERE)
    assert found == ("InternalError", "IndexError: list index out of range")


@pytest.mark.parametrize(
    ("name", "fields", "member"),
    [
        ("Nonsense", {}, "class"),
        ("StaleHitError", {}, "fields.field"),
        ("InternalError", {"type": 1}, "fields.type"),
        ("ProtocolError", {"reason": 1}, "fields.reason"),
        ("ProtocolError", {"reason": "version", "more": 1}, "fields.more"),
        ("UnknownBlockError", {"block_id": 1, "num_blocks": "9"}, "fields.num_blocks"),
        ("InvalidArgumentError", {"field": 1, "value": 1, "allowed": ""}, "fields.field"),
        ("BusyError", {"thing": "manager", "name": {}}, "fields.name"),
    ],
)
def test_a_wrong_member_of_an_error_is_named(name: str, fields: object, member: str) -> None:
    with pytest.raises(FormatError) as caught:
        decode_error({"class": name, "message": "", "fields": fields}, HERE)
    assert caught.value.field == member
    for wrong in (None, {}, {"class": "KVSpecError", "message": 7, "fields": {}}):
        with pytest.raises(FormatError):
            decode_error(wrong, HERE)


@pytest.mark.parametrize(
    "value", [{1}, 2**64, -(2**63) - 1, float("nan"), "\ud800", object(), [[b""]]]
)
def test_what_no_message_can_say_is_an_invalid_argument(value: object) -> None:
    with pytest.raises(InvalidArgumentError):
        carried("field", value)


def test_a_refusal_of_a_message_is_a_protocol_error() -> None:
    said = protocol_error("version", "3 is not spoken \ud800")
    assert said["fields"] == {"reason": "version"}
    assert decode_error(said, HERE) == ("ProtocolError version", "3 is not spoken \\ud800")


@pytest.mark.parametrize(
    "value", [2**64 - 1, -(2**63), 1.0, 1.5, "é", "a", True, None, [[1], []], [1, True, None, [2]]]
)
def test_what_a_message_can_say_is_said_as_it_is(value: object) -> None:
    assert repr(carried("field", value)) == repr(value)
    assert carried("field", (value,)) == [value]


def test_a_value_inside_of_others_is_named_by_its_place() -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        carried("field", [1, (2, {3})])
    assert (caught.value.field, caught.value.value) == ("field[1][1]", {3})


@framings
def test_a_sample_comes_back(framing: str) -> None:
    sample = ResidencySample(3, 2, (1, 4))
    assert decode_sample(through(encode_sample(sample), framing), HERE) == sample


@pytest.mark.parametrize("member", ["lifetime_ns", "idle_ns", "reuse_gaps_ns"])
def test_a_sample_has_its_members_and_no_others(member: str) -> None:
    said = encode_sample(ResidencySample(3, 2, ()))
    for wrong in ({**said, member: "3"}, {k: v for k, v in said.items() if k != member}):
        with pytest.raises(FormatError, match=f"test.*{member}"):
            decode_sample(wrong, HERE)
    with pytest.raises(FormatError, match="more"):
        decode_sample({**said, "more": 1}, HERE)
    wrong_type: Any = {member: "3"}
    with pytest.raises((TypeError, AttributeError)):
        encode_sample(replace(ResidencySample(3, 2, ()), **wrong_type))


@framings
def test_capabilities_come_back_without_what_only_code_can_carry(framing: str) -> None:
    class Own(FullAttentionSpec):
        """A foreign block type."""

    has = replace(
        implementation().capabilities,
        features=frozenset({Feature.EVENTS, Feature.SNAPSHOT}),
        min_block_size_tokens=4,
        values={"block_sizes": frozenset({"equal"})},
        limits={"groups": 2},
    )
    more = replace(
        has,
        spec_types=has.spec_types | {Own},
        features=has.features | {Feature.BATCHED, Feature.CUSTOM_SPECS},
    )
    said = encode_capabilities(more)
    assert decode_capabilities(through(said, framing)) == has
    unknown = {"values": {**said["values"], "new": []}, "limits": {**said["limits"], "new": 1}}
    assert decode_capabilities({**said, **unknown}) == has
    assert decode_capabilities({**said, "features": [*said["features"], "batched"]}) == has
    plain = encode_capabilities(replace(has, values={}, limits={}))
    assert said.keys() - plain.keys() == {"values", "limits"}  # older servers know neither
    assert (decode_capabilities(plain).values, decode_capabilities(plain).limits) == ({}, {})
    del plain["min_block_size"]
    assert decode_capabilities(plain).min_block_size_tokens == 1


def test_a_server_that_names_no_form_of_extra_keys_has_the_plain_one() -> None:
    said = encode_capabilities(implementation().capabilities)
    assert decode_capabilities(said).extra_key_forms == {"tagged", "plain"}
    assert decode_capabilities({**said, "extra_keys": ["plain", "new"]}).extra_key_forms == {
        "plain"
    }
    del said["extra_keys"]
    assert decode_capabilities(said).extra_key_forms == {"plain"}


def test_what_a_server_says_reaches_no_terminal_as_it_is() -> None:
    said = {"class": "InternalError", "message": "\x1b[2Jgone\n\ud800é", "fields": {"type": "X"}}
    found = decode_error(said, Where("answer"))
    assert found == ("InternalError", "\\x1b[2Jgone\n\\ud800é")
    hello: dict[str, object] = {"protocol": 1, "name": "x\x1b[31m", "version": "1"}
    hello |= {member: [] for member in ("spec_types", "hash_functions", "features")}
    with pytest.raises(FormatError, match=r"name.*cannot be shown"):
        check_hello(hello, Where("answer"))
