"""Checks that every build must pass, and encoders with one mistake each that they must notice.

In the uncompiled build only: C functions can't be replaced.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import cbor2
import pytest

from kvfast._core import extra_keys as core_extra_keys
from kvfast._core import hashing as core_hashing
from kvspec.config import HASH_FUNCTIONS
from kvspec.request import RequestInput
from tests.kvfast.hash_cores import BOUNDARIES, SMALL, Core, core, everything, expect_equal_hashes


def tokens_at_every_boundary(core: Core) -> None:
    for function in HASH_FUNCTIONS:
        for token in BOUNDARIES:
            expect_equal_hashes(core, RequestInput("r", [token, 1, token]), 3, function)
        expect_equal_hashes(core, RequestInput("r", BOUNDARIES * 3), 5, function)
    for place in range(4):
        fours = [b if i == place else a for a in SMALL for b in BOUNDARIES for i in range(4)]
        expect_equal_hashes(core, RequestInput("r", fours), 4)
    powers = [2**bits + step for bits in range(1, 63) for step in (-1, 0, 1)]
    expect_equal_hashes(core, RequestInput("r", [*range(300), *powers]), 1)


def every_kind_of_extra_key(core: Core) -> None:
    request = everything()
    for block_size in (1, 2, 3, 4, 7, 16, 40):
        expect_equal_hashes(core, request, block_size)
        for name in ("cache_salt", "lora", "prompt_embeddings"):
            without: dict[str, Any] = {name: None}
            expect_equal_hashes(core, replace(request, **without), block_size)
        expect_equal_hashes(core, replace(request, multimodal=()), block_size)
        alone = RequestInput("r", request.prompt_token_ids, multimodal=request.multimodal)
        expect_equal_hashes(core, alone, block_size)


def parents_of_few_bytes(core: Core) -> None:
    """Write parents as ints in the shortest form; one in 2^32 is below 2^32."""
    for number in (0, 23, 24, 255, 256, 65535, 65536, 2**32 - 1, 2**32, 2**64 - 1):
        hasher = core.hashing.Hasher("sha256_cbor_64bit", "0")
        hasher.set_none_hash(number.to_bytes(8, "big"))
        made = core.request.make_request(RequestInput("r", range(8)), hasher, 4)
        expected, parent = [], number
        for tokens in ([0, 1, 2, 3], [4, 5, 6, 7]):
            encoded = cbor2.dumps([parent, tokens, None], canonical=True)
            expected.append(hashlib.sha256(encoded).digest()[-8:])
            parent = int.from_bytes(expected[-1], "big")
        assert list(made.block_hashes) == expected, number


def long_form_at_255(right: Any) -> Any:
    def put_head(message: memoryview[int], at: int, major: int, value: int) -> int:
        if value != 255:
            return int(right(message, at, major, value))
        message[at : at + 3] = bytes([(major << 5) + 25, 0, 255])
        return at + 3

    return put_head


def no_step_at_32_bits(right: Any) -> Any:
    return lambda message, at, major, value: right(message, at, major, value & (2**32 - 1))


def runs_up_to_the_item(right: Any) -> Any:
    """Take the block after one with an item to have the same keys."""
    return lambda request, size, block, ahead: right(request, size, block, ahead) + 1


def items_that_touch(right: Any) -> Any:
    """Take an item that ends where the block starts to overlap it."""
    return lambda items, start: right(items, start - 1)


def parents_of_eight_bytes(right: Any) -> Any:
    return lambda hasher, message, place: place + core_hashing.PARENT - 2


BROKEN = (
    (core_hashing, "put_head", long_form_at_255, tokens_at_every_boundary),
    (core_hashing, "put_head", no_step_at_32_bits, tokens_at_every_boundary),
    (core_extra_keys, "_next_change", runs_up_to_the_item, every_kind_of_extra_key),
    (core_extra_keys, "_first_item", items_that_touch, every_kind_of_extra_key),
    (core_hashing.Hasher, "shorten_parent", parents_of_eight_bytes, parents_of_few_bytes),
)


@pytest.mark.parametrize(("owner", "name", "broken", "check"), BROKEN)
def test_a_broken_twin_is_caught(
    monkeypatch: pytest.MonkeyPatch,
    owner: Any,
    name: str,
    broken: Callable[[Any], Any],
    check: Callable[[Core], None],
) -> None:
    monkeypatch.setattr(owner, name, broken(getattr(owner, name)))
    with pytest.raises(AssertionError):
        check(core("_core"))
