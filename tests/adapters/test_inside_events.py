"""Differences between the events of a step are distinguished, and none is taken for another."""

from __future__ import annotations

from dataclasses import replace

import pytest

from examples.vllm.inside_events import FORM, NEW, PASSING, causes
from kvspec.events import BlockRemoved, BlockStored, Event

WHOLE, TAIL = b"\1" * 32, b"\2" * 32
STORED = BlockStored((TAIL,), WHOLE, (5, 6, 7, 8), 4, None, None, "GPU", (None,), 1, "mamba", None)
BOTH = replace(STORED, block_hashes=(WHOLE, TAIL), extra_keys=(None, None))
NONE = replace(STORED, block_hashes=(), extra_keys=None)
PART = replace(STORED, token_ids=(7, 8), block_size_tokens=2, parent_block_hash=b"\3" * 32)
GONE = BlockRemoved((WHOLE,), "GPU", 1)


@pytest.mark.parametrize(
    ("expected", "got", "found"),
    [
        ([STORED], [STORED], set()),
        ([STORED], [BOTH, GONE], {PASSING}),
        ([GONE, STORED], [GONE, BOTH, GONE], {PASSING}),
        ([STORED], [NONE, PART], {FORM}),
        ([STORED], [BOTH], {NEW}),
        ([STORED], [STORED, GONE], {NEW}),
        ([STORED], [NONE], {NEW}),
        ([STORED], [replace(STORED, token_ids=(1, 2, 3, 4))], {NEW}),
        ([PART], [NONE, STORED], {NEW}),
        ([STORED], [replace(BOTH, parent_block_hash=None), GONE], {PASSING, NEW}),
    ],
)
def test_what_differs_between_two_lists_of_events(
    expected: list[Event], got: list[Event], found: set[str]
) -> None:
    assert causes(expected, got) == found
