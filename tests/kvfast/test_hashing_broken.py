"""Checks that every build must pass, and encoders with one mistake each that they must notice."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import cbor2
import pytest

from kvcheck.mistakes import Mistake
from kvspec.config import HASH_FUNCTIONS
from kvspec.request import RequestInput
from tests.device.mistakes import planted
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


CHECKS: dict[str, Callable[[Core], None]] = {
    "WritesTwoBytesFor255": tokens_at_every_boundary,
    "EndsAt32Bits": tokens_at_every_boundary,
    "RunsUpToTheItem": every_kind_of_extra_key,
    "ItemsThatTouchOverlap": every_kind_of_extra_key,
    "ParentsHaveEightBytes": parents_of_few_bytes,
}
"""What sees each mistake."""


@pytest.mark.parametrize(
    "mistake", planted(Path(__file__).with_name("hashing.diff")), ids=lambda one: str(one.id)
)
def test_a_mistake_is_seen(mistake: Mistake) -> None:
    with mistake.make(), pytest.raises(AssertionError):
        CHECKS[mistake.id](core("_core"))
