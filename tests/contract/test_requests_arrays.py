"""KV-REQ-5: prompts and appended tokens given as arrays."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import Any

import numpy
import pytest

from kvcheck.rules.bench import Bench
from kvcheck.rules.managed import Managed
from kvspec.errors import InvalidArgumentError
from kvspec.request import Request, RequestInput


def made(bench: Bench, manager: Managed, tokens: Any) -> Request:
    return manager.make_request(RequestInput("r", tokens))


def as_array(tokens: Sequence[int], kind: str) -> Any:
    """Return the tokens as an array; `kind` is a type code of `array`, or a NumPy dtype."""
    if len(kind) == 1:
        return array(kind, tokens)
    return numpy.array(tokens, dtype=kind)


class Tensor:
    """A tensor as requests see it: elements that are no ints, and `tolist`."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens = tokens

    def __len__(self) -> int:
        return len(self.tokens)

    def __iter__(self) -> Iterator[object]:
        return (object() for _ in self.tokens)

    def tolist(self) -> list[int]:
        return list(self.tokens)


@pytest.mark.rule("KV-REQ-5")
@pytest.mark.parametrize("kind", ["i", "q", "H", "int32", "int64", "uint16", "uint64", ">i4"])
def test_an_array_is_read_as_its_list(bench: Bench, kind: str) -> None:
    manager = bench.manager()
    listed = made(bench, manager, range(1, 9))
    request = made(bench, manager, as_array(range(1, 7), kind))
    manager.append(request, as_array([7, 8], kind))
    assert list(request.token_ids) == list(range(1, 9))
    assert {type(token) for token in request.token_ids} == {int}
    assert list(request.block_hashes) == list(listed.block_hashes)
    assert (request.num_tokens, request.num_prompt_tokens) == (8, 6)


@pytest.mark.rule("KV-REQ-5")
def test_anything_with_tolist_is_read_as_the_list_it_gives(bench: Bench) -> None:
    manager = bench.manager()
    request = made(bench, manager, Tensor([1, 2]))
    manager.append(request, numpy.array([3, 0, 4, 0])[::2])  # type: ignore[arg-type]  # the point
    assert list(request.token_ids) == [1, 2, 3, 4]


@pytest.mark.rule("KV-REQ-5", "KV-ERR-2")
@pytest.mark.parametrize("kind", [">i8", "object"])
def test_a_memoryview_that_cannot_be_listed_is_refused(bench: Bench, kind: str) -> None:
    manager = bench.manager()
    listed: Any = numpy.array([1, 2]).astype(kind)
    tokens: Any = memoryview(listed)
    with pytest.raises(InvalidArgumentError):
        made(bench, manager, tokens)
    request = made(bench, manager, [1, 2])
    with pytest.raises(InvalidArgumentError):
        manager.append(request, tokens)
    assert list(request.token_ids) == [1, 2]


@pytest.mark.rule("KV-REQ-5")
def test_the_request_keeps_its_own_tokens(bench: Bench) -> None:
    tokens = array("q", [1, 2, 3, 4])
    request = made(bench, bench.manager(), tokens)
    tokens[0] = 9
    assert list(request.token_ids) == [1, 2, 3, 4]


@pytest.mark.rule("KV-REQ-1", "KV-REQ-5", "KV-ERR-2")
@pytest.mark.parametrize(
    ("wrong", "position"),
    [
        (numpy.array([5, -1]), 1),
        (numpy.array([5, -1], dtype="int32"), 1),
        (array("q", [5, -1]), 1),
        (array("i", [5, -1]), 1),
        (numpy.array([5, 2**63], dtype="uint64"), 1),
        (numpy.array([5.0]), 0),
        (numpy.array([True]), 0),
        (numpy.array([[5, 6]]), 0),
        ([5, numpy.int64(5)], 1),
    ],
    ids=repr,
)
def test_the_elements_of_an_array_are_checked(bench: Bench, wrong: Any, position: int) -> None:
    manager = bench.manager()
    with pytest.raises(InvalidArgumentError) as caught:
        made(bench, manager, wrong)
    assert caught.value.field == f"prompt_token_ids[{position}]"
    request = made(bench, manager, [1, 2, 3])
    with pytest.raises(InvalidArgumentError) as caught:
        manager.append(request, wrong)
    assert caught.value.field == f"token_ids[{position}]"
    assert (list(request.token_ids), len(request.block_hashes)) == ([1, 2, 3], 0)


@pytest.mark.rule("KV-REQ-5")
@pytest.mark.parametrize("wrong", [{1, 2}, numpy.array(5)], ids=repr)
def test_what_has_no_order_is_no_sequence_of_tokens(bench: Bench, wrong: Any) -> None:
    manager = bench.manager()
    with pytest.raises(InvalidArgumentError) as caught:
        made(bench, manager, wrong)
    assert caught.value.field == "prompt_token_ids"
    request = made(bench, manager, [1, 2, 3])
    with pytest.raises(InvalidArgumentError) as caught:
        manager.append(request, wrong)
    assert caught.value.field == "token_ids"
    assert list(request.token_ids) == [1, 2, 3]
