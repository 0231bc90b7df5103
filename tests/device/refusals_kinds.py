"""Bad values by the type of a parameter, and those around the bounds of what is legal."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from inspect import signature
from typing import Any

import numpy as np
import torch

from tests.device.models import DEVICE
from tests.device.refusals import Bad, Call, World

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


def numbers(argument: str, minimum: int, maximum: int | None = None) -> tuple[Bad, ...]:
    """List the numbers beside the bounds."""
    values = [minimum - 1] + ([] if maximum is None else [maximum + 1])
    return tuple(Bad(argument, value, argument) for value in values)


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
