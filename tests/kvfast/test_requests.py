"""Requests of both builds equal the reference's, whatever is appended in whatever form."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvref.hashing import Hasher as ReferenceHasher
from kvref.request import make_request as make_reference_request
from kvspec.errors import InvalidArgumentError
from kvspec.request import RequestInput
from tests.contract.hostile import Tensor
from tests.kvfast.hash_cores import BOUNDARIES, BUILDS, core, everything, functions, words_of

pytestmark = pytest.mark.parametrize("build", BUILDS)


class DeviceTensor(Tensor):
    def numpy(self) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy")


class Buffer(Tensor):
    """Memory without `tolist`, read as the sequence that it isn't."""

    tolist = None  # type: ignore[assignment]  # the point of the class


TENSORS = (Tensor, DeviceTensor, Buffer)
FORMS: tuple[Callable[[Any], Any], ...] = (
    *(list, tuple),
    *(lambda values, kind=kind: kind(numpy.array(values, dtype="int64")) for kind in TENSORS),
    *(lambda values, kind=kind: array(kind, values) for kind in "ilqHBd"),
    *(
        lambda values, kind=kind: numpy.array(values, dtype=kind)
        for kind in ("int32", "int64", "uint64", "int8", ">i8", "float64", "bool", "object")
    ),
    lambda values: numpy.array(values, dtype="int64").repeat(2)[::2],
    lambda values: numpy.array(values, dtype="int64").reshape(-1, 1),
    lambda values: memoryview(array("q", values)).toreadonly(),
    lambda values: numpy.array(values, dtype=">i8").data,
    lambda values: numpy.array(values, dtype="object").data,
    lambda values: [numpy.int64(value) for value in values],
    *(bytes, set, iter, str),
)

WRONG = (-1, -(2**63), -(2**70), 2**63, 2**64, True, 1.0, "1", None, b"1", numpy.int32(1))


@st.composite
def token_arguments(draw: st.DrawFn) -> Any:
    """Draw tokens in any form: mostly legal, sometimes a wrong token or form."""
    values: list[Any] = draw(
        st.lists(st.integers(0, 127) | st.sampled_from(BOUNDARIES), max_size=9)
    )
    if draw(st.integers(0, 4)) == 0:
        values.insert(draw(st.integers(0, len(values))), draw(st.sampled_from(WRONG)))
    form = draw(st.sampled_from(FORMS))
    try:
        return form(values)
    except (TypeError, ValueError, OverflowError):
        return values  # no array of that kind holds them


def outcome(call: Any, *arguments: object) -> object:
    try:
        call(*arguments)
    except InvalidArgumentError as error:
        return error.field, error.allowed
    return None


@pytest.mark.rule("KV-REQ-1", "KV-REQ-5", "KV-ERR-2")
@given(
    parts=st.lists(token_arguments(), max_size=12), block_size=st.integers(0, 5), function=functions
)
def test_it_is_the_references_request_whatever_is_appended(
    build: str, parts: list[Any], block_size: int, function: str
) -> None:
    content = everything(3)
    hasher = core(build).hashing.Hasher(function, "0")
    mine = core(build).request.make_request(content, hasher, block_size)
    reference = make_reference_request(content, ReferenceHasher(function, "0"), block_size)
    for part in parts:
        assert outcome(mine.append, part) == outcome(reference.append, part), part
        assert tuple(mine.token_ids) == reference.token_ids
        assert tuple(mine.block_hashes) == reference.block_hashes
        assert mine.num_tokens == reference.num_tokens == len(mine.token_ids)
        assert mine.num_hashes == len(reference.block_hashes) == len(mine.block_hashes)
        assert words_of(mine) == b"".join(reference.block_hashes)
    assert mine.num_prompt_tokens == reference.num_prompt_tokens == 3


@given(prompt=token_arguments())
def test_any_prompt_makes_the_references_request_or_its_error(build: str, prompt: Any) -> None:
    try:
        content = RequestInput("r", prompt)
    except InvalidArgumentError:
        return  # no value to make a request from: not a matter of the implementation
    hasher = core(build).hashing.Hasher("sha256_cbor", "0")
    errors = [
        outcome(core(build).request.make_request, content, hasher, 2),
        outcome(make_reference_request, content, ReferenceHasher("sha256_cbor", "0"), 2),
    ]
    assert errors[0] == errors[1]


