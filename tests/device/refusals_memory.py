"""The calls on pools, pages and prompts, and what each refuses besides values of other types."""

from __future__ import annotations

from array import array
from typing import Any

import torch

from kvfast.device import (
    Crossover,
    DeviceMemoryError,
    KVPools,
    PageOperations,
    PrefixIndex,
    hash_blocks,
)
from kvspec.config import KVCacheConfig, KVCacheGroup, KVCacheTensor
from kvspec.events import BlockRemoved, BlockStored
from kvspec.specs import FullAttentionSpec
from tests.device import refusals_kinds as kinds
from tests.device.models import DEVICE, cache, full, mla
from tests.device.refusals import Bad, Call

# Pools and pages.

NUM_BLOCKS = 7
NUM_SLOTS = 4 * NUM_BLOCKS


def one_layer(spec: Any) -> KVCacheConfig:
    return KVCacheConfig(3, (KVCacheGroup(("a",), spec),))


UNEVEN = KVCacheConfig(3, (KVCacheGroup(("a",), full()), KVCacheGroup(("b",), mla())))
TWICE = KVCacheConfig(3, (cache(full()).groups[0],), (KVCacheTensor(432, ("0.0", "0.0", "0.1")),))
ODD_RATIO = mla().__class__(4, 1, 9, "bfloat16", compress_ratio=3)
NARROW = FullAttentionSpec(4, 2, 6, "float16", page_size_padded=8)
KEYS, VALUES = (torch.zeros((2, 2, size), device=DEVICE) for size in (6, 3))
KEYS_AND_VALUES = {"layer": "0.0", "keys": KEYS, "values": VALUES, "slots": [5, 9]}
LATENTS = {"layer": "0.0", "latents": torch.zeros((2, 1, 9), device=DEVICE), "slots": [5, 9]}
READ = {"layer": "0.0", "slots": [5, 9], "dtype": torch.float32}
UNSCALED = (Bad("key_scale", 2.0, "key_scale"), Bad("value_scale", 0.5, "value_scale"))
GROUPS = kinds.numbers("group", 0, 1)
WRITTEN = kinds.ids("slots", 4, NUM_SLOTS, skips=True, writes=True)
GATHERED = kinds.ids("slots", 4, NUM_SLOTS, skips=True)


def copies(lowest_source: int, lowest: int, limit: int) -> tuple[Bad, ...]:
    a = limit - 1
    own = {"sources": [lowest, a - 1]}
    return (
        *kinds.ids("sources", lowest_source, limit),
        *kinds.ids("destinations", lowest, limit, writes=True),
        Bad("destinations", [a], "len(destinations)"),
        Bad("destinations", [], "len(destinations)"),
        Bad("sources", [a, a - 1, a - 2], "len(destinations)"),
        Bad("destinations", [a, lowest], "destinations[1]", own),
        Bad("destinations", torch.tensor([a, lowest]), "destinations[1]", own),
    )


MEMORY = (
    Call(
        "KVPools", lambda w: KVPools, lambda w: {"cache": cache(full())},
        (
            Bad("cache", KVCacheConfig(0, cache(full()).groups), "num_blocks"),
            Bad("cache", UNEVEN, "tensors"), Bad("cache", TWICE, "shared_by"),
            Bad("cache", one_layer(ODD_RATIO), "compress_ratio"),
            Bad("cache", one_layer(NARROW), "page_size_padded"),
            Bad("layout", "DNH", "layout", {"cache": KVCacheConfig(3, ())}),
            *(() if torch.cuda.is_available() else (Bad("pin_memory", True, "pin_memory"),)),
            Bad("free_bytes", -1, "free_bytes"),
            Bad("free_bytes", 2015, error=DeviceMemoryError),
        ),
    ),
    Call("PageOperations", lambda w: PageOperations, lambda w: {"pools": w.pools}),
    Call(
        "PageOperations.write", lambda w: w.small_pages.write, lambda w: KEYS_AND_VALUES,
        (
            *kinds.tokens("keys", 2, 6), *kinds.tokens("values", 2, 3), *WRITTEN,
            Bad("slots", [5], "keys.shape"), Bad("slots", [], "keys.shape"),
        ),
    ),
    Call(
        "PageOperations.write", lambda w: w.pages.write,
        lambda w: {**KEYS_AND_VALUES, "keys": KEYS.half(), "values": VALUES.half()},
        (*UNSCALED, Bad("layer", "1.0", "layer")),  # Mamba
    ),
    Call("PageOperations.write", lambda w: w.scaled_pages.write, lambda w: KEYS_AND_VALUES,
         UNSCALED),
    Call("PageOperations.write", lambda w: w.latent_pages.write, lambda w: KEYS_AND_VALUES,
         (Bad("layer", "0.0", "layer"),)),
    Call(
        "PageOperations.write_latent", lambda w: w.latent_pages.write_latent, lambda w: LATENTS,
        (*kinds.tokens("latents", 1, 9), *WRITTEN, Bad("slots", [5], "latents.shape")),
    ),
    Call("PageOperations.write_latent", lambda w: w.pages.write_latent, lambda w: LATENTS,
         (Bad("layer", "0.0", "layer"), Bad("layer", "1.0", "layer"))),
    Call(
        "PageOperations.gather", lambda w: w.small_pages.gather, lambda w: READ,
        (*GATHERED, Bad("key_scale", 2.0, "key_scale", {"dtype": None})),
    ),
    Call(
        "PageOperations.gather", lambda w: w.scaled_pages.gather, lambda w: READ,
        (Bad("value_scale", 2.0, "value_scale"), Bad("dtype", torch.int16, "dtype")),
    ),
    Call("PageOperations.gather_latent", lambda w: w.latent_pages.gather_latent, lambda w: READ,
         GATHERED),
    Call(
        "PageOperations.copy_slots", lambda w: w.pages.copy_slots,
        lambda w: {"group": 0, "sources": [5, 6], "destinations": [9, 10]},
        (
            *GROUPS, *copies(4, 4, NUM_SLOTS),
            Bad("group", 1, "group"),  # Mamba: blocks have no slots
        ),
    ),
    Call(
        "PageOperations.copy_blocks", lambda w: w.pages.copy_blocks,
        lambda w: {"sources": [1, 2], "destinations": [3, 4]},
        (*copies(0, 1, NUM_BLOCKS), *GROUPS),
    ),
    Call("PageOperations.zero_blocks", lambda w: w.pages.zero_blocks, lambda w: {"blocks": [1, 2]},
         (*kinds.ids("blocks", 1, NUM_BLOCKS, skips=True), *GROUPS)),
)  # fmt: skip

