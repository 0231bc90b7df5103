"""Hash functions: prompts that collide, tagged hashes of a later engine, custom specs."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import cbor2
import pytest

from kvcheck.rules.bench import Bench
from kvcheck.rules.custom_specs import RingSpec
from kvcheck.rules.specs import full, sliding
from kvspec.config import CustomSpec, KVCacheConfig, ManagerConfig, SpecRegistry
from kvspec.errors import ConfigError
from kvspec.request import LoRA, MultimodalItem, RequestInput
from kvspec.specs import LayerSpec

SECRET = bytes.fromhex("b8fe6c3923a44bbe 7c01812cf721ad1c ded46de9839097db")
"""The first three words of the secret that XXH3 has in its specification."""

STRIPE_BYTES = 64
HEAD_BYTES = 18
"""83, 50 and the 16 bytes of the parent; the head of the array comes behind them."""


def colliding_prompts(size: int) -> tuple[list[int], list[int]]:
    """Return two blocks of `size` tokens with one hash under every seed (KV-HASH-12).

    XXH3 takes long messages in stripes of eight words. A word is added to one sum, and the product
    of its halves, each mixed with the secret, to another. Here one word in each of two stripes has
    the secret's low half as its own, so its product is 0 whatever its high half is. One high half
    is raised by as much as the other is lowered, so the first sum stays the same.
    """
    tokens, changed = list[int](), list[int]()
    at = HEAD_BYTES + len(cbor2.dumps([0] * size)) - size
    for stripe in (1, 2):
        ones = STRIPE_BYTES * stripe - 1 - at
        tokens += [1] * ones  # a byte each: the head of the next token is right before the word
        low_half = SECRET[8 * stripe : 8 * stripe + 4]
        changed.append(len(tokens) + 1)
        tokens += [int.from_bytes(low_half, "big"), 0x07070707]  # five bytes each
        at = STRIPE_BYTES * stripe + 9
    tokens += [2**32 - 1] * (size - len(tokens))
    other = list(tokens)
    other[changed[0]] += 1 << 24
    other[changed[1]] -= 1 << 24
    return tokens, other


@pytest.mark.rule("KV-HASH-12")
@pytest.mark.parametrize("size", [128, 256])
@pytest.mark.parametrize("seed", ["0", "", "a secret", None])
def test_prompts_that_collide_under_every_seed_share_content(
    bench: Bench, size: int, seed: str | None
) -> None:
    first, second = colliding_prompts(size)
    assert sum(a != b for a, b in zip(first, second, strict=True)) == 2
    hits = []
    for function in ("xxhash_cbor", "sha256_cbor"):
        manager = bench.manager(
            6,
            size,
            max_model_len_tokens=1000,
            hash_function=function,
            hash_seed=seed,
            trusted_tenants=True,
        )
        manager.admit(manager.request("first", [*first, 5]))
        hit = manager.get_computed_blocks(manager.request("second", [*second, 5]))
        hits.append(hit.hit_length_tokens)
    assert hits == [size, 0]


@pytest.mark.rule("KV-HASH-11", "KV-HASH-12")
@pytest.mark.parametrize("function", ["sha256_cbor_64bit", "xxhash_cbor"])
def test_a_weak_function_is_chosen_for_trusted_tenants_only(function: str) -> None:
    with pytest.raises(ConfigError, match="use sha256_cbor") as found:
        ManagerConfig(KVCacheConfig(2, ()), 8, hash_function=function)
    assert (found.value.field, found.value.value) == ("trusted_tenants", False)
    assert function in found.value.allowed
    ManagerConfig(KVCacheConfig(2, ()), 8, hash_function=function, trusted_tenants=True)
    ManagerConfig(KVCacheConfig(2, ()), 8, trusted_tenants=True)
    with pytest.raises(ConfigError, match="trusted_tenants"):
        ManagerConfig(KVCacheConfig(2, ()), 8, trusted_tenants=1)  # type: ignore[arg-type]  # the point


@pytest.mark.rule("KV-HASH-7", "KV-HASH-8", "KV-HASH-10")
@pytest.mark.shared
def test_tagged_hashes_are_those_of_a_later_engine(bench: Bench, shared: Path) -> None:
    """Compare with the hashes of vLLM 0.33 for prompts with adapters, items and salts."""
    compared = 0
    for name in ("events-330051", "extra_keys-330029"):
        with gzip.open(shared / f"golden-0.33/{name}.jsonl.gz", "rt", encoding="utf-8") as file:
            header, *operations = map(json.loads, file)
        manager = bench.manager(6, header["config"]["hash_block_size"])
        assert manager.none_hash.hex() == header["none_hash"]
        for operation in operations:
            args = operation.get("args", {})
            if operation.get("op") != "new_request" or "result" not in operation:
                continue
            lora = args.get("lora")
            given = RequestInput(
                "r",
                args["prompt_token_ids"],
                cache_salt=args.get("cache_salt"),
                lora=None if lora is None else LoRA(**lora),
                multimodal=tuple(MultimodalItem(**item) for item in args.get("mm_features") or ()),
            )
            found = manager.make_request(given).block_hashes
            assert [block_hash.hex() for block_hash in found] == operation["result"]["block_hashes"]
            compared += lora is not None or given.cache_salt is not None
    assert compared >= 5


@pytest.mark.rule("KV-CFG-9")
def test_the_function_is_asked_once_per_group(bench: Bench) -> None:
    asked: list[LayerSpec] = []

    def managed(spec: LayerSpec) -> LayerSpec:
        asked.append(spec)
        return full(spec.block_size) if len(asked) < 2 else sliding(spec.block_size, 6)

    registry = SpecRegistry((CustomSpec(RingSpec, managed),))
    bench.subject.create(bench.config(20, RingSpec(4), RingSpec(4), registry=registry))
    assert asked == [RingSpec(4), RingSpec(4)]
