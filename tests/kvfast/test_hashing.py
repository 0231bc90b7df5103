"""Block hashes of both builds: the values of the rules, and the reference on any request."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import cbor2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvref.hashing import extra_keys as reference_extra_keys
from kvref.hashing import untagged
from kvspec.config import HASH_FUNCTIONS
from kvspec.errors import InvalidArgumentError
from kvspec.request import LoRA, MultimodalItem, PromptEmbeddings, RequestInput
from tests.kvfast.hash_checks import (
    every_kind_of_extra_key,
    parents_of_few_bytes,
    tokens_at_every_boundary,
)
from tests.kvfast.hash_cores import (
    BUILDS,
    Core,
    core,
    expect_equal_hashes,
    functions,
    requests,
)

pytestmark = pytest.mark.parametrize("build", BUILDS)

# NONE_HASH of the seed "0", then the hashes of tokens 1 … 8 in blocks of 4
# (KV-HASH-1, KV-HASH-3, KV-HASH-11, KV-HASH-12).
OF_THE_RULES = {
    "sha256_cbor": (
        "4e1195df020de59e0d65a33a4279f1183e7ae4e5d980e309f8b55adff2e61c3e",
        "c9d58ba695280d69b243e1e0df813136ca9196b286fb1a021e0b2e028ef071cb",
        "24125b23e68883b5c2141db2959d48433fe6bde2f26bd914efad121d154ab2d6",
    ),
    "sha256_cbor_64bit": ("f8b55adff2e61c3e", "0b09a5c601439d9c", "0f3b310b01f9683b"),
    "xxhash_cbor": (
        "1ebe36576dcb573f26b99533a20aaeca",
        "0a8577df5ee3430515a8cc1f6e3ac52e",
        "d152782cb4d753bde718a811a3b75e23",
    ),
}


@pytest.mark.parametrize("function", HASH_FUNCTIONS)
def test_the_examples_of_the_rules_come_out(build: str, function: str) -> None:
    hasher = core(build).hashing.Hasher(function, "0")
    made = core(build).request.make_request(RequestInput("r", range(1, 9)), hasher, 4)
    found = (hasher.none_hash, *made.block_hashes)
    assert tuple(one.hex() for one in found) == OF_THE_RULES[function]
    assert (hasher.function, hasher.size) == (function, len(found[0]))
    assert hasher.words_per_digest * 8 == hasher.size


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


@pytest.mark.parametrize("block_size", [1, 23, 24, 255, 256, 65535, 65536, 70000])
def test_the_array_of_tokens_has_the_shortest_length(build: str, block_size: int) -> None:
    expect_equal_hashes(core(build), RequestInput("r", [5] * block_size), block_size)


@pytest.mark.parametrize("length", [0, 1, 23, 24, 255, 256, 65535, 65536, 10**6])
def test_texts_of_any_length_are_encoded(build: str, length: int) -> None:
    """Salts, names and identifiers, with one byte a character and with two."""
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
    """An item that began long before the block has a large negative offset."""
    items = (MultimodalItem("a", 0, 70_000), MultimodalItem("b", 2**53 - 2, 1))
    request = RequestInput("r", bytes(70_100), multimodal=items)
    expect_equal_hashes(core(build), request, 300)


@given(request=requests(), block_size=st.integers(1, 9), first=st.integers(0, 9))
@settings(max_examples=50)
def test_runs_of_equal_extra_keys_cover_the_blocks(
    build: str, request: RequestInput, block_size: int, first: int
) -> None:
    """Without gap and overlap, each with the keys that the reference finds block by block."""
    end, at = first + 12, first
    for start, until, keys in core(build).extra_keys.runs(request, block_size, first, end):
        assert (start, until > start) == (at, True)
        for block in range(start, until):
            tokens = (block * block_size, (block + 1) * block_size)
            assert (
                keys
                == untagged(reference_extra_keys(request, *tokens))
                == core(build).extra_keys.extra_keys(request, *tokens)
            )
        at = until
    assert at == end


def test_a_request_without_items_is_one_run_or_two(build: str) -> None:
    """An adapter alone is one run, a salt cuts off the first block, embeddings each of theirs."""
    runs = core(build).extra_keys.runs
    request = RequestInput("r", [1], lora=LoRA("sql", 1))
    assert list(runs(request, 16, 0, 10**6)) == [(0, 10**6, ("sql",))]
    request = RequestInput("r", [1], cache_salt="a")
    assert list(runs(request, 16, 0, 10**6)) == [(0, 1, ("a",)), (1, 10**6, None)]
    request = RequestInput("r", [1], prompt_embeddings=PromptEmbeddings(bytes(40), 1))
    assert [run[:2] for run in runs(request, 16, 0, 10**6)] == [
        (0, 1),
        (1, 2),
        (2, 3),
        (3, 10**6),
    ]


@pytest.mark.parametrize("function", HASH_FUNCTIONS)
def test_without_a_seed_every_hasher_draws_its_own_parent(build: str, function: str) -> None:
    one, other = (core(build).hashing.Hasher(function, None) for _ in range(2))
    assert len(one.none_hash) == len(other.none_hash) == one.size
    assert one.none_hash != other.none_hash


@pytest.mark.parametrize("wrong", [b"", b"1234567", b"123456789", "12345678", None], ids=repr)
def test_a_first_parent_of_another_length_is_refused(build: str, wrong: object) -> None:
    hasher = core(build).hashing.Hasher("sha256_cbor_64bit", "0")
    with pytest.raises(InvalidArgumentError, match="none_hash"):
        hasher.set_none_hash(wrong)
    assert hasher.none_hash.hex() == "f8b55adff2e61c3e"


def test_an_unknown_function_is_refused(build: str) -> None:
    with pytest.raises(InvalidArgumentError, match="hash_function"):
        core(build).hashing.Hasher("md5", "0")
