"""KV-REQ: what a request is made from, and what may be said of it."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Any

from kvcheck.play.verdicts import Level
from kvcheck.rules.bench import Bench
from kvcheck.rules.example import cases, example
from kvcheck.rules.judging import equal, holds, raises
from kvcheck.rules.specs import chunked, sliding
from kvspec.errors import InvalidArgumentError
from kvspec.interface import Feature
from kvspec.request import LoRA, MultimodalItem, PromptEmbeddings, RequestInput
from kvspec.specs import LayerSpec


@cases(-1, 2**63, True, 1.0, "1", None, b"1")
@example("KV-REQ-1", level=Level.SAFETY)
def tokens_are_ints_of_63_bits(bench: Bench, bad: Any) -> None:
    """A bad token is refused with the position that names it, and nothing is changed."""
    manager = bench.manager()
    with manager.refuses(InvalidArgumentError, field="prompt_token_ids[1]"):
        manager.request("r", [5, bad])


@example("KV-REQ-1", level=Level.SAFETY)
def the_largest_token_is_legal(bench: Bench) -> None:
    """9223372036854775807 is a token."""
    request = bench.manager().request("r", [0, 9223372036854775807])
    equal(list(request.token_ids), [0, 9223372036854775807])
    equal((request.num_tokens, request.num_prompt_tokens), (2, 2))


@cases("", None, 7, b"r")
@example("KV-REQ-1", level=Level.SAFETY)
def a_request_is_named_by_a_text_that_is_not_empty(bench: Bench, name: object) -> None:
    with raises(InvalidArgumentError, field="request_id"):
        RequestInput(name, [1])  # type: ignore[arg-type]  # the point


@example("KV-REQ-1", level=Level.SAFETY)
def a_prompt_has_at_least_one_token(bench: Bench) -> None:
    with raises(InvalidArgumentError, field="prompt_token_ids"):
        RequestInput("r", [])


@example("KV-REQ-1", level=Level.IDENTITY)
def making_a_request_changes_no_manager(bench: Bench) -> None:
    """State, events, statistics and samples are what they were."""
    manager = bench.manager(enable_events=True, log_stats=True, residency_sample_rate=1.0)
    before = manager.everything()
    manager.request("r", range(100))
    equal(manager.everything(), before)


HALF_A_PAIR = "\ud83d"
"""Half of a surrogate pair: a str of Python that no UTF-8 text contains."""


@cases(
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
    ({"reports_hits": 1}, "reports_hits"),
)
@example("KV-REQ-1", "KV-HASH-2", "KV-ERR-2", level=Level.SAFETY)
def a_request_has_no_other_content(bench: Bench, members: dict[str, object], field: str) -> None:
    """What has another type, or a text that has no hash, is refused when the value is made."""
    content: dict[str, Any] = {"request_id": "r", "prompt_token_ids": [1], **members}
    with raises(InvalidArgumentError, field=field):
        RequestInput(**content)


@cases(
    (LoRA, ("", 1), "lora.name"),
    (LoRA, (HALF_A_PAIR, 1), "lora.name"),
    (LoRA, ("sql", -1), "lora.id"),
    (MultimodalItem, (7, 0, 1), "identifier"),
    (MultimodalItem, (HALF_A_PAIR, 0, 1), "identifier"),
    (PromptEmbeddings, (b"123", 2), "data"),
    (PromptEmbeddings, ("12", 2), "data"),
    (PromptEmbeddings, (None, 2), "data"),
    (PromptEmbeddings, (b"12", 0), "bytes_per_token"),
)
@example("KV-REQ-1", "KV-HASH-9", "KV-HASH-10", level=Level.SAFETY)
def the_parts_of_a_request_are_checked(
    bench: Bench, part: Callable[..., object], arguments: tuple[object, ...], field: str
) -> None:
    """Adapters, items and embeddings are refused as the request itself is."""
    with raises(InvalidArgumentError, field=field):
        part(*arguments)


class ForeignRequest:
    """Another implementation's request."""

    request_id = "r"
    num_computed_tokens = 0
    num_tokens = 4
    token_ids: Sequence[int] = (1, 2, 3, 4)
    block_hashes: Sequence[bytes] = (bytes(32),)


@cases(ForeignRequest(), "r", None)
@example("KV-REQ-1", "KV-ERR-2")
def a_foreign_request_is_refused(bench: Bench, foreign: object) -> None:
    """What this implementation did not make is no request, and nothing is changed."""
    bench.here("requests that were not made by the subject")
    manager = bench.manager()
    before = manager.visible()
    calls = (
        lambda: manager.get_computed_blocks(foreign),
        lambda: manager.allocate_slots(foreign, 1),  # type: ignore[arg-type]  # the point
        lambda: manager.free(foreign),
    )
    for call in calls:
        with raises(InvalidArgumentError):
            call()  # type: ignore[no-untyped-call]  # the point
    equal(manager.visible(), before)


