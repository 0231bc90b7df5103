"""KV-REQ: the content of a request, and the members that its scheduler sets."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Any

from kvcheck.play.verdicts import Level
from kvcheck.rules.bench import Bench
from kvcheck.rules.example import cases, example
from kvcheck.rules.judging import equal, raises
from kvspec.errors import InvalidArgumentError
from kvspec.request import LoRA, MultimodalItem, PromptEmbeddings, RequestInput


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
    """Check that state, events, statistics and samples are unchanged."""
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
    """Check that another type, or a text that has no hash, is refused when the value is made."""
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
    """Check that adapters, items and embeddings are refused as the request itself is."""
    with raises(InvalidArgumentError, field=field):
        part(*arguments)


class ForeignRequest:
    request_id = "r"
    num_computed_tokens = 0
    num_tokens = 4
    token_ids: Sequence[int] = (1, 2, 3, 4)
    block_hashes: Sequence[bytes] = (bytes(32),)


@cases(ForeignRequest(), "r", None)
@example("KV-REQ-1", "KV-ERR-2")
def a_foreign_request_is_refused(bench: Bench, foreign: object) -> None:
    """Check that a request of another implementation is refused and nothing is changed."""
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
