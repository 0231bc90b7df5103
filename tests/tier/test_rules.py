"""The examples of spec/rules/tier.md, for both tiers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

import kvfast
import kvref
from kvspec.blocks import KVCacheBlocks
from kvspec.errors import InvalidArgumentError, UnsupportedError
from kvspec.interface import Implementation
from kvspec.request import Request
from kvspec.specs import ChunkedLocalAttentionSpec, SlidingWindowSpec
from kvspec.tier import Tier
from tests.fuzz.values import Lie
from tests.tier.machine import FULL, WINDOW, config_of, requests_of, tier_of

TOKENS = list(range(1, 15))  # 14 tokens, keys a, b, c


@pytest.fixture(params=["kvref", "kvfast"])
def implementation(request: pytest.FixtureRequest) -> Implementation:
    return kvref.implementation() if request.param == "kvref" else kvfast.implementation()


def stocked(implementation: Implementation, num_blocks: int = 4) -> tuple[Tier, Request]:
    """a, b and c lie on the host in 1, 2 and 3, a being the oldest."""
    config = config_of([FULL])
    (request,) = requests_of(config, TOKENS)
    tier = tier_of(implementation, config, num_blocks)
    tier.computed(request, 0, 0, [1, 2, 3])
    assert tier.taken([1, 2, 3]) == ((1, 1), (2, 2), (3, 3))
    return tier, request


def names(tier: Tier, request: Request) -> str:
    """The keys on the host, oldest first, by letter; ? for another request's."""
    letters = {(0, bytes(one)): "abc"[i] for i, one in enumerate(request.block_hashes)}
    return "".join(letters.get(key, "?") for key, _ in tier.snapshot().host)


def another(tier: Tier, text: list[int], *blocks: int) -> Request:
    """Blocks that hold the content of another request."""
    (other,) = requests_of(config_of([FULL]), text)
    tier.computed(other, 0, 0, blocks)
    return other


@pytest.mark.rule("KV-TIER-1")
def test_only_blocks_that_are_told_are_kept(implementation: Implementation) -> None:
    config = config_of([FULL])
    (request,) = requests_of(config, list(range(9)))
    tier = tier_of(implementation, config, 4)
    tier.computed(request, 0, 0, [0, 2])
    assert tier.taken([1, 3]) == ()
    assert tier.taken([2]) == ((2, 1),)
    with pytest.raises(InvalidArgumentError, match="blocks"):
        tier.computed(request, 0, 2, [3])  # the third block is not full


@pytest.mark.rule("KV-TIER-2", "KV-TIER-3")
def test_the_oldest_makes_room_and_what_is_there_is_used(implementation: Implementation) -> None:
    tier, request = stocked(implementation)
    another(tier, [7] * 4, 5)
    tier.computed(request, 0, 1, [6])
    assert tier.taken([5, 6]) == ((5, 1),)
    assert names(tier, request) == "c?b"
    assert tier.taken([5, 6]) == ()


@pytest.mark.rule("KV-TIER-2")
def test_of_copies_to_one_host_block_the_last_one_is_made(implementation: Implementation) -> None:
    config = config_of([FULL])
    (request,) = requests_of(config, TOKENS)
    tier = tier_of(implementation, config, 2)
    tier.computed(request, 0, 0, [5, 6, 7])
    assert tier.taken([5, 6, 7]) == ((7, 1),)


@pytest.mark.rule("KV-TIER-3")
def test_of_what_is_held_the_end_is_the_oldest(implementation: Implementation) -> None:
    tier, request = stocked(implementation)
    tier.hold(request, 0, 12)
    assert names(tier, request) == "cba"


@pytest.mark.rule("KV-TIER-4")
def test_a_hit_needs_every_entry_that_is_read(implementation: Implementation) -> None:
    tier, request = stocked(implementation)
    assert tier.lookup(request, 0) == 12
    assert tier.lookup(request, 4) == 8
    assert tier.lookup(request, 12) == 0
    (short,) = requests_of(config_of([FULL]), TOKENS[:12])
    assert tier.lookup(short, 0) == 8  # one token is computed
    tier.computed(request, 0, 1, [2])
    tier.forget([2])
    assert tier.lookup(request, 4) == 0  # b is missing
    assert tier.lookup(request, 0) == 4


@pytest.mark.rule("KV-TIER-4")
def test_a_window_needs_only_what_it_reaches(implementation: Implementation) -> None:
    config = config_of([SlidingWindowSpec(4, 1, 1, "float16", sliding_window=4)])
    (request,) = requests_of(config, TOKENS)
    tier = tier_of(implementation, config, 4)
    tier.computed(request, 0, 2, [3])
    tier.taken([3])
    assert tier.lookup(request, 4) == 8
    tier.hold(request, 4, 8)
    assert tier.load(request, KVCacheBlocks(([1, 0, 8],))) == ((1, 8),)


