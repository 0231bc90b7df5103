"""Answers of a manager's calls in plain values, and back."""

from __future__ import annotations

from typing import Any

import pytest

from kvcheck.play.calls import (
    ANSWERS,
    DECODED,
    decoded,
    plain,
)
from kvspec._json import Where
from kvspec.blocks import GroupHits, KVCacheBlocks, PrefixHit
from kvspec.events import AllBlocksCleared, BlockRemoved
from kvspec.inside import BlockCopies
from kvspec.stats import PrefixCacheStats

HERE = Where("an answer")


BLOCKS = KVCacheBlocks(((1, 0), (2,)))
LISTS = [[1, 0], [2]]
ROUND: dict[str, tuple[Any, Any]] = {
    "get_computed_blocks": (
        PrefixHit(BLOCKS, 4, 2),
        {"blocks": LISTS, "num_computed_tokens": 4, "num_uncached_common_prefix_tokens": 2},
    ),
    "find_longest_cache_hit_per_group": (
        GroupHits(BLOCKS, (4, 2)), {"blocks": LISTS, "hit_lengths": [4, 2]},
    ),
    "allocate_slots": (BLOCKS, LISTS),
    "pop_blocks_for_free": ((3, 1), [3, 1]),
    "cache_partial_block": (True, True),
    "withdraw": (("a", "b"), ["a", "b"]),
    "reset_prefix_cache": (False, False),
    "get_num_common_prefix_blocks": ((2, 0), [2, 0]),
    "get_num_blocks_to_allocate": (3, 3),
    "take_new_block_ids": ((3, 1), [3, 1]),
    "take_block_copies": (
        BlockCopies(((3, 1),), (3, 1)),
        {"pairs": [[3, 1]], "retained": [3, 1]},
    ),
    "make_prefix_cache_stats": (
        PrefixCacheStats(requests=1, queries_tokens=5, hits_tokens=4),
        None,
    ),
    "take_events": ((BlockRemoved((b"h",), "GPU", 1), AllBlocksCleared()), None),
}  # fmt: skip


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_in_plain_values_is_the_same_answer(name: str) -> None:
    answer, expected = ROUND[name]
    said = plain(name, answer)
    assert expected is None or said == expected
    assert decoded(name, said, HERE, int_hashes=False) == answer
    assert decoded(name, None, HERE, int_hashes=False) is None


def test_what_is_answered_of_lists_of_a_request_and_of_samples() -> None:
    assert set(DECODED) - set(ANSWERS) == {
        "get_blocks", "get_unhashed_block_ids", "take_residency_samples",
    }  # fmt: skip
    assert decoded("get_blocks", {"blocks": LISTS}, HERE, int_hashes=False) == BLOCKS
    unhashed = decoded("get_unhashed_block_ids", {"unhashed": LISTS}, HERE, int_hashes=False)
    assert unhashed == ((1, 0), (2,))
    assert decoded("take_residency_samples", [1, 2], HERE, int_hashes=False) == (1, 2)


def test_a_call_without_an_answer_has_none_whatever_came() -> None:
    assert plain("free", "thanks") is None
    assert plain("allocate_slots", None) is None
    assert plain("make_prefix_cache_stats", None) is None
    hit = PrefixHit(BLOCKS, 0, None)
    assert plain("get_computed_blocks", hit)["num_uncached_common_prefix_tokens"] is None


def test_a_number_that_is_none_is_no_answer() -> None:
    with pytest.raises(TypeError):
        plain("get_num_blocks_to_allocate", "3")
    with pytest.raises(TypeError):
        plain("get_computed_blocks", PrefixHit(BLOCKS, 1.5, None))  # type: ignore[arg-type]
