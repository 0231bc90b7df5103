"""Hashes made on a device are those of requests: of kvfast, of kvref, and of the rule's example."""

from __future__ import annotations

import hashlib
from itertools import pairwise
from os import environ
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import kvfast
import kvref
from kvfast.device import Backend, BlockHashes, hash_blocks
from kvfast.device.base.backend import BACKENDS
from kvfast.device.hashing import plain as _hashing_torch
from kvfast.device.hashing.prompts import Prompts, hash_words, prompts_on
from tests.device.models import (
    NONE_HASH,
    config_of,
    flat,
    host_hashes,
    quick_interpreter,
    random_prompts,
)
from tests.device.tables import kernel_device


def listed(found: BlockHashes) -> list[list[bytes]]:
    rows = [bytes(row) for row in found.hashes.tolist()]
    starts = found.starts.tolist()
    return [rows[a:b] for a, b in pairwise(starts)]


def check_hashes(prompts: list[list[int]], block_size: int, backend: Backend = "torch") -> None:
    tokens, starts = flat(prompts)
    for implementation in (kvfast.implementation(), kvref.implementation()):
        manager = implementation.create(config_of(block_size))
        found = hash_blocks(
            tokens,
            starts,
            block_size_tokens=block_size,
            none_hash=manager.none_hash,
            device=kernel_device(backend),
            backend=backend,
        )
        assert listed(found) == host_hashes(implementation, manager, prompts)


@pytest.mark.rule("KV-DEV-18")
@settings(max_examples=25)
@given(
    block_size=st.sampled_from([1, 2, 3, 5, 16, 19, 20, 23, 24, 25, 64, 255, 256]),
    num=st.integers(0, 6),
    seed=st.integers(0, 9999),
)
def test_hashes_are_those_of_requests(block_size: int, num: int, seed: int) -> None:
    check_hashes(random_prompts(Random(seed), num, 3 * block_size + 2), block_size)


@pytest.mark.rule("KV-DEV-18")
def test_the_example_of_the_rule(backend: Backend) -> None:
    manager = kvfast.implementation().create(config_of(4, hash_seed="0"))
    tokens = torch.tensor([1, 2, 3, 4, 5, 6, 7, 8, 5, 6, 7, 8, 9], dtype=torch.int32)
    with quick_interpreter():
        found = hash_blocks(
            tokens.to(kernel_device(backend)),
            [0, 8, 13],
            block_size_tokens=4,
            none_hash=manager.none_hash,
            backend=backend,
        )
    first, second = listed(found)
    assert [one.hex() for one in first] == [
        "c9d58ba695280d69b243e1e0df813136ca9196b286fb1a021e0b2e028ef071cb",
        "24125b23e68883b5c2141db2959d48433fe6bde2f26bd914efad121d154ab2d6",
    ]
    assert second[0].hex() == "8adbee3f8484f7c03bc63994cf7b2d88778fc224cf94c373596081d0e60fd607"
    assert found.starts.tolist() == [0, 2, 3]
    assert found.starts.device.type == "cpu"


def both_forms(prompts: list[list[int]], block_size: int, *, width: torch.dtype) -> None:
    tokens, starts = flat(prompts)
    left, right = (
        hash_words(prompts_of(tokens.to(width), starts, block_size, backend), block_size, backend)
        for backend in BACKENDS
    )
    assert left.dtype == right.dtype == torch.int32
    assert torch.equal(left, right.cpu())


def prompts_of(
    tokens: torch.Tensor, starts: list[int], block_size: int, backend: Backend
) -> Prompts:
    bounds = torch.tensor(starts)
    device = torch.device(kernel_device(backend))
    return prompts_on(device, tokens, bounds, bounds.diff() // block_size, NONE_HASH)


@pytest.mark.rule("KV-DEV-18")
@settings(max_examples=4)
@given(
    block_size=st.sampled_from([1, 4, 16, 25]),
    num=st.integers(1, 14),
    seed=st.integers(0, 9999),
    slices=st.sampled_from([1, 2, 100]),
    width=st.sampled_from([torch.int32, torch.int64]),
)
def test_random_prompts_are_the_same_in_both_forms(
    block_size: int, num: int, seed: int, slices: int, width: torch.dtype
) -> None:
    kernels = pytest.importorskip("kvfast.device.hashing.kernels", exc_type=ImportError)
    random = Random(seed)
    top = 2**31 if width == torch.int32 else 2**63
    prompts = random_prompts(random, num, 2 * block_size, top=top)
    prompts[0] = random_prompts(random, 1, block_size, top=top)[0] * 3
    message_bytes = 64 * _hashing_torch.max_chunks(block_size)
    with quick_interpreter(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "SCRATCH_BYTES", slices * num * message_bytes)
        both_forms(prompts, block_size, width=width)


@pytest.mark.rule("KV-DEV-7", "KV-DEV-18")
def test_a_negative_token_on_the_device_gives_hashes_that_no_request_has() -> None:
    """Hash it as 2^64 more, in both forms; other prefixes and prompts are unaffected."""
    pytest.importorskip("triton", reason="Triton is not installed")
    tokens, starts = torch.tensor([1, 2, 3, -1, 5, 6, 1, 2]), [0, 6, 8]
    right = tokens.where(tokens > 0, 4)
    for width in (torch.int64, torch.int32):
        found = []
        for backend in BACKENDS:
            with quick_interpreter():
                prompts = prompts_of(tokens.to(width), starts, 2, backend)
                found.append(hash_words(prompts, 2, backend).cpu())
        assert torch.equal(*found)
        legal = hash_words(prompts_of(right, starts, 2, "torch"), 2, "torch")
        assert (found[0] == legal).all(1).tolist() == [True, False, False, True]
        message = b"\x83\x58\x20" + found[0][0].numpy().tobytes() + b"\x82\x03\x1b" + b"\xff" * 8
        digest = hashlib.sha256(message + b"\xf6").digest()
        assert found[0][1].numpy().tobytes() == digest


def some_hashes() -> None:
    """Check blocks of one chunk and of several, some with tokens of more than 32 bits."""
    check_hashes([[1, 2, 2**33, 4], [3], [5, 6, 7, 8]], 2)
    check_hashes([[2**40] * 24], 24)


def test_a_mistake_in_a_kernel_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = pytest.importorskip("kvfast.device.hashing.kernels", exc_type=ImportError)
    if environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("kernels that are compiled are not changed afterwards")
    monkeypatch.setattr(kernels, "_swapped", lambda word: word)
    with quick_interpreter(), pytest.raises(AssertionError):
        both_forms([[1, 2]], 1, width=torch.int64)
