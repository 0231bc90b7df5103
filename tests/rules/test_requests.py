"""KV-REQ: what a request is made from, and what may be said of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from kvspec.errors import InvalidArgumentError
from kvspec.interface import Implementation
from kvspec.request import LoRA, MultimodalItem, PromptEmbeddings, RequestInput
from tests.rules.builders import (
    MakeManager,
    MakeRequest,
    Story,
    admit,
    cached_blocks,
    cached_count,
    everything,
    run_on,
)


@pytest.mark.rule("KV-REQ-1")
@pytest.mark.parametrize("bad", [-1, 2**63, True, 1.0, "1", None, b"1"])
def test_tokens_are_ints_of_64_bits(
    make_manager: MakeManager, make_request: MakeRequest, bad: object
) -> None:
    """A bad token is refused with the position that names it, and nothing is changed."""
    manager = make_manager(enable_events=True, log_stats=True)
    before = everything(manager)
    with pytest.raises(InvalidArgumentError) as caught:
        make_request(manager, "r", [5, bad])
    assert caught.value.field == "prompt_token_ids[1]"
    assert everything(manager) == before


@pytest.mark.rule("KV-REQ-1")
def test_the_largest_token_is_legal(make_manager: MakeManager, make_request: MakeRequest) -> None:
    """9223372036854775807 is a token."""
    request = make_request(make_manager(), "r", [0, 9223372036854775807])
    assert list(request.token_ids) == [0, 9223372036854775807]
    assert (request.num_tokens, request.num_prompt_tokens) == (2, 2)


@pytest.mark.rule("KV-REQ-1")
@pytest.mark.parametrize("name", ["", None, 7, b"r"])
def test_a_request_is_named_by_a_text(name: object) -> None:
    """An empty name, or one that is no text, is refused."""
    with pytest.raises(InvalidArgumentError) as caught:
        RequestInput(name, [1])  # type: ignore[arg-type]  # the point of the test
    assert caught.value.field == "request_id"


@pytest.mark.rule("KV-REQ-1")
def test_a_prompt_has_a_token() -> None:
    """A prompt without tokens is refused."""
    with pytest.raises(InvalidArgumentError) as caught:
        RequestInput("r", [])
    assert caught.value.field == "prompt_token_ids"


@pytest.mark.rule("KV-REQ-1")
def test_making_a_request_changes_no_manager(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """State, events, statistics and samples are what they were."""
    manager = make_manager(enable_events=True, log_stats=True, residency_sample_rate=1.0)
    before = everything(manager)
    make_request(manager, "r", range(100))
    assert everything(manager) == before


HALF_A_PAIR = "\ud83d"
"""Half of a surrogate pair: a str of Python that no UTF-8 text contains."""


@pytest.mark.rule("KV-REQ-1", "KV-HASH-2", "KV-ERR-2")
@pytest.mark.parametrize(
    ("members", "field"),
    [
        ({"request_id": HALF_A_PAIR}, "request_id"),
        ({"cache_salt": HALF_A_PAIR}, "cache_salt"),
        ({"cache_salt": b"salt"}, "cache_salt"),
        ({"prompt_token_ids": None}, "prompt_token_ids"),
        ({"prompt_token_ids": 7}, "prompt_token_ids"),
        ({"lora": "sql"}, "lora"),
        ({"multimodal": None}, "multimodal"),
        ({"multimodal": ("img",)}, "multimodal"),
        ({"prompt_embeddings": b"1234"}, "prompt_embeddings"),
        ({"skip_reading_cache": 1}, "skip_reading_cache"),
    ],
)
def test_a_request_has_no_other_content(members: dict[str, object], field: str) -> None:
    """What has another type, or a text that has no hash, is refused when the value is made."""
    content: dict[str, Any] = {"request_id": "r", "prompt_token_ids": [1], **members}
    with pytest.raises(InvalidArgumentError) as caught:
        RequestInput(**content)
    assert caught.value.field == field


@pytest.mark.rule("KV-REQ-1", "KV-HASH-9", "KV-HASH-10")
@pytest.mark.parametrize(
    ("part", "arguments", "field"),
    [
        (LoRA, ("", 1), "lora.name"),
        (LoRA, (HALF_A_PAIR, 1), "lora.name"),
        (LoRA, ("sql", -1), "lora.id"),
        (MultimodalItem, (7, 0, 1), "identifier"),
        (MultimodalItem, (HALF_A_PAIR, 0, 1), "identifier"),
        (PromptEmbeddings, (b"123", 2), "data"),
        (PromptEmbeddings, ("12", 2), "data"),
        (PromptEmbeddings, (None, 2), "data"),
        (PromptEmbeddings, (b"12", 0), "bytes_per_token"),
    ],
)
def test_the_parts_of_a_request_are_checked(
    part: Callable[..., object], arguments: tuple[object, ...], field: str
) -> None:
    """Adapters, items and embeddings are refused as the request itself is."""
    with pytest.raises(InvalidArgumentError) as caught:
        part(*arguments)
    assert caught.value.field == field


class ForeignRequest:
    """Another implementation's request."""

    request_id = "r"
    num_computed_tokens = 0
    num_tokens = 4
    token_ids: Sequence[int] = (1, 2, 3, 4)
    block_hashes: Sequence[bytes] = (bytes(32),)


