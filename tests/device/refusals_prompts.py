"""The calls on prompts and indexes of their prefixes, and what each refuses."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
import torch

from kvfast.device import Crossover, PrefixIndex, hash_blocks
from kvspec.events import BlockRemoved, BlockStored
from tests.device import refusals_kinds as kinds
from tests.device.refusals import Bad, Call, World

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


CALLS = (
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