@pytest.mark.rule("KV-TIER-4")
def test_all_groups_must_have_what_they_need(implementation: Implementation) -> None:
    config = config_of([FULL, WINDOW])
    (request,) = requests_of(config, TOKENS)
    tier = tier_of(implementation, config, 9)
    tier.computed(request, 0, 0, [1, 2, 3])
    tier.taken([1, 2, 3])
    assert tier.lookup(request, 0) == 0
    tier.computed(request, 1, 0, [4])
    tier.taken([4])
    assert tier.lookup(request, 0) == 4  # a window of 6 tokens reads tokens 0 … 3
    assert tier.lookup(request, 4) == 0


@pytest.mark.rule("KV-TIER-5")
def test_what_is_held_stays(implementation: Implementation) -> None:
    tier, request = stocked(implementation)
    tier.hold(request, 4, 8)
    for token in (7, 8, 9):
        another(tier, [token] * 4, 5)
        assert tier.taken([5]) == ((5, 1),)
    assert tier.load(request, KVCacheBlocks(([1, 7, 8],))) == ((2, 7), (3, 8))


@pytest.mark.rule("KV-TIER-2", "KV-TIER-5")
def test_with_everything_held_new_content_is_lost(implementation: Implementation) -> None:
    tier, request = stocked(implementation)
    tier.hold(request, 0, 12)
    another(tier, [7] * 4, 5)
    assert tier.taken([5]) == ()
    tier.drop(request)
    another(tier, [7] * 4, 5)
    assert tier.taken([5]) == ((5, 3),)  # c was the oldest


@pytest.mark.rule("KV-TIER-5")
@pytest.mark.parametrize("external", [0, -4, 2, 16, True, 4.0])
def test_a_hold_of_anything_else_is_refused(
    implementation: Implementation, external: object
) -> None:
    tier, request = stocked(implementation)
    before = tier.snapshot()
    with pytest.raises(InvalidArgumentError, match="num_external_tokens"):
        tier.hold(request, 0, external)  # type: ignore[arg-type] # wrong on purpose
    assert tier.snapshot() == before
    tier.hold(request, 0, 4)
    with pytest.raises(InvalidArgumentError, match="request"):
        tier.hold(request, 0, 4)


@pytest.mark.rule("KV-TIER-6")
def test_loaded_blocks_are_known(implementation: Implementation) -> None:
    tier, request = stocked(implementation)
    tier.hold(request, 4, 8)
    for wrong in ([1, 7], [1, 0, 8]):
        with pytest.raises(InvalidArgumentError, match="blocks"):
            tier.load(request, KVCacheBlocks((wrong,)))
    tier.load(request, KVCacheBlocks(([1, 7, 8],)))
    assert sorted(tier.snapshot().device) == [7, 8]
    assert tier.taken([7]) == ()  # it is on the host
    with pytest.raises(InvalidArgumentError, match="request"):
        tier.load(request, KVCacheBlocks(([1, 7, 8],)))


@pytest.mark.rule("KV-TIER-7")
def test_wrong_content_goes_here_and_there(implementation: Implementation) -> None:
    tier, request = stocked(implementation)
    tier.computed(request, 0, 1, [5])
    tier.hold(request, 0, 4)
    with pytest.raises(InvalidArgumentError, match="held"):
        tier.reset()
    tier.forget([5])
    assert names(tier, request) == "ca"
    assert tier.snapshot().free == (2,)
    tier.computed(request, 0, 0, [5])
    with pytest.raises(InvalidArgumentError, match="blocks"):
        tier.forget([5])
    tier.drop(request)
    tier.reset()
    assert tier.snapshot() == tier_of(implementation, config_of([FULL]), 4).snapshot()


@pytest.mark.rule("KV-TIER-8")
def test_what_it_cannot_serve_is_refused_when_it_is_made(implementation: Implementation) -> None:
    chunked = ChunkedLocalAttentionSpec(4, 1, 1, "float16", attention_chunk_size=8)
    with pytest.raises(UnsupportedError, match="chunked"):
        tier_of(implementation, config_of([chunked]), 4)
    with pytest.raises(InvalidArgumentError, match="num_blocks"):
        tier_of(implementation, config_of([FULL]), 0)
    tier, request = stocked(implementation)
    for local in (-4, 2, 16, None):
        with pytest.raises(InvalidArgumentError, match="num_local_tokens"):
            tier.lookup(request, local)  # type: ignore[arg-type] # wrong on purpose
    for blocks in ([12], [-1], [True]):
        with pytest.raises(InvalidArgumentError, match="blocks"):
            tier.taken(blocks)


