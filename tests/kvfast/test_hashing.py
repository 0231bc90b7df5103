"""Block hashes of both builds: the values of the rules, and the reference on any request."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvspec.errors import InvalidArgumentError
from kvspec.request import LoRA, MultimodalItem, PromptEmbeddings, RequestInput
from tests.kvfast.hash_cores import BUILDS, Core, core, expect_equal_hashes, functions, requests
from tests.kvfast.test_hashing_broken import (
    every_kind_of_extra_key,
    parents_of_few_bytes,
    tokens_at_every_boundary,
)

pytestmark = pytest.mark.parametrize("build", BUILDS)


@given(request=requests(), block_size=st.integers(1, 20), function=functions)
def test_any_request_is_hashed_as_the_reference_does(
    build: str, request: RequestInput, block_size: int, function: str
) -> None:
    expect_equal_hashes(core(build), request, block_size, function)


@pytest.mark.parametrize(
    "check",
    [tokens_at_every_boundary, every_kind_of_extra_key, parents_of_few_bytes],
    ids=lambda check: check.__name__,
)
def test_it_holds_for(build: str, check: Callable[[Core], None]) -> None:
    check(core(build))


@pytest.mark.parametrize("length", [0, 1, 23, 24, 255, 256, 65535, 65536, 10**6])
def test_texts_of_any_length_are_encoded(build: str, length: int) -> None:
    for text in ("x" * length, "é" * length):
        request = RequestInput(
            "r",
            range(8),
            cache_salt=text or None,
            lora=LoRA(text or "-", 1, text or None),
            multimodal=(MultimodalItem(text, 5, 1),),
        )
        expect_equal_hashes(core(build), request, 4)
        hasher = core(build).hashing.Hasher("sha256_cbor", text)
        assert hasher.none_hash == hashlib.sha256(cbor2.dumps(text, canonical=True)).digest()


def test_items_far_from_the_tokens_are_encoded(build: str) -> None:
    items = (MultimodalItem("a", 0, 70_000), MultimodalItem("b", 2**53 - 2, 1))
    request = RequestInput("r", bytes(70_100), multimodal=items)
    expect_equal_hashes(core(build), request, 300)


def test_a_request_without_items_is_one_run_or_two(build: str) -> None:
    runs = core(build).extra_keys.runs
    request = RequestInput("r", [1], lora=LoRA("sql", 1))
    assert list(runs(request, 16, 0, 10**6)) == [(0, 10**6, ("sql",))]
    request = RequestInput("r", [1], cache_salt="a")
    assert list(runs(request, 16, 0, 10**6)) == [(0, 1, ("a",)), (1, 10**6, None)]
    request = RequestInput("r", [1], prompt_embeddings=PromptEmbeddings(bytes(40), 1))
    assert [run[:2] for run in runs(request, 16, 0, 10**6)] == [(0, 1), (1, 2), (2, 3), (3, 10**6)]


@pytest.mark.parametrize("wrong", [b"", b"1234567", b"123456789", "12345678", None], ids=repr)
def test_a_first_parent_of_another_length_is_refused(build: str, wrong: object) -> None:
    hasher = core(build).hashing.Hasher("sha256_cbor_64bit", "0")
    with pytest.raises(InvalidArgumentError, match="none_hash"):
        hasher.set_none_hash(wrong)
    assert hasher.none_hash.hex() == "f8b55adff2e61c3e"
