"""Examples about values that only Python has: requests, configurations, errors."""

from __future__ import annotations

import dataclasses
from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from kvcheck.play.verdicts import Level
from kvcheck.rules.bench import Bench
from kvcheck.rules.example import cases, example
from kvcheck.rules.judging import equal, holds, raises
from kvcheck.rules.specs import cross, full
from kvspec.config import KVCacheConfig, KVCacheGroup
from kvspec.errors import (
    BlockReleaseError,
    ConfigError,
    InvalidArgumentError,
    InvariantViolation,
    KVSpecError,
    StaleHitError,
    UnknownBlockError,
    UnsupportedError,
)
from kvspec.interface import Feature
from kvspec.request import LoRA, MultimodalItem, PromptEmbeddings, RequestInput
from kvspec.specs import FullAttentionSpec, LayerSpec, MLAAttentionSpec


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


@example("KV-CFG-1")
def specs_are_equal_values_of_one_type(bench: Bench) -> None:
    """Check that equal fields make equal specs; another field or type makes them differ."""
    equal(full(16), full(16))
    equal(hash(full(16)), hash(full(16)))
    holds(full(16) != full(16, head_size=16))
    holds(FullAttentionSpec(16, 1, 8, "float16") != MLAAttentionSpec(16, 1, 8, "float16"))


@example("KV-CFG-1", level=Level.SAFETY)
def specs_are_frozen(bench: Bench) -> None:
    """Check that a spec cannot be changed, and is validated when it is made."""
    with raises(dataclasses.FrozenInstanceError):
        full().block_size = 8  # type: ignore[misc]  # the point
    with raises(ConfigError, field="block_size"):
        full(0)


@cases("sha256_cbor", "sha256_cbor_64bit", "xxhash_cbor")
@example("KV-ERR-5", "KV-POL-8")
def hash_functions_are_served_as_the_capabilities_say(bench: Bench, function: str) -> None:
    bench.manager(6)  # with prefix caching at all
    config = bench.config(6, hash_function=function, trusted_tenants=True)
    if function in bench.subject.capabilities.hash_functions:
        equal(bench.create(config).config.hash_function, function)
        return
    with raises(UnsupportedError):
        bench.subject.create(config)


@cases(full(4), MLAAttentionSpec(4, 1, 8, "float16"), cross(4))
@example("KV-ERR-5", "KV-POL-8")
def specs_are_served_as_the_capabilities_say(bench: Bench, spec: LayerSpec) -> None:
    config = bench.config(6, spec, enable_caching=False)
    if type(spec) in bench.subject.capabilities.spec_types:
        bench.create(config)
        return
    with raises(UnsupportedError):
        bench.subject.create(config)


@cases(
    (InvalidArgumentError, ValueError),
    (ConfigError, InvalidArgumentError),
    (StaleHitError, InvalidArgumentError),
    (BlockReleaseError, InvalidArgumentError),
    (UnknownBlockError, KeyError),
    (UnsupportedError, NotImplementedError),
    (InvariantViolation, KVSpecError),
)
@example("KV-ERR-2")
def every_error_is_of_the_contract(
    bench: Bench, error: type[Exception], also: type[Exception]
) -> None:
    """Check that each is a KVSpecError, and the built-in error that a caller would catch."""
    holds(issubclass(error, KVSpecError))
    holds(issubclass(error, also))


@cases(None, 7, [], (("layer",),))
@example("KV-ERR-5", level=Level.SAFETY)
def groups_are_a_tuple_of_groups(bench: Bench, groups: tuple[KVCacheGroup, ...]) -> None:
    """Check that anything else is refused."""
    with raises(ConfigError, field="groups"):
        KVCacheConfig(6, groups)


class UnheardOfSpec(LayerSpec):
    """A spec that no implementation knows."""


@example("KV-ERR-5")
def a_spec_that_is_lacking_is_named(bench: Bench) -> None:
    """Check that the UnsupportedError names the spec and the implementation."""
    with raises(UnsupportedError) as caught:
        bench.subject.create(bench.config(6, UnheardOfSpec(4)))
    holds("UnheardOfSpec" in caught.value.capability)
    equal(caught.value.implementation, bench.subject.capabilities.name)


@cases(
    ("num_preemptions", -1), ("status", "asleep"), ("num_computed_tokens", -1),
    ("junction_tokens", -1), ("junction_tokens", True), ("num_in_flight_tokens", -1),
)  # fmt: skip
@example("KV-ERR-2")
def what_the_scheduler_says_of_a_request_is_checked(
    bench: Bench, member: str, value: object
) -> None:
    """Check that the error names the member and its value, when it is set or when it is used."""
    manager, a, _ = bench.story()
    needed = {"junction_tokens": Feature.JUNCTIONS, "num_in_flight_tokens": Feature.IN_FLIGHT}
    bench.need(*(feature for name, feature in needed.items() if name == member))

    def say_so_and_allocate() -> None:
        setattr(a, member, value)
        manager.allocate_slots(a, 1)

    with raises(InvalidArgumentError) as caught:
        say_so_and_allocate()
    holds(not isinstance(caught.value, ConfigError))
    holds(caught.value.field in (member, f"request.{member}"))
    equal(caught.value.value, value)


@example("KV-ERR-2", level=Level.IDENTITY)
def what_is_no_clock_configuration_or_manager_is_shown(bench: Bench) -> None:
    manager, a, _ = bench.story()
    config: Any = 7
    wrong: list[tuple[Callable[[], object], str]] = [
        (lambda: bench.manager(6, clock=7), "clock"),
        (lambda: bench.subject.create(config), "config"),
        (lambda: bench.subject.make_request(7, a), "manager"),  # type: ignore[arg-type]  # the point
        (lambda: manager.make_request(7), "request"),
        (lambda: bench.restore(manager.config, 7), "snapshot"),
    ]
    for call, field in wrong:
        with raises(InvalidArgumentError) as caught:
            call()
        equal((caught.value.field, caught.value.value), (field, 7))
    leaked = replace(manager.snapshot(), free_queue=())
    with raises(InvalidArgumentError, field="snapshot"):
        bench.restore(manager.config, leaked)
