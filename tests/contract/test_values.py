"""Values of the contract refuse what they cannot be; no implementation takes part."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from kvspec import errors
from kvspec.config import KVCacheConfig
from kvspec.request import LoRA, MultimodalItem, PromptEmbeddings, RequestInput
from kvspec.specs import FullAttentionSpec, MLAAttentionSpec

HALF_A_PAIR = "\ud83d"
"""Half of a surrogate pair: a str of Python that no UTF-8 text contains."""


@pytest.mark.parametrize(
    ("kind", "given", "field"),
    [
        *((RequestInput, (name, [1]), "request_id") for name in ("", None, 7, b"r", HALF_A_PAIR)),
        (RequestInput, ("r", []), "prompt_token_ids"),
        (RequestInput, ("r", None), "prompt_token_ids"),
        (RequestInput, ("r", 7), "prompt_token_ids"),
        *((RequestInput, ("r", [1], salt), "cache_salt") for salt in (HALF_A_PAIR, b"salt")),
        (LoRA, ("", 1), "lora.name"),
        (LoRA, (HALF_A_PAIR, 1), "lora.name"),
        (LoRA, ("sql", -1), "lora.id"),
        (MultimodalItem, (7, 0, 1), "identifier"),
        (MultimodalItem, (HALF_A_PAIR, 0, 1), "identifier"),
        *((PromptEmbeddings, (data, 2), "data") for data in (b"123", "12", None)),
        (PromptEmbeddings, (b"12", 0), "bytes_per_token"),
        (KVCacheConfig, (6, None), "groups"),
        (KVCacheConfig, (6, []), "groups"),
        (KVCacheConfig, (6, (("layer",),)), "groups"),
        (FullAttentionSpec, (0, 1, 8, "float16"), "block_size"),
    ],
)
def test_a_value_refuses_what_it_cannot_be(kind: Any, given: tuple[Any, ...], field: str) -> None:
    with pytest.raises(errors.InvalidArgumentError) as found:
        kind(*given)
    assert found.value.field == field


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("lora", "sql"),
        ("multimodal", None),
        ("multimodal", ("img",)),
        ("prompt_embeddings", b"1234"),
        ("skip_reading_cache", 1),
        ("reports_hits", 1),
    ],
)
def test_a_request_has_no_other_content(field: str, value: Any) -> None:
    with pytest.raises(errors.InvalidArgumentError) as found:
        RequestInput("r", [1], **{field: value})
    assert found.value.field == field


def test_specs_are_frozen_values_of_one_type() -> None:
    spec = FullAttentionSpec(16, 1, 8, "float16")
    assert spec == FullAttentionSpec(16, 1, 8, "float16") != dataclasses.replace(spec, head_size=16)
    assert hash(spec) == hash(FullAttentionSpec(16, 1, 8, "float16"))
    assert spec != MLAAttentionSpec(16, 1, 8, "float16")
    with pytest.raises(dataclasses.FrozenInstanceError):
        spec.block_size = 8  # type: ignore[misc]  # the point


@pytest.mark.parametrize(
    ("error", "also"),
    [
        (errors.InvalidArgumentError, ValueError),
        (errors.ConfigError, errors.InvalidArgumentError),
        (errors.StaleHitError, errors.InvalidArgumentError),
        (errors.BlockReleaseError, errors.InvalidArgumentError),
        (errors.UnknownBlockError, KeyError),
        (errors.UnsupportedError, NotImplementedError),
        (errors.InvariantViolation, errors.KVSpecError),
    ],
)
def test_an_error_is_the_built_in_one_that_a_caller_catches(error: type, also: type) -> None:
    assert issubclass(error, errors.KVSpecError)
    assert issubclass(error, also)