@pytest.mark.rule("KV-REQ-1", "KV-ERR-2")
@pytest.mark.parametrize("foreign", [ForeignRequest(), "r", None])
def test_a_foreign_request_is_refused(make_manager: MakeManager, foreign: object) -> None:
    """What this implementation did not make is no request, and nothing is changed."""
    manager = make_manager()
    before = manager.snapshot()
    calls = (
        lambda: manager.get_computed_blocks(foreign),  # type: ignore[arg-type]  # the point
        lambda: manager.allocate_slots(foreign, 1),  # type: ignore[arg-type]  # of the test
        lambda: manager.free(foreign),  # type: ignore[arg-type]  # the same
    )
    for call in calls:
        with pytest.raises(InvalidArgumentError):
            call()
    assert manager.snapshot() == before


@pytest.mark.rule("KV-REQ-2", "KV-HASH-4")
def test_appending_tokens_completes_hashes(
    implementation: Implementation, make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """6 tokens have one hash; 7 and 8 complete the second, which is that of the whole prompt."""
    manager = make_manager(6, 4)
    request = make_request(manager, "r", range(1, 7))
    admit(manager, request)
    (first,) = request.block_hashes
    before = manager.snapshot()
    implementation.append_tokens(manager, request, [7, 8])
    assert request.num_tokens == 8
    assert request.num_prompt_tokens == 6
    whole = make_request(manager, "whole", range(1, 9))
    assert list(request.block_hashes) == [first, whole.block_hashes[1]]
    assert manager.snapshot() == before
    run_on(manager, request, 2)
    assert cached_blocks(manager) == {1, 2}


@pytest.mark.rule("KV-REQ-2")
@pytest.mark.parametrize("tokens", [[7, -1], [2**63], [7, True], [None], ["7"]])
def test_an_illegal_token_appends_nothing(
    implementation: Implementation,
    make_manager: MakeManager,
    make_request: MakeRequest,
    tokens: list[int],
) -> None:
    """Tokens and hashes stay as they were, also those before the illegal one."""
    manager = make_manager(6, 4)
    request = make_request(manager, "r", range(1, 7))
    hashes = list(request.block_hashes)
    with pytest.raises(InvalidArgumentError):
        implementation.append_tokens(manager, request, tokens)
    assert list(request.token_ids) == [1, 2, 3, 4, 5, 6]
    assert list(request.block_hashes) == hashes


@pytest.mark.rule("KV-REQ-2")
def test_no_token_can_be_appended(
    implementation: Implementation, make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """Appending nothing is legal and does nothing."""
    manager = make_manager(6, 4)
    request = make_request(manager, "r", range(1, 7))
    implementation.append_tokens(manager, request, [])
    assert list(request.token_ids) == [1, 2, 3, 4, 5, 6]


@pytest.mark.rule("KV-REQ-3")
@pytest.mark.parametrize("computed", [13, -1, True, 8.0, None, "8"])
def test_computed_tokens_have_slots(story: Story, computed: object) -> None:
    """Request a holds 12 slots; more computed tokens, or none that can be counted, are refused."""
    manager, request = story.manager, story.a
    before = manager.snapshot()
    request.num_computed_tokens = computed  # type: ignore[assignment]  # the point of the test
    with pytest.raises(InvalidArgumentError) as caught:
        manager.allocate_slots(request, 1)
    assert "num_computed_tokens" in caught.value.field
    assert manager.snapshot() == before


@pytest.mark.rule("KV-REQ-3")
def test_a_request_that_holds_nothing_has_computed_nothing(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """Computed tokens without a block would be cached without ever being written."""
    manager = make_manager()
    request = make_request(manager, "r", range(9))
    request.num_computed_tokens = 4
    with pytest.raises(InvalidArgumentError):
        manager.allocate_slots(request, 4)
    assert manager.snapshot() == make_manager().snapshot()


@pytest.mark.rule("KV-REQ-3", "KV-MGR-10")
def test_computed_tokens_may_run_ahead_of_the_sampler(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """8 tokens are finalised, 10 computed: legal, and nothing beyond the 8 is cached."""
    manager = make_manager(6, 4)
    request = make_request(manager, "r", range(8))
    admit(manager, request, 10)
    assert request.num_computed_tokens == 10
    run_on(manager, request, 2)
    assert cached_blocks(manager) == {1, 2}
    assert cached_count(manager, request) == 2


@pytest.mark.rule("KV-REQ-4")
@pytest.mark.parametrize(
    ("second", "legal"), [((6, 1), True), ((9, 1), True), ((5, 1), False), ((0, 1), False)]
)
def test_items_are_sorted_and_apart(second: tuple[int, int], legal: bool) -> None:
    """Behind an item on tokens 2 … 5 the next may begin at 6, not at 5 and not before."""
    items = (MultimodalItem("a", 2, 4), MultimodalItem("b", *second))
    if legal:
        assert RequestInput("r", [0] * 3, multimodal=items).multimodal == items
        return
    with pytest.raises(InvalidArgumentError) as caught:
        RequestInput("r", [0] * 3, multimodal=items)
    assert caught.value.field == "multimodal"


@pytest.mark.rule("KV-REQ-4")
@pytest.mark.parametrize(("offset", "length"), [(-1, 1), (0, 0), (0, -1), (True, 1), (0, 1.0)])
def test_an_item_has_an_offset_and_a_length(offset: int, length: int) -> None:
    """The offset is at least 0 and the length at least 1."""
    with pytest.raises(InvalidArgumentError):
        MultimodalItem("a", offset, length)
