"""kvfast's hasher of vLLM's requests beside vLLM's own, where vLLM is installed."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from kvfast.engines import vllm as on_vllm


@pytest.fixture(scope="module")
def utils(engine: Any) -> Any:
    from vllm.v1.core import kv_cache_utils

    return kv_cache_utils


def made(hasher: Any, tokens: list[int], name: str = "r", **members: Any) -> Any:
    """Return vLLM's request of these tokens, hashed."""
    from vllm.sampling_params import SamplingParams
    from vllm.v1.request import Request

    params = SamplingParams(max_tokens=1)
    return Request(name, tokens, params, None, block_hasher=hasher, **members)


def requests(engine: Any) -> list[dict[str, Any]]:
    """Return the members of requests with every kind of extra key, alone and together."""
    import torch
    from vllm.lora.request import LoRARequest

    tokens = [(i * 7919) % 130_000 for i in range(50)]
    places = (("image", 1, 9), ("sound", 12, 3), ("image", 29, 4))
    items = [engine.Item("image", *place).feature() for place in places]
    names = ("cache_salt", "lora_request", "mm_features", "prompt_embeds")
    adapters = (None, LoRARequest("sql", 1, "sql"))
    kinds = product((None, "", "sql"), adapters, ([], items), (None, torch.ones(50, 2)))
    found = [{"tokens": tokens, **dict(zip(names, each, strict=True))} for each in kinds]
    same = "one text"  # pickle spells an object the second time in another way than an equal one
    alike = LoRARequest(same, 1, same)
    found.append({"tokens": tokens, "cache_salt": same, "lora_request": alike})
    odd = [[*range(2100)], [True, *tokens], [2**31, *tokens], [2**64, *tokens]]
    return [*found, *({"tokens": each} for each in odd)]


@pytest.mark.parametrize("name", ["sha256", "sha256_cbor", "xxhash", "xxhash_cbor"])
def test_the_hashes_are_vllms(
    utils: Any, engine: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    from vllm.utils.hashing import get_hash_fn_by_name

    function = get_hash_fn_by_name(name)
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    utils.init_none_hash(function)
    for block_size in (2, 4, 16):
        stock = utils.get_request_block_hasher(block_size, function)
        ours = on_vllm.request_block_hasher(block_size, function)
        assert (ours.__qualname__ == stock.__qualname__) == (block_size == 2 and "_" not in name)
        for members in requests(engine):
            theirs, mine = made(stock, **members), made(ours, **members)
            for more in ([], [5], [6] * 14, [300], [70_000] * 40):
                for each in (theirs, mine):
                    each.append_output_token_ids(more)
                assert mine.block_hashes == theirs.block_hashes, (name, members)


def test_a_random_first_parent_of_another_size(utils: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.utils.hashing import xxhash

    monkeypatch.setattr(utils, "NONE_HASH", bytes(32))
    stock, ours = (
        make(4, xxhash) for make in (utils.get_request_block_hasher, on_vllm.request_block_hasher)
    )
    assert made(ours, [1] * 9).block_hashes == made(stock, [1] * 9).block_hashes


def test_a_function_of_somebody_else_is_left_to_vllm(utils: Any) -> None:
    assert on_vllm.request_block_hasher(16, repr).__module__ == utils.__name__


def added(scheduler: Any, hasher: Any) -> Any:
    """Return vLLM's request of this hasher, which the scheduler has got."""
    request = made(hasher, [1] * 9, f"r{len(scheduler.requests)}")
    scheduler.add_request(request)
    return request


def test_the_scheduler_hands_its_hasher_to_requests(utils: Any, on_kvfast: Any) -> None:
    from vllm.utils.hashing import sha256

    scheduler, stock = on_kvfast(), utils.get_request_block_hasher(4, sha256)
    first, second = added(scheduler, stock), added(scheduler, stock)
    ours = scheduler.request_block_hasher
    assert first._block_hasher is second._block_hasher is ours is not stock
    other = utils.get_request_block_hasher(2, sha256)
    same = [added(scheduler, other), made(other, [1] * 9)]
    for each in same:
        each.append_output_token_ids([2] * 9)
    assert same[0].block_hashes == same[1].block_hashes


@pytest.mark.parametrize("reason", [None, "not served"])
def test_other_hashers_and_schedulers_stay_as_they_are(
    utils: Any, on_kvfast: Any, reason: str | None
) -> None:
    from vllm.utils.hashing import sha256

    stock = utils.get_request_block_hasher(4, sha256)
    for kept in (lambda request: [], None, *([stock] if reason else [])):
        scheduler = on_kvfast()
        scheduler.kvfast_reason = reason
        assert added(scheduler, kept)._block_hasher is kept