# Prompts.

TOKENS = torch.arange(9)
HASH = bytes(range(32))
PROMPTS = (
    *(Bad("tokens", value, "tokens") for value in (TOKENS.float(), TOKENS > 3, TOKENS.short())),
    *(Bad("tokens", TOKENS - number, "tokens[0]") for number in (1, 2**40)),
    Bad("tokens", TOKENS.int() * torch.tensor([1] * 8 + [-1]).int(), "tokens[8]"),
    Bad("tokens", TOKENS[:8], "starts[2]"),
    Bad("starts", [], "starts"),
    Bad("starts", array("d", [0, 9]), "starts"),
    *(Bad("starts", [0, value, 9], "starts[1]") for value in (0, -1)),
    *(Bad("starts", [0, value, 9], "starts[2]") for value in (9, 12)),
    Bad("starts", [1, 9], "starts[0]"),
    *(Bad("starts", [0, value], "starts[1]") for value in (8, 10)),
    Bad("starts", torch.tensor([0, -(2**63), 2**63 - 1]), "starts[1]"),
)


def stored(*hashes: Any, group: int = 0) -> BlockStored:
    return BlockStored(hashes, None, (), 4, None, None, "GPU", None, group, "full_attention", None)


ON_PROMPTS = (
    Call(
        "hash_blocks", lambda w: hash_blocks,
        lambda w: {"tokens": TOKENS, "starts": [0, 3, 9], "block_size_tokens": 2,
                   "none_hash": HASH, "backend": w.backend},
        (
            *PROMPTS, *kinds.numbers("block_size_tokens", 1, 65_536),
            *(Bad("none_hash", value, "none_hash")
              for value in (b"", bytes(31), bytes(33), bytearray(32), "0" * 32)),
        ),
    ),
    Call("Crossover", lambda w: Crossover, lambda w: {}, kinds.numbers("num_prompts", 1)),
    Call("Crossover.chooses_device", lambda w: Crossover(2).chooses_device, lambda w: {},
         tuple(Bad("num_blocks", value, "num_blocks") for value in (None, 3, [3, 4])),
         of_any_type=("num_blocks",)),
    Call("PrefixIndex", lambda w: PrefixIndex,
         lambda w: {"implementation": w.implementation, "manager": w.prefixes.manager}),
    Call(
        "PrefixIndex.update", lambda w: w.prefixes.update, lambda w: {},
        (
            Bad("events", stored(HASH), "events"),
            *(Bad("events", [stored(HASH), value], "events[1]") for value in
              (None, 3, "x", stored(HASH, 4), stored(bytes(31)), stored(HASH, group=1),
               BlockRemoved((bytes(32),), "GPU", 0), BlockRemoved((HASH, HASH), "GPU", 0))),
            Bad("events", [stored(*(bytes([n]) * 32 for n in range(1, 30)))], "events"),
        ),
    ),
    Call("PrefixIndex.lookup", lambda w: w.prefixes.lookup,
         lambda w: {"tokens": TOKENS, "starts": [0, 3, 9]}, PROMPTS),
)  # fmt: skip

CALLS = (*MEMORY, *ON_PROMPTS)
