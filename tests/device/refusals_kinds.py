"""Bad values by the type of a parameter, and kinds of them for `refusals.txt`."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator, Mapping
from inspect import signature
from typing import Any

import numpy as np
import torch

from kvfast import device
from kvspec.batched import StepPlan, StepResult
from kvspec.config import KVCacheConfig, KVCacheGroup, KVCacheTensor
from kvspec.events import BlockRemoved, BlockStored
from kvspec.specs import FullAttentionSpec, SlidingWindowSpec
from tests.device.models import DEVICE, cache, full, mla
from tests.device.refusals import Bad, Call, World, batched_of
from tests.device.tables import FULL, MAMBA, config_of, rows_of

MAX_HANDLES = (2**31 - 1) // (8 + 6)
"""Rows of 8 and 6 blocks, numbered by 31 bits."""

OTHERS: tuple[tuple[Any, str], ...] = (
    (None, "None"),
    (True, "bool"),
    (3, "int float"),
    (1.5, "float"),
    ("x", ""),
    ([], "Array Ids Ints Sequence Iterable"),
    ({}, "Iterable"),
    ({0, 1}, "Iterable"),
    (object(), ""),
    (iter([0]), "Iterable"),
    (np.ones(2), "Iterable"),
    (np.zeros((1, 2), np.int64), "Iterable"),
    (np.array([1, 2]), "Ints Iterable"),
)
"""Values, and words of annotations that may allow them: of no other parameter are they legal."""

TENSORS = (
    torch.ones(2),
    torch.tensor([True, False]),
    torch.tensor([[1, 2]]),
    torch.tensor(1),
    torch.tensor([1, 2], device="meta"),
    torch.tensor([1, 2]).to_sparse(),
    torch.tensor([1, 2], dtype=torch.int16),
)
"""Numbers of other types, shapes and places than those of ids and tokens."""

ELEMENTS = (1.5, True, None, "7", 2**70, -(2**70))
"""Values that are no number of 64 bits."""

OF_WORD: Mapping[str, tuple[Any, ...]] = {
    "Backend": ("numpy", ""),
    "Layout": ("DNH",),
    "device": ("nope", "meta", torch.device("meta"), "cuda:99", ""),
    "dtype": (torch.float64, torch.int32, torch.bool, "float32", ""),
    "float": (0.0, -1.0, float("nan"), float("inf"), 1e-60, 1e39, 10**400),
    "int": (np.float32(1), "3"),
    "str": ("9.9", ""),
    "Ids": (*TENSORS, "ab"),
    "Ints": TENSORS,
    "Array": TENSORS,
    "Tensor": TENSORS,
}
"""More of them, by a word of the annotation."""


def of_other_types(call: Call, world: World) -> Iterator[Bad]:
    """List what the annotation of each parameter excludes, with legal values for the others."""
    legal = call.legal(world)
    for parameter in signature(call.of(world)).parameters.values():
        if parameter.name in call.of_any_type:
            continue
        words = set(re.findall(r"\w+", str(parameter.annotation)))
        values = [value for value, allowed in OTHERS if not words & set(allowed.split())]
        values += [value for word in words for value in OF_WORD.get(word, ())]
        first = legal.get(parameter.name, [0])
        if parameter.annotation in ("Ids", "Ints", "Ints | int", "Sequence[int]", "Iterable[int]"):
            values += [[*first[:1], one] for one in ELEMENTS]
        yield from (Bad(parameter.name, value) for value in values)


def ids(
    argument: str, lowest: int, limit: int, *, skips: bool = False, writes: bool = False
) -> tuple[Bad, ...]:
    """List block ids or slots out of bounds; `skips`: -1 is legal; `writes`: none comes twice."""
    a, b = limit - 1, limit - 2
    outside = (-2, limit, 0) if skips and lowest else (lowest - 1, limit)
    found = [Bad(argument, [a, value], f"{argument}[1]") for value in (*outside, 2**62)]
    found += [
        Bad(argument, torch.tensor([value, b], dtype=dtype), f"{argument}[0]")
        for value in outside[:2]
        for dtype in (torch.int32, torch.int64)
    ]
    if writes:
        found += [Bad(argument, same, f"{argument}[1]") for same in ([a, a], torch.tensor([a, a]))]
    return tuple(found)


def tokens(argument: str, heads: int, size: int) -> tuple[Bad, ...]:
    """List bad keys, values or latents of two tokens, [2, heads, size], for float16 pools."""
    good = torch.zeros((2, heads, size), device=DEVICE)
    shapes = [(3, heads, size), (2, heads + 1, size), (2, heads, size + 1), (2, heads * size), ()]
    strided = torch.zeros((2, size, heads), device=DEVICE).transpose(1, 2)
    found = [Bad(argument, torch.zeros(one, device=DEVICE), f"{argument}.shape") for one in shapes]
    found += [
        Bad(argument, good.to(dtype), f"{argument}.dtype")
        for dtype in (torch.float64, torch.int32, torch.bool, torch.complex64)
    ]
    found += [Bad(argument, value, argument) for value in (good.tolist(), good.to_sparse())]
    found.append(Bad(argument, good.to("meta"), f"{argument}.device"))
    if heads > 1:
        found.append(Bad(argument, strided, f"{argument}.stride()"))
    return tuple(found)


def handles(argument: str, limit: int, *, once: bool = True) -> tuple[Bad, ...]:
    """List handles, or counts of their tokens, out of bounds; `once`: none comes twice."""
    found = [Bad(argument, [0, value], f"{argument}[1]") for value in (-1, limit)]
    if once:
        found += [Bad(argument, same, f"{argument}[1]") for same in ([1, 1], torch.tensor([1, 1]))]
    return tuple(found)


def copies(lowest_source: int, lowest: int, limit: int) -> tuple[Bad, ...]:
    """List bad sources and destinations of copies; none is both."""
    a = limit - 1
    own = {"sources": [lowest, a - 1]}
    return (
        *ids("sources", lowest_source, limit),
        *ids("destinations", lowest, limit, writes=True),
        *(Bad("destinations", some, "len(destinations)") for some in ([a], [])),
        Bad("sources", [a, a - 1, a - 2], "len(destinations)"),
        Bad("destinations", [a, lowest], "destinations[1]", own),
        Bad("destinations", torch.tensor([a, lowest]), "destinations[1]", own),
    )


TOKENS = torch.arange(9)


def prompts() -> tuple[Bad, ...]:
    """List bad tokens of the prompts that start at 0 and 3, and bad starts."""
    negative = TOKENS.int() * torch.tensor([1] * 8 + [-1]).int()
    return (
        *(Bad("tokens", value, "tokens") for value in (TOKENS.float(), TOKENS > 3, TOKENS.short())),
        *(Bad("tokens", TOKENS - number, "tokens[0]") for number in (1, 2**40)),
        Bad("tokens", negative, "tokens[8]"),
        Bad("tokens", TOKENS[:8], "starts[2]"),
        Bad("starts", [], "starts"),
        Bad("starts", array("d", [0, 9]), "starts"),
        *(Bad("starts", [0, value, 9], "starts[1]") for value in (0, -1)),
        *(Bad("starts", [0, value, 9], "starts[2]") for value in (9, 12)),
        Bad("starts", [1, 9], "starts[0]"),
        *(Bad("starts", [0, value], "starts[1]") for value in (8, 10)),
        Bad("starts", torch.tensor([0, -(2**63), 2**63 - 1]), "starts[1]"),
    )


LAST = (0, 0, 0, 1)


def result(*scheduled: int, hits: tuple[int, ...] = (), num_deltas: int = 0) -> StepResult:
    return StepResult(array("q", scheduled), array("q", hits), num_deltas=num_deltas)


def deltas(*, counted: bool = False) -> Iterator[Bad]:
    """List bad rows of tables; `counted`: beside a result that says how many there are."""
    wrong: dict[str, tuple[Any, ...]] = {
        "deltas": (
            [[*LAST]], rows_of(LAST).long(), rows_of(LAST)[:, :3], rows_of(LAST)[0],
            rows_of(LAST).to("meta"), np.zeros((2, 4), np.float32),
            np.zeros((2, 8), np.int32)[:, ::2], array("i", LAST),
        ),
        "deltas[0].handle": (rows_of((-1, 0, 0, 1)),),
        "deltas[1].handle": (rows_of(LAST, (MAX_HANDLES, 0, 0, 1)),),
        "deltas[0].group": tuple(rows_of((0, group, 0, 1)) for group in (-1, 2)),
        "deltas[0].index": tuple(rows_of((0, 1, index, 1)) for index in (-1, 6)),
        "deltas[0].block": tuple(rows_of((0, 1, 5, block)) for block in (-1, 20)),
    }  # fmt: skip
    for field, values in wrong.items():
        for value in values:
            is_counted = counted and isinstance(value, torch.Tensor)
            others = {"result": result(1, num_deltas=len(value))} if is_counted else None
            yield Bad("deltas", value, field, others)


def plans() -> Iterator[Bad]:
    """List plans of which a member is no array of handles, or names others than registered."""
    for field in ("finished", "preempted", "decoding", "prefilling", "new"):
        for value in (None, 3, torch.ones(1), {0}, np.ones((1, 1), int)):
            members: dict[str, Any] = {field: value}
            yield Bad("plan", StepPlan(**members), f"plan.{field}")
    named: tuple[tuple[StepPlan, str], ...] = (
        (StepPlan(decoding=[True]), "plan.decoding[0]"),
        (StepPlan(decoding=[-1]), "handles[0]"),
        (StepPlan(decoding=[2**31]), "handles[0]"),
        (StepPlan(decoding=[0, 0]), "handles[1]"),
        (StepPlan(decoding=[0], prefilling=[0]), "handles[1]"),
        (StepPlan(decoding=[0, 1]), "num_scheduled"),
        (StepPlan(decoding=[0], finished=[-1]), "plan[0]"),
        (StepPlan(decoding=[0], finished=[1], preempted=[1]), "plan[1]"),
        (StepPlan(new=[0]), "result.hit_tokens"),
    )
    yield from (Bad("plan", plan, field) for plan, field in named)


def one_layer(spec: Any) -> KVCacheConfig:
    return KVCacheConfig(3, (KVCacheGroup(("a",), spec),))


def stored(*hashes: Any, group: int = 0) -> BlockStored:
    return BlockStored(hashes, None, (), 4, None, None, "GPU", None, group, "full_attention", None)


KINDS: Mapping[str, Any] = {
    **{each.__name__: each for each in (ids, tokens, handles, copies, prompts, deltas, plans)},
    **{each.__name__: each for each in (one_layer, stored, result, rows_of, config_of, batched_of)},
    **{name: getattr(device, name) for name in device.__all__},
    **{each.__name__: each for each in (KVCacheConfig, StepPlan, BlockRemoved, cache, full)},
    **{"torch": torch, "FULL": FULL, "MAMBA": MAMBA, "TOKENS": TOKENS, "LAST": LAST},
    "HASH": bytes(range(32)),
    "MAX_HANDLES": MAX_HANDLES,
    "KEYS": torch.zeros((2, 2, 6), device=DEVICE),
    "VALUES": torch.zeros((2, 2, 3), device=DEVICE),
    "LATENTS": torch.zeros((2, 1, 9), device=DEVICE),
    "UNEVEN": KVCacheConfig(3, (KVCacheGroup(("a",), full()), KVCacheGroup(("b",), mla()))),
    "TWICE": KVCacheConfig(
        3, (cache(full()).groups[0],), (KVCacheTensor(432, ("0.0", "0.0", "0.1")),)
    ),
    "ODD_RATIO": mla().__class__(4, 1, 9, "bfloat16", compress_ratio=3),
    "NARROW": FullAttentionSpec(4, 2, 6, "float16", page_size_padded=8),
    "OTHER": SlidingWindowSpec(4, 1, 8, "float16", sliding_window=5),
    "NO_PINNING": "no flag" if torch.cuda.is_available() else True,
}
"""Names in `refusals.txt`."""