def made(build: str, count: int = 10, block_size: int = 4) -> Any:
    hasher = core(build).hashing.Hasher("sha256_cbor", "0")
    return core(build).request.make_request(RequestInput("r", range(count)), hasher, block_size)


@pytest.mark.parametrize("name", ["num_computed_tokens", "num_preemptions", "status"])
@pytest.mark.parametrize("value", [-1, 2**70, None, "RUNNING", True, 1.5], ids=repr)
def test_a_scheduler_may_write_anything(build: str, name: str, value: object) -> None:
    request = made(build)
    setattr(request, name, value)
    assert getattr(request, name) is value


def test_what_is_no_request_is_refused(build: str) -> None:
    hasher = core(build).hashing.Hasher("sha256_cbor", "0")
    with pytest.raises(InvalidArgumentError, match="a RequestInput"):
        core(build).request.make_request({"request_id": "r"}, hasher, 4)


def test_without_a_block_size_there_are_no_hashes(build: str) -> None:
    request = made(build, 100, 0)
    request.append([1] * 100)
    assert (request.num_hashes, list(request.block_hashes)) == (0, [])
    assert request.num_tokens == 200


# Views.


def test_views_are_sequences_equal_to_lists(build: str) -> None:
    request = made(build)
    hashes = [bytes(request.block_hashes[i]) for i in range(2)]
    both: list[tuple[Any, list[Any]]] = [
        (request.token_ids, list(range(10))),
        (request.block_hashes, hashes),
    ]
    for view, listed in both:
        assert isinstance(view, Sequence)
        assert view == listed
        assert listed == view
        assert view == type(view)(request)
        assert view != listed[:-1]
        of_another_type: Any = tuple(listed)
        assert view != of_another_type
        assert list(reversed(view)) == listed[::-1]
        assert repr(view) == repr(listed)
        assert listed[1] in view
        assert view.index(listed[1]) == 1
        assert (view[-1], view[0]) == (listed[-1], listed[0])
        for part in (slice(1, 3), slice(None), slice(-2, None), slice(3, 1), slice(None, None, -1)):
            assert view[part] == listed[part]
            assert type(view[part]) is list
        for index in (len(listed), -len(listed) - 1):
            with pytest.raises(IndexError):
                view[index]
        with pytest.raises(TypeError):
            hash(view)
        with pytest.raises(TypeError):
            view[0] = listed[0]
        assert not hasattr(view, "append")


def test_views_grow_with_their_request(build: str) -> None:
    request = made(build)
    tokens, hashes = request.token_ids, request.block_hashes
    request.append([10, 11])
    assert (len(tokens), len(hashes)) == (12, 3)
    assert tokens == list(range(12))


# Growing.


def test_growing_leaves_the_views_of_others_as_they_were(build: str) -> None:
    """Keep an earlier view of the words valid, with the same hashes.

    The compiled build gives no view away: it would be writable.
    """
    request = made(build)
    if build == "_compiled":
        assert not hasattr(request, "digest_words")
        return
    words = request.digest_words
    before = [words[i] for i in range(8)]
    for token in range(10, 2000):
        request.append([token])
    assert [words[i] for i in range(8)] == before == [request.digest_words[i] for i in range(8)]
    assert bytes(words)[:64] == b"".join(request.block_hashes[:2])
    assert len(request.digest_words) >= 4 * request.num_hashes


@pytest.mark.parametrize("length", [1, 15, 16, 17, 1023, 1024, 1040, 5000])
def test_one_by_one_and_at_once_are_the_same(build: str, length: int) -> None:
    """Hash short runs in place, long ones as a job without the GIL."""
    request = made(build, 16, 16)
    request.append(array("i", range(16, 16 + length)))
    whole = made(build, 16 + length, 16)
    assert request.block_hashes == whole.block_hashes


def test_large_blocks_keep_no_large_buffer(build: str) -> None:
    request = made(build, 3000, 1000)
    request.append(range(3000, 5000))
    assert request.block_hashes == made(build, 5000, 1000).block_hashes


def test_a_view_of_an_object_that_answers_too_little_raises(build: str) -> None:
    class Short:
        num_tokens = num_hashes = 9

        def tokens_between(self, start: int, stop: int) -> list[int]:
            return []

    view: Any = type(made(build).token_ids)
    view = view(Short())
    with pytest.raises(ValueError, match="values to unpack"):
        view[5]
    assert view[::2] == []
