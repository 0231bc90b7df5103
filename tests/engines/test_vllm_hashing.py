"""kvfast's hasher of vLLM's requests beside vLLM's own, where vLLM is installed."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest

from kvfast.engines import vllm as on_vllm


def request_block_hasher() -> Any:
    return on_vllm.request_block_hasher


@pytest.fixture(scope="module")
def utils(engine: Any) -> Any:
    from vllm.v1.core import kv_cache_utils

    return kv_cache_utils


@dataclass
class Request:
    tokens: list[int]
    cache_salt: str | None = None
    lora_request: Any = None
    items: tuple[tuple[str, int, int], ...] = ()
    prompt_embeds: Any = None
    block_hashes: list[bytes] = field(default_factory=list)
    _block_hasher: Any = None
    _prompt_embeds_per_block_hashes: dict[Any, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._all_token_ids = self.all_token_ids = list(self.tokens)
        self.mm_features = [
            SimpleNamespace(
                identifier=name, mm_position=SimpleNamespace(offset=offset, length=length)
            )
            for name, offset, length in self.items
        ]

    @property
    def num_tokens(self) -> int:
        return len(self._all_token_ids)

    def grown(self, hasher: Any, tokens: list[int]) -> list[bytes]:
        """Append these tokens and return the hashes."""
        self._all_token_ids += tokens
        self.block_hashes.extend(hasher(self))
        return self.block_hashes


def requests() -> list[dict[str, Any]]:
    """Return the members of requests with every kind of extra key, alone and together."""
    import torch

    tokens = [(i * 7919) % 130_000 for i in range(50)]
    adapter = SimpleNamespace(lora_name="sql", lora_path=None)
    items = (("image", 1, 9), ("sound", 12, 3), ("image", 29, 4))
    names = ("cache_salt", "lora_request", "items", "prompt_embeds")
    kinds = product((None, "", "sql"), (None, adapter), ((), items), (None, torch.ones(50, 2)))
    found = [{"tokens": tokens, **dict(zip(names, each, strict=True))} for each in kinds]
    same = "one text"  # pickle spells an object the second time in another way than an equal one
    alike = SimpleNamespace(lora_name=same, lora_path=None)
    found.append({"tokens": tokens, "cache_salt": same, "lora_request": alike})
    odd = [[*range(2100)], [True, *tokens], [2**31, *tokens], [2**64, *tokens]]
    return [*found, *({"tokens": each} for each in odd)]


@pytest.mark.parametrize("name", ["sha256", "sha256_cbor", "xxhash", "xxhash_cbor"])
def test_the_hashes_are_vllms(utils: Any, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    from vllm.utils.hashing import get_hash_fn_by_name

    function = get_hash_fn_by_name(name)
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    utils.init_none_hash(function)
    for block_size in (2, 4, 16):
        stock = utils.get_request_block_hasher(block_size, function)
        ours = request_block_hasher()(block_size, function)
        assert (ours.__qualname__ == stock.__qualname__) == (block_size == 2 and "_" not in name)
        for members in requests():
            theirs, mine = Request(**members), Request(**members)
            for more in ([], [5], [6] * 14, [300], [70_000] * 40):
                assert mine.grown(ours, more) == theirs.grown(stock, more), (name, members)


def test_a_random_first_parent_of_another_size(utils: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.utils.hashing import xxhash

    monkeypatch.setattr(utils, "NONE_HASH", bytes(32))
    stock, ours = (
        make(4, xxhash) for make in (utils.get_request_block_hasher, request_block_hasher())
    )
    assert Request([1] * 9).grown(ours, []) == Request([1] * 9).grown(stock, [])


def test_a_function_of_somebody_else_is_left_to_vllm(utils: Any) -> None:
    assert request_block_hasher()(16, repr).__module__ == utils.__name__


class Stock:
    """vLLM's scheduler, as far as requests are added."""

    kvfast_reason: str | None = None

    def __init__(self, **asked: bool) -> None:
        self.added: list[Request] = []
        self.vllm_config = SimpleNamespace(additional_config=asked)

    def add_request(self, request: Request) -> None:
        self.added.append(request)


class Engine:
    def __init__(self, scheduler: Any, hasher: Any) -> None:
        self.scheduler = scheduler
        self.request_block_hasher = hasher

    def add_request(self) -> Request:
        request = Request([1] * 9, _block_hasher=self.request_block_hasher)
        self.scheduler.add_request(request)
        return request


@pytest.mark.parametrize("asked", [{"kvfast_hasher": True}, {}])
def test_the_scheduler_hands_its_hasher_to_requests_and_if_asked_to_the_engine(
    utils: Any, asked: dict[str, bool]
) -> None:
    from vllm.utils.hashing import sha256

    from kvfast.engines.vllm.hashing import HashesRequests

    class Scheduler(HashesRequests, Stock):
        pass

    stock = utils.get_request_block_hasher(4, sha256)
    engine = Engine(Scheduler(**asked), stock)
    first, second = engine.add_request(), engine.add_request()
    ours = engine.scheduler.request_block_hasher
    assert engine.request_block_hasher is (ours if asked else stock)
    assert first._block_hasher is second._block_hasher is ours
    assert engine.scheduler.added == [first, second]
    other = Engine(engine.scheduler, utils.get_request_block_hasher(2, sha256))
    assert other.add_request().grown(other.request_block_hasher, []) == Request([1] * 9).grown(
        utils.get_request_block_hasher(2, sha256), []
    )


@pytest.mark.parametrize("reason", [None, "not served"])
def test_other_hashers_and_schedulers_stay_as_they_are(utils: Any, reason: str | None) -> None:
    from vllm.utils.hashing import sha256

    from kvfast.engines.vllm.hashing import HashesRequests

    scheduler = type("Scheduler", (HashesRequests, Stock), {"kvfast_reason": reason})
    stock = utils.get_request_block_hasher(4, sha256)
    kept = [repr, None, *([stock] if reason else [])]
    assert [Engine(scheduler(), one).add_request()._block_hasher for one in kept] == kept
