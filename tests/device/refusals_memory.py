"""The calls on pools, pages and prompts, and what each refuses."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
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
from kvspec.errors import ConfigError
from kvspec.events import BlockRemoved, BlockStored
from kvspec.specs import FullAttentionSpec
from tests.device import refusals as kinds
from tests.device.models import DEVICE, cache, full, mla
from tests.device.refusals import Bad, Call, World

NUM_BLOCKS = 7
NUM_SLOTS = 4 * NUM_BLOCKS


def one_layer(spec: Any) -> KVCacheConfig:
    return KVCacheConfig(3, (KVCacheGroup(("a",), spec),))


UNEVEN = KVCacheConfig(3, (KVCacheGroup(("a",), full()), KVCacheGroup(("b",), mla())))
TWICE = KVCacheConfig(3, (cache(full()).groups[0],), (KVCacheTensor(432, ("0.0", "0.0", "0.1")),))
ODD_RATIO = mla().__class__(4, 1, 9, "bfloat16", compress_ratio=3)
NARROW = FullAttentionSpec(4, 2, 6, "float16", page_size_padded=8)
LAYERS = tuple(Bad("layer", value, "layer") for value in (None, 3, "9.9", ["0.0"], "", True))
GROUPS = (*kinds.numbers("group", 0, 1, optional=True), Bad("group", [], "group"))


def zeros(heads: int, size: int, num: int = 2) -> torch.Tensor:
    return torch.zeros((num, heads, size), device=DEVICE)


KEYS_AND_VALUES = {"layer": "0.0", "keys": zeros(2, 6), "values": zeros(2, 3), "slots": [5, 9]}
LATENTS = {"layer": "0.0", "latents": zeros(1, 9), "slots": [5, 9]}
SAME = {"keys": zeros(2, 6).half(), "values": zeros(2, 3).half()}  # as the pool stores them


def formats(kept: str) -> tuple[Bad, ...]:
    """List bad formats for reads from pools of float16, or of the format `kept`."""
    values: list[Any] = [torch.float64, torch.int32, torch.bool, kept, "float32", 0, False, "", []]
    return tuple(Bad("dtype", value, "dtype") for value in values)


POOLS = Call(
    "KVPools", lambda w: KVPools, lambda w: {"cache": cache(full())},
    (
        *kinds.objects("cache", error=ConfigError),
        Bad("cache", KVCacheConfig(0, cache(full()).groups), "num_blocks", ConfigError),
        Bad("cache", UNEVEN, "tensors", ConfigError),
        Bad("cache", TWICE, "shared_by", ConfigError),
        Bad("cache", one_layer(ODD_RATIO), "compress_ratio", ConfigError),
        Bad("cache", one_layer(NARROW), "page_size_padded", ConfigError),
        *kinds.devices(),
        *(Bad("layout", value, "layout") for value in ("DNH", None, 3, ["NHD"])),
        Bad("layout", "DNH", "layout", others={"cache": KVCacheConfig(3, ())}),
        *(Bad("pin_memory", value, "pin_memory") for value in (None, 1, "yes")),
        *(() if torch.cuda.is_available() else (Bad("pin_memory", True, "pin_memory"),)),
        *kinds.numbers("free_bytes", 0, optional=True),
        Bad("free_bytes", 2015, "", DeviceMemoryError),
    ),
)  # fmt: skip

OPERATIONS = Call(
    "PageOperations", lambda w: PageOperations, lambda w: {"pools": w.pools},
    (*kinds.objects("pools"), *kinds.backends()),
)  # fmt: skip

_WRITTEN = kinds.ids("slots", 4, NUM_SLOTS, skips=True, writes=True)
_READ = kinds.ids("slots", 4, NUM_SLOTS, skips=True)
WRITES = (
    Call(
        "PageOperations.write", lambda w: w.small_pages.write,
        lambda w: KEYS_AND_VALUES,
        (
            *LAYERS, *kinds.tokens("keys", 2, 6), *kinds.tokens("values", 2, 3), *_WRITTEN,
            *kinds.scales("key_scale"), *kinds.scales("value_scale"),
            Bad("slots", [5], "keys.shape"), Bad("slots", [], "keys.shape"),
        ),
    ),
    Call(
        "PageOperations.write", lambda w: w.pages.write,
        lambda w: {**KEYS_AND_VALUES, **SAME},
        (
            Bad("key_scale", 2.0, "key_scale"), Bad("value_scale", 0.5, "value_scale"),
            Bad("layer", "1.0", "layer"),  # Mamba
        ),
    ),
    Call(
        "PageOperations.write", lambda w: w.scaled_pages.write,
        lambda w: KEYS_AND_VALUES,
        (Bad("key_scale", 2.0, "key_scale"), Bad("value_scale", 0.5, "value_scale")),
    ),
    Call(
        "PageOperations.write", lambda w: w.latent_pages.write,
        lambda w: KEYS_AND_VALUES, (Bad("layer", "0.0", "layer"),),
    ),
    Call(
        "PageOperations.write_latent", lambda w: w.latent_pages.write_latent,
        lambda w: LATENTS,
        (
            *LAYERS, *kinds.tokens("latents", 1, 9), *_WRITTEN, *kinds.scales("scale"),
            Bad("slots", [5], "latents.shape"),
        ),
    ),
    Call(
        "PageOperations.write_latent", lambda w: w.pages.write_latent,
        lambda w: LATENTS, (Bad("layer", "0.0", "layer"), Bad("layer", "1.0", "layer")),
    ),
)  # fmt: skip

READS = (
    Call(
        "PageOperations.gather", lambda w: w.small_pages.gather,
        lambda w: {"layer": "0.0", "slots": [5, 9], "dtype": torch.float32},
        (
            *LAYERS, *_READ, *formats("float8_e4m3fn"),
            *kinds.scales("key_scale"), *kinds.scales("value_scale"),
            Bad("key_scale", 2.0, "key_scale", others={"dtype": None}),
        ),
    ),
    Call(
        "PageOperations.gather", lambda w: w.scaled_pages.gather,
        lambda w: {"layer": "0.0", "slots": [5, 9], "dtype": torch.float32},
        (Bad("value_scale", 2.0, "value_scale"), Bad("dtype", torch.int16, "dtype")),
    ),
    Call(
        "PageOperations.gather_latent", lambda w: w.latent_pages.gather_latent,
        lambda w: {"layer": "0.0", "slots": [5, 9], "dtype": torch.float32},
        (*LAYERS, *_READ, *formats("float8_e5m2"), *kinds.scales("scale")),
    ),
)  # fmt: skip


def copies(lowest_source: int, lowest: int, limit: int) -> tuple[Bad, ...]:
    a = limit - 1
    return (
        *kinds.ids("sources", lowest_source, limit),
        *kinds.ids("destinations", lowest, limit, writes=True),
        Bad("destinations", [a], "len(destinations)"),
        Bad("destinations", [], "len(destinations)"),
        Bad("sources", [a, a - 1, a - 2], "len(destinations)"),
        Bad("destinations", [a, lowest], "destinations[1]", others={"sources": [lowest, a - 1]}),
        Bad(
            "destinations", torch.tensor([a, lowest]), "destinations[1]",
            others={"sources": [lowest, a - 1]},
        ),
    )  # fmt: skip


COPIES = (
    Call(
        "PageOperations.copy_slots", lambda w: w.pages.copy_slots,
        lambda w: {"group": 0, "sources": [5, 6], "destinations": [9, 10]},
        (
            *kinds.numbers("group", 0, 1), *copies(4, 4, NUM_SLOTS),
            Bad("group", 1, "group"),  # Mamba: blocks have no slots
        ),
    ),
    Call(
        "PageOperations.copy_blocks", lambda w: w.pages.copy_blocks,
        lambda w: {"sources": [1, 2], "destinations": [3, 4]},
        (*copies(0, 1, NUM_BLOCKS), *GROUPS),
    ),
    Call(
        "PageOperations.zero_blocks", lambda w: w.pages.zero_blocks,
        lambda w: {"blocks": [1, 2]}, (*kinds.ids("blocks", 1, NUM_BLOCKS, skips=True), *GROUPS),
    ),
)  # fmt: skip


TOKENS = torch.arange(9)

NO_TOKENS: tuple[Any, ...] = (
    None, 3, TOKENS.tolist(), TOKENS.numpy(), TOKENS.float(), TOKENS.short(), TOKENS > 3,
    TOKENS.view(3, 3), TOKENS[0], TOKENS.to("meta"), TOKENS.to_sparse(), "012345678",
)  # fmt: skip
NO_STARTS: tuple[Any, ...] = (
    None, 3, [], {0, 9}, "09", np.zeros(2), np.zeros((1, 2), int), torch.zeros(2),
    torch.tensor([[0, 9]]), torch.zeros(2).long().to("meta"), array("d", [0, 9]), iter([0]),
)  # fmt: skip

PROMPTS = (
    *(Bad("tokens", value, "tokens") for value in NO_TOKENS),
    *(Bad("tokens", TOKENS - number, "tokens[0]") for number in (1, 2**40)),
    Bad("tokens", TOKENS.int() * torch.tensor([1] * 8 + [-1]).int(), "tokens[8]"),
    Bad("tokens", TOKENS[:8], "starts[2]"),
    *(Bad("starts", value, "starts") for value in NO_STARTS),
    *(
        Bad("starts", [0, value, 9], "starts[1]")
        for value in (0, -1, True, 1.0, None, "1", 2**70, torch.tensor(1))
    ),
    Bad("starts", [0, 12, 9], "starts[2]"),
    Bad("starts", [0, 9, 9], "starts[2]"),
    Bad("starts", [1, 9], "starts[0]"),
    Bad("starts", [0, 8], "starts[1]"),
    Bad("starts", [0, 10], "starts[1]"),
    Bad("starts", torch.tensor([0, -(2**63), 2**63 - 1]), "starts[1]"),
)


def stored(*hashes: Any, group: int = 0) -> BlockStored:
    return BlockStored(hashes, None, (), 4, None, None, "GPU", None, group, "full_attention", None)


HASH = bytes(range(32))


def arguments(world: World) -> dict[str, Any]:
    return {"implementation": world.implementation, "manager": world.prefixes.manager}


PROMPTS_CALLS = (
    Call(
        "hash_blocks", lambda w: hash_blocks,
        lambda w: {
            "tokens": TOKENS, "starts": [0, 3, 9], "block_size_tokens": 2, "none_hash": HASH,
            "backend": w.backend,
        },
        (
            *PROMPTS,
            *kinds.numbers("block_size_tokens", 1, 65_536),
            *(Bad("none_hash", value, "none_hash") for value in
              (None, 3, "", b"", bytes(31), bytes(33), bytearray(32), "0" * 32)),
            *kinds.devices(optional=True),
            *kinds.backends(),
        ),
    ),
    Call(
        "Crossover", lambda w: Crossover, lambda w: {},
        kinds.numbers("num_prompts", 1, optional=True),
    ),
    Call(
        "Crossover.chooses_device",
        lambda w: Crossover(2).chooses_device, lambda w: {},
        (*kinds.objects("num_blocks"), Bad("num_blocks", [3, 4], "num_blocks")),
    ),
    Call(
        "PrefixIndex", lambda w: PrefixIndex, arguments,
        (
            *kinds.objects("implementation"),
            *kinds.objects("manager"),
            *kinds.devices(),
            *kinds.backends(),
            *(Bad("crossover", value, "crossover") for value in (3, "x", [], {}, object())),
        ),
    ),
    Call(
        "PrefixIndex.update", lambda w: w.prefixes.update, lambda w: {},
        (
            *(Bad("events", value, "events") for value in (None, 3, object(), stored(HASH))),
            *(Bad("events", [stored(HASH), value], "events[1]") for value in
              (None, 3, "x", stored(HASH, 4), stored(bytes(31)), stored(HASH, group=1),
               BlockRemoved((bytes(32),), "GPU", 0), BlockRemoved((HASH, HASH), "GPU", 0))),
            Bad("events", [stored(*(bytes([n]) * 32 for n in range(1, 30)))], "events"),
        ),
    ),
    Call(
        "PrefixIndex.lookup", lambda w: w.prefixes.lookup,
        lambda w: {"tokens": TOKENS, "starts": [0, 3, 9]}, PROMPTS,
    ),
)  # fmt: skip

CALLS = (POOLS, OPERATIONS, *WRITES, *READS, *COPIES, *PROMPTS_CALLS)
