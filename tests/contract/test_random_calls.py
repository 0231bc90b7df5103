"""Properties of hashes, needs and copies, for any content."""

from __future__ import annotations

from typing import Any

import cbor2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcheck.rules.bench import Bench
from kvspec.audit import AuditedManager
from kvspec.request import LoRA, MultimodalItem, PromptEmbeddings
from tests.contract.digests import Value, encode, hashes_of, sha256

BOUNDARIES = (0, 23, 24, 255, 256, 65535, 65536, 2**32 - 1, 2**32, 2**63 - 1)
"""Both sides of each length at which the encoding of an int grows, and the ends of the range."""


@pytest.mark.rule("KV-HASH-2")
@pytest.mark.parametrize("value", [*BOUNDARIES, -1, -24, -25, -256, -257])
def test_ints_are_encoded_as_a_cbor_library_does(value: int) -> None:
    assert encode(value) == cbor2.dumps(value, canonical=True)


@pytest.mark.rule("KV-HASH-2")
@given(
    st.recursive(
        st.none() | st.integers(-(2**63), 2**64 - 1) | st.text() | st.binary(),
        lambda inner: st.lists(inner, max_size=30),
        max_leaves=40,
    )
)
@settings(max_examples=50)
def test_values_are_encoded_as_a_cbor_library_does(value: Value) -> None:
    assert encode(value) == cbor2.dumps(value, canonical=True)


@pytest.mark.rule("KV-HASH-1", "KV-HASH-4", "KV-HASH-10")
@given(
    tokens=st.lists(st.sampled_from(BOUNDARIES) | st.integers(0, 2**63 - 1), min_size=1),
    block_size=st.integers(1, 9),
    salt=st.none() | st.text(min_size=1, max_size=3),
)
@settings(max_examples=40)
def test_any_request_is_hashed_as_the_rule_says(
    bench: Bench, tokens: list[int], block_size: int, salt: str | None
) -> None:
    manager = bench.manager(6, block_size)
    request = manager.request("r", tokens, cache_salt=salt)
    expected, parent = [], manager.none_hash
    for start in range(0, len(tokens) - block_size + 1, block_size):
        extra = [["cache_salt", salt]] if salt and start == 0 else None
        parent = sha256(parent, tokens[start : start + block_size], extra)
        expected.append(parent)
    assert list(request.block_hashes) == expected


names = st.sampled_from(["x", "lora", "mm", "cache_salt", "xlora"])


@st.composite
def contents(draw: st.DrawFn) -> dict[str, Any]:
    """Draw extra keys for one block of four tokens, from few values, so that many are equal."""
    path = draw(st.none() | names)
    return {
        "cache_salt": draw(st.none() | names),
        "lora": draw(st.none() | names.map(lambda name: LoRA(name, 1, path))),
        "multimodal": draw(
            st.just(()) | st.tuples(names.map(lambda name: MultimodalItem(name, 0, 1)))
        ),
        "prompt_embeddings": draw(
            st.none() | st.binary(min_size=4, max_size=4).map(lambda b: PromptEmbeddings(b, 1))
        ),
    }


@pytest.mark.rule("KV-HASH-7", "KV-HASH-10")
@given(first=contents(), second=contents())
def test_any_two_contents_have_equal_hashes_only_if_they_are_equal(
    bench: Bench, first: dict[str, Any], second: dict[str, Any]
) -> None:
    one = hashes_of(bench, [7] * 4, **first)
    other = hashes_of(bench, [7] * 4, **second)
    assert (one == other) == (first == second)


@pytest.mark.rule("KV-MGR-20")
@pytest.mark.parametrize("check", [True, False])
def test_a_clone_audits_itself_as_the_original_does(bench: Bench, check: bool) -> None:
    clone = bench.create(bench.config(), check_invariants=check).clone()
    assert isinstance(clone.real, AuditedManager) is check