@example("KV-REQ-2", "KV-HASH-4", level=Level.SAFETY)
def appended_tokens_change_no_manager_and_are_cached_by_the_next_call(bench: Bench) -> None:
    """6 tokens have one hash; 7 and 8 complete the second, which is that of the whole prompt."""
    manager = bench.manager(6)
    request = manager.started("r", range(1, 7))
    (first,) = request.block_hashes
    before = manager.visible()
    manager.append(request, [7, 8])
    manager.append(request, [])
    equal(list(request.token_ids), list(range(1, 9)))
    equal((request.num_tokens, request.num_prompt_tokens), (8, 6))
    whole = manager.request("whole", range(1, 10))
    equal(list(request.block_hashes), [first, whole.block_hashes[1]])
    equal(manager.visible(), before)
    equal(manager.get_computed_blocks(whole).hit_length_tokens, 4)
    manager.run(request, 2)
    equal(manager.get_computed_blocks(whole).hit_length_tokens, 8)


@cases([7, -1], [2**63], [7, True], [None], ["7"])
@example("KV-REQ-2", level=Level.SAFETY)
def an_illegal_token_appends_nothing(bench: Bench, tokens: list[int]) -> None:
    """Tokens and hashes stay as they were, also those before the illegal one."""
    manager = bench.manager(6)
    request = manager.request("r", range(1, 7))
    hashes = list(request.block_hashes)
    with manager.refuses(InvalidArgumentError):
        manager.append(request, tokens)
    equal(list(request.token_ids), [1, 2, 3, 4, 5, 6])
    equal(list(request.block_hashes), hashes)


@cases(13, -1, True, 8.0, None, "8", 2**53, 2**64)
@example("KV-REQ-3", "KV-ERR-6", level=Level.SAFETY)
def computed_tokens_have_slots(bench: Bench, computed: object) -> None:
    """Request a holds 12 slots; more computed tokens, or none that can be counted, are refused."""
    manager, request, _ = bench.story()
    request.num_computed_tokens = computed
    with manager.refuses(InvalidArgumentError) as caught:
        manager.allocate_slots(request, 1)
    holds("num_computed_tokens" in caught.value.field)
    holds(bench.is_remote or caught.value.value == computed)


@example("KV-REQ-3", level=Level.SAFETY)
def a_request_that_holds_nothing_has_computed_nothing(bench: Bench) -> None:
    """Computed tokens without a block would be cached without ever being written."""
    manager = bench.manager()
    request = manager.request("r", range(9))
    request.num_computed_tokens = 4
    with manager.refuses(InvalidArgumentError):
        manager.allocate_slots(request, 4)


@cases(
    (sliding(4, 4), 8, False),
    (sliding(4, 4), 10, False),
    (sliding(4, 4), 11, True),
    (sliding(4, 6, extra_retained_tokens=4), 8, True),
    (chunked(4, 8), 7, False),
    (chunked(4, 8), 8, True),
)
@example("KV-REQ-9", level=Level.SAFETY, since="0.3")
def computed_tokens_do_not_go_back_behind_the_window(
    bench: Bench, spec: LayerSpec, computed: int, is_legal: bool
) -> None:
    """13 tokens, 12 of them computed, and what they do not read any more is gone."""
    bench.need(Feature.SKIPPED_REMOVAL)
    manager = bench.manager(12, spec)
    request = manager.started("a", range(13))
    manager.remove_skipped_blocks(request, 12)
    request.num_computed_tokens = computed
    if is_legal:
        holds(manager.allocate_slots(request, 1) is not None)
        return
    with manager.refuses(InvalidArgumentError) as caught:
        manager.allocate_slots(request, 1)
    holds("num_computed_tokens" in caught.value.field)


@cases(((6, 1), True), ((9, 1), True), ((5, 1), False), ((0, 1), False))
@example("KV-REQ-4", level=Level.SAFETY)
def items_are_sorted_and_apart(bench: Bench, second: tuple[int, int], legal: bool) -> None:
    """Behind an item on tokens 2 … 5 the next may begin at 6, also behind the last token."""
    items = (MultimodalItem("a", 2, 4), MultimodalItem("b", *second))
    if legal:
        request = bench.manager(4).request("r", [0] * 3, multimodal=items)
        equal(list(request.token_ids), [0] * 3)
        return
    with raises(InvalidArgumentError, field="multimodal"):
        RequestInput("r", [0] * 3, multimodal=items)


@cases((-1, 1), (0, 0), (0, -1), (True, 1), (0, 1.0))
@example("KV-REQ-4", level=Level.SAFETY)
def the_offset_of_an_item_is_at_least_0_and_its_length_at_least_1(
    bench: Bench, offset: int, length: int
) -> None:
    with raises(InvalidArgumentError):
        MultimodalItem("a", offset, length)


@example("KV-REQ-5", level=Level.SAFETY)
def tokens_may_come_as_an_array_which_is_read_at_once(bench: Bench) -> None:
    manager = bench.manager(6)
    listed = manager.request("l", (1, 2, 3, 4))
    tokens = array("i", (1, 2, 3, 4))
    request = manager.make_request(RequestInput("r", tokens))
    manager.append(request, array("q", (5, 6)))
    tokens[0] = 9
    equal(list(request.token_ids), [1, 2, 3, 4, 5, 6], "tokens")
    equal(list(request.block_hashes), list(listed.block_hashes), "hashes")
    wrong: tuple[Any, ...] = ({1, 2}, array("d", (1.0, 2.0)), 7)
    for appended in wrong:
        with raises(InvalidArgumentError):
            manager.append(request, appended)
    equal(request.num_tokens, 6, "tokens after errors")