@pytest.mark.rule("KV-TIER-8")
@pytest.mark.parametrize("changed", [{"dcp_world_size": 2}, {"enable_caching": False}])
def test_configurations_without_a_tier_name_who_lacks_it(
    implementation: Implementation, changed: dict[str, object]
) -> None:
    config = dataclasses.replace(config_of([FULL]), **changed)  # type: ignore[arg-type] # by name
    name = implementation.capabilities.name
    with pytest.raises(UnsupportedError, match="a host tier") as caught:
        tier_of(implementation, config, 4)
    assert caught.value.implementation == name


def calls(tier: Tier, request: Request) -> list[tuple[Callable[[], object], str, object]]:
    """Illegal calls of a tier that holds the first two keys of a request: field and value."""
    tier.hold(request, 0, 8)
    tier.computed(request, 0, 0, [5])
    wrong: Any = "0"
    return [
        (lambda: tier.computed(request, 1, 0, [1]), "group", 1),
        (lambda: tier.computed(request, -1, 0, [1]), "group", -1),
        (lambda: tier.computed(request, wrong, 0, [1]), "group", wrong),
        (lambda: tier.computed(request, 0, -1, [1]), "first", -1),
        (lambda: tier.computed(request, 0, 0, [12]), "blocks", 12),
        (lambda: tier.computed(request, 0, 2, [1, 2]), "blocks", 2),
        (lambda: tier.lookup(request, 2), "num_local_tokens", 2),
        (lambda: tier.hold(request, 0, 4), "request", request.request_id),
        (lambda: tier.forget([5]), "blocks", [5]),
        (lambda: tier.reset(), "held", [request.request_id]),
        (lambda: tier.load(request, KVCacheBlocks(())), "blocks", "groups[0]"),
        (lambda: tier.load(request, KVCacheBlocks((range(2**70),))), "blocks", "groups[0]"),
        (lambda: tier.load(request, KVCacheBlocks((7,))), "blocks", "groups[0]"),  # type: ignore[arg-type] # wrong on purpose
        (lambda: tier.load(request, KVCacheBlocks(range(2**70))), "groups", range(2**70)),  # type: ignore[arg-type] # the same
        (lambda: tier.load(request, wrong), "blocks", wrong),
        (lambda: tier.load(wrong, KVCacheBlocks(())), "request", wrong),
        (lambda: tier.lookup(wrong, 0), "request", wrong),
        (lambda: tier.hold(wrong, 0, 4), "request", wrong),
        (lambda: tier.drop(wrong), "request", wrong),
        (lambda: tier.computed(wrong, 0, 0, [1]), "request", wrong),
        (lambda: tier.computed(request, 2**70, 0, [1]), "group", 2**70),
        (lambda: tier.computed(request, Lie(2**70, 0), 0, [1]), "group", 2**70),
        (lambda: tier.computed(request, 0, Lie(-1, 0), [1]), "first", -1),
        (lambda: tier.computed(request, 0, 0, [Lie(12, 3)]), "blocks", 12),
        (lambda: tier.lookup(request, Lie(-4, 4)), "num_local_tokens", -4),
        (lambda: tier.taken(7), "blocks", 7),  # type: ignore[arg-type] # wrong on purpose
        (lambda: tier.taken(range(2**70)), "blocks", 12),
        (lambda: tier.forget({5}), "blocks", {5}),  # type: ignore[arg-type] # the same
    ]


@pytest.mark.rule("KV-TIER-8")
@pytest.mark.parametrize("number", range(28))
def test_an_illegal_call_names_the_value_and_changes_nothing(
    implementation: Implementation, number: int
) -> None:
    tier, request = stocked(implementation)
    call, field, value = calls(tier, request)[number]
    before = tier.snapshot()
    with pytest.raises(InvalidArgumentError) as caught:
        call()
    assert (caught.value.field, caught.value.value) == (field, value)
    assert tier.snapshot() == before
    tier.drop(request)
    with pytest.raises(InvalidArgumentError) as caught:
        tier.load(request, KVCacheBlocks(([1, 2],)))
    assert (caught.value.field, caught.value.value) == ("request", request.request_id)
    with pytest.raises(InvalidArgumentError) as caught:
        tier.hold(request, 0, 16)
    assert (caught.value.field, caught.value.value) == ("num_external_tokens", 16)
