"""Every call of a manager by its name: whoever stands between hears all of it, answers travel."""

from __future__ import annotations

from inspect import signature
from typing import Any

import pytest

from kvcheck.play.calls import (
    ANSWERS,
    CALLS,
    DECODED,
    DEFAULTS,
    NOWHERE,
    POSITIONAL,
    Delegating,
    decoded,
    make,
    plain,
)
from kvspec._json import Where
from kvspec.blocks import GroupHits, KVCacheBlocks, PrefixHit
from kvspec.errors import UnsupportedError
from kvspec.events import AllBlocksCleared, BlockRemoved
from kvspec.inside import BlockCopies, CopyingManager
from kvspec.request import Request
from kvspec.stats import PrefixCacheStats

HERE = Where("an answer")


class Listens(Delegating):
    def __init__(self) -> None:
        self.heard: list[tuple[str, Any, dict[str, Any]]] = []

    def _made(self, name: str, request: Request | None, given: dict[str, Any]) -> Any:
        self.heard.append((name, request, given))
        return f"answer of {name}"


@pytest.mark.parametrize("name", CALLS)
def test_a_call_is_heard_with_all_its_arguments_by_their_names(name: str) -> None:
    """Those that are left out have the interface's defaults; the answer comes back."""
    parameters = list(signature(getattr(CopyingManager, name)).parameters.values())[1:]
    listens = Listens()  # type: ignore[abstract]  # made of the interface
    call = getattr(listens, name)
    required = {each.name: f"a {each.name}" for each in parameters if each.default is each.empty}
    every = {each.name: f"a {each.name}" for each in parameters}
    if name in NOWHERE:
        with pytest.raises(UnsupportedError, match=f"{name}.*Listens|Listens.*{name}"):
            call(**required)
        return
    usual = {each.name: each.default for each in parameters if each.default is not each.empty}
    for given, expected in ((required, required | usual), (every, every)):
        assert call(**given) == f"answer of {name}"
        about = expected.get("request")
        others = {k: v for k, v in expected.items() if k != "request"}
        assert listens.heard.pop() == (name, about, others)


@pytest.mark.parametrize("name", DEFAULTS)
def test_every_argument_of_a_record_reaches_the_manager(name: str) -> None:
    given = {option: f"another {option}" for option in DEFAULTS[name]}
    given |= {argument: argument for argument in POSITIONAL.get(name, ())}
    if name == "get_num_blocks_to_allocate":
        given |= dict.fromkeys(("num_tokens", "total_computed_tokens"), "a number")
        given |= {"num_tokens_main_model": "another"}
    listens: Any = Listens()  # type: ignore[abstract]  # made of the interface
    make(listens, name, None, given)
    assert listens.heard == [(name, None, given)]


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


class Manager:
    def __getattr__(self, name: str) -> Any:
        return lambda *positional, **named: (name, positional, named)


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        (
            "allocate_slots",
            {"new_computed_blocks": [[1], []], "num_new_tokens": 3, "reserved_blocks": 1},
            (("r", 3), {"new_computed_blocks": KVCacheBlocks(((1,), ())), "reserved_blocks": 1}),
        ),
        (
            "allocate_slots",
            {"new_computed_blocks": None, "num_new_tokens": 3},
            (("r", 3), {"new_computed_blocks": None}),
        ),
        ("evict_blocks", {"block_ids": [2, 1]}, (((2, 1),), {})),
        ("free_blocks", {"block_ids": "no list"}, (("no list",), {})),
        ("cache_partial_block", {"num_tokens": 3, "group": 1}, (("r", 1, 3), {})),
        ("find_longest_cache_hit_per_group", {"max_cache_hit_length": 5}, (("r", 5), {})),
        ("record_prefix_cache_stats", {"num_hits": 5}, (("r", 5), {})),
        ("withdraw", {"num_computed_tokens": 5}, (("r", 5), {})),
        ("reset_prefix_cache", {}, ((), {})),
        ("get_num_blocks_to_allocate", {"num_tokens": 5}, (("r",), {"num_tokens": 5})),
    ],
)
def test_a_call_is_made_of_plain_values(name: str, given: Any, expected: Any) -> None:
    """Lists as tuples; the request first, then what implementations may call otherwise."""
    manager, request = Manager(), "r"
    assert make(manager, name, request, given) == (name, *expected)  # type: ignore[arg-type]
