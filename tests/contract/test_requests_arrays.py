"""KV-REQ-5: prompts and appended tokens given as arrays; any form beside kvref: tests/kvfast."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy
import pytest

from kvcheck.rules.bench import Bench
from kvspec.errors import InvalidArgumentError
from kvspec.request import RequestInput
from tests.contract.hostile import Tensor

FORMS: dict[str, Callable[[Sequence[int]], Any]] = {
    **{code: partial(array, code) for code in "iqH"},
    **{kind: partial(numpy.array, dtype=kind) for kind in ("int32", "int64", "uint16", ">i4")},
    "every second": lambda tokens: numpy.array(tokens).repeat(2)[::2],
    "tolist": lambda tokens: Tensor(array("q", tokens)),
}


@pytest.mark.rule("KV-REQ-5")
@pytest.mark.parametrize("form", FORMS)
def test_an_array_is_read_as_its_list(bench: Bench, form: str) -> None:
    manager = bench.manager()
    listed = manager.request("listed", range(1, 9))
    request = manager.make_request(RequestInput("r", FORMS[form](range(1, 7))))
    manager.append(request, FORMS[form]([7, 8]))
    assert list(request.token_ids) == list(range(1, 9))
    assert {type(token) for token in request.token_ids} == {int}
    assert list(request.block_hashes) == list(listed.block_hashes)
    assert (request.num_tokens, request.num_prompt_tokens) == (8, 6)


@pytest.mark.rule("KV-REQ-1", "KV-REQ-5", "KV-ERR-2")
@pytest.mark.parametrize(
    ("wrong", "at"),
    [
        (numpy.array([5, -1]), "[1]"),
        (numpy.array([5, -1], dtype="int32"), "[1]"),
        (array("q", [5, -1]), "[1]"),
        (array("i", [5, -1]), "[1]"),
        (numpy.array([5, 2**63], dtype="uint64"), "[1]"),
        (numpy.array([5.0]), "[0]"),
        (numpy.array([True]), "[0]"),
        (numpy.array([[5, 6]]), "[0]"),
        ([5, numpy.int64(5)], "[1]"),
        ({1, 2}, ""),
        (numpy.array(5), ""),
        (numpy.array([1, 2]).astype(">i8").data, ""),
        (numpy.array([1, 2]).astype("object").data, ""),
    ],
    ids=lambda wrong: f"{wrong!r:.40}".partition(" at 0x")[0],  # the same in each process
)
def test_what_is_no_list_of_tokens_is_refused(bench: Bench, wrong: Any, at: str) -> None:
    manager = bench.manager()
    with pytest.raises(InvalidArgumentError) as caught:
        manager.make_request(RequestInput("r", wrong))
    assert caught.value.field == f"prompt_token_ids{at}"
    request = manager.request("r", [1, 2, 3])
    with pytest.raises(InvalidArgumentError) as caught:
        manager.append(request, wrong)
    assert caught.value.field == f"token_ids{at}"
    assert (list(request.token_ids), len(request.block_hashes)) == ([1, 2, 3], 0)
