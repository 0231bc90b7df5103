"""Values of wrong types, which no tier accepts and the notation cannot express."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import kvfast
import kvref
from kvspec.blocks import KVCacheBlocks
from kvspec.errors import InvalidArgumentError, UnsupportedError
from kvspec.interface import Implementation
from kvspec.request import Request
from kvspec.specs import ChunkedLocalAttentionSpec
from kvspec.tier import Tier
from tests.contract.hostile import UNREADABLE, Liar, hits_of
from tests.tier.machine import FULL, config_of, requests_of, tier_of

TOKENS = list(range(1, 15))  # 14 tokens, keys a, b, c


@pytest.fixture(params=["kvref", "kvfast"])
def implementation(request: pytest.FixtureRequest) -> Implementation:
    return kvref.implementation() if request.param == "kvref" else kvfast.implementation()


def stocked(implementation: Implementation, num_blocks: int = 4) -> tuple[Tier, Request]:
    """Return a tier with a, b and c on the host in 1, 2 and 3, a being the oldest."""
    config = config_of([FULL])
    (request,) = requests_of(config, TOKENS)
    tier = tier_of(implementation, config, num_blocks)
    tier.computed(request, 0, 0, [1, 2, 3])
    assert tier.taken([1, 2, 3]) == ((1, 1), (2, 2), (3, 3))
    return tier, request


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


def calls(tier: Tier, request: Request) -> list[tuple[Callable[[], object], str, object]]:
    """Return illegal calls of a tier with the first two keys of a request: field and value."""
    tier.hold(request, 0, 8)
    tier.computed(request, 0, 0, [5])
    wrong: Any = "0"
    unread = hits_of(UNREADABLE[0])
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
        (lambda: tier.load(request, unread), "blocks", unread),
        (lambda: tier.load(request, wrong), "blocks", wrong),
        (lambda: tier.load(wrong, KVCacheBlocks(())), "request", wrong),
        (lambda: tier.lookup(wrong, 0), "request", wrong),
        (lambda: tier.hold(wrong, 0, 4), "request", wrong),
        (lambda: tier.drop(wrong), "request", wrong),
        (lambda: tier.computed(wrong, 0, 0, [1]), "request", wrong),
        (lambda: tier.computed(request, 2**70, 0, [1]), "group", 2**70),
        (lambda: tier.computed(request, Liar(2**70), 0, [1]), "group", 2**70),
        (lambda: tier.computed(request, 0, Liar(-1), [1]), "first", -1),
        (lambda: tier.computed(request, 0, 0, [Liar(12)]), "blocks", 12),
        (lambda: tier.lookup(request, Liar(-4)), "num_local_tokens", -4),
        (lambda: tier.taken(7), "blocks", 7),  # type: ignore[arg-type] # wrong on purpose
        (lambda: tier.taken(range(2**70)), "blocks", 12),
        (lambda: tier.forget({5}), "blocks", {5}),  # type: ignore[arg-type] # the same
    ]


@pytest.mark.rule("KV-TIER-8")
@pytest.mark.parametrize("number", range(29))
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
