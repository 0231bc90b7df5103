"""What can be wrong with an argument, by the kind of argument that it is."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from kvspec.errors import InvalidArgumentError
from tests.device.models import DEVICE
from tests.device.refusals import Bad


def objects(argument: str, *, error: Any = InvalidArgumentError) -> tuple[Bad, ...]:
    """Something of our own types is wanted."""
    return tuple(
        Bad(argument, value, argument, error) for value in (None, 3, "x", [], {}, object())
    )


def numbers(
    argument: str, minimum: int, maximum: int | None = None, *, optional: bool = False
) -> tuple[Bad, ...]:
    """A count, a size or a number of something."""
    values: list[Any] = [minimum - 1, True, 1.5, "3", [1], np.float32(1), torch.tensor([1])]
    values += [] if maximum is None else [maximum + 1]
    values += [] if optional else [None]
    return tuple(Bad(argument, value, argument) for value in values)


def scales(argument: str) -> tuple[Bad, ...]:
    """A scale that is used."""
    values = (None, "1", True, 0.0, -1.0, float("nan"), float("inf"), 1e-60, 1e39, 10**400)
    return tuple(Bad(argument, value, argument) for value in (*values, torch.tensor(1.0), [1.0]))


def backends(argument: str = "backend") -> tuple[Bad, ...]:
    return tuple(Bad(argument, value, argument) for value in ("numpy", "", 1, True, ["torch"]))


def devices(argument: str = "device", *, optional: bool = False) -> tuple[Bad, ...]:
    """No device, one that is not there, and one without memory."""
    values: list[Any] = ["nope", "meta", torch.device("meta"), "cuda:99", "", 7, 1.5, ["cpu"]]
    values += [] if optional else [None]
    return tuple(Bad(argument, value, argument) for value in values)


def ids(
    argument: str, lowest: int, limit: int, *, skips: bool = False, writes: bool = False
) -> tuple[Bad, ...]:
    """Block ids or slots, two of them."""
    a, b = limit - 1, limit - 2
    outside = lowest - 1 if not skips else -2
    whole: list[Any] = [None, 3, {a, b}, iter([a, b]), np.array([a, b]), {a: b}]
    whole += [torch.ones(2), torch.tensor([True, True]), torch.tensor([a, b], dtype=torch.int16)]
    whole += [torch.tensor([[a, b]]), torch.tensor(a), torch.tensor([a, b], device="meta")]
    whole += [torch.tensor([a, b]).to_sparse()]
    last: list[Any] = [1.5, True, None, "7", 2**70, -(2**70), torch.tensor(b), np.int64(b)]
    last += [outside, limit, lowest - 1 if not skips else 0, 2**62]
    found = [Bad(argument, value, argument) for value in whole]
    found += [Bad(argument, [a, value], f"{argument}[1]") for value in last]
    found += [
        Bad(argument, torch.tensor([value, b], dtype=dtype), f"{argument}[0]")
        for value in (outside, limit)
        for dtype in (torch.int32, torch.int64)
    ]
    found.append(Bad(argument, "ab", f"{argument}[0]"))
    if writes:
        found.append(Bad(argument, [a, a], f"{argument}[1]"))
        found.append(Bad(argument, torch.tensor([a, a]), f"{argument}[1]"))
    return tuple(found)


def tokens(argument: str, heads: int, size: int) -> tuple[Bad, ...]:
    """Keys, values or latents of two tokens, [2, heads, size], for float16 pools or smaller."""
    shape = (2, heads, size)
    good = torch.zeros(shape, device=DEVICE)
    whole: list[Any] = [None, 3, good.tolist(), good.cpu().numpy(), good.to_sparse()]
    shapes = [(3, heads, size), (2, heads + 1, size), (2, heads, size + 1), (2, heads * size), ()]
    strided = torch.zeros((2, size, heads), device=DEVICE).transpose(1, 2)
    found = [Bad(argument, value, argument) for value in whole]
    found += [Bad(argument, torch.zeros(one, device=DEVICE), f"{argument}.shape") for one in shapes]
    found += [
        Bad(argument, good.to(dtype), f"{argument}.dtype")
        for dtype in (torch.float64, torch.int32, torch.bool, torch.complex64)
    ]
    found.append(Bad(argument, good.to("meta"), f"{argument}.device"))
    if heads > 1:
        found.append(Bad(argument, strided, f"{argument}.stride()"))
    return tuple(found)


def handles(
    argument: str, field: str | None = None, *, repeats: bool = True, limit: int | None = 2**31
) -> tuple[Bad, ...]:
    """Handles, or counts of the same form; of two requests."""
    field = argument if field is None else field
    whole: list[Any] = [None, torch.ones(2), torch.ones((1, 2), dtype=torch.int64), np.ones(2)]
    whole += [torch.zeros(2, dtype=torch.int64, device="meta"), torch.tensor([True, False])]
    whole += [np.zeros((1, 2), np.int64), {0, 1}]
    last: list[Any] = [-1, True, 1.0, None, "1", 2**70]
    last += [] if limit is None else [limit]
    found = [Bad(argument, value, field) for value in whole]
    found += [Bad(argument, [0, value], f"{field}[1]") for value in last]
    if repeats:
        found.append(Bad(argument, [1, 1], f"{field}[1]"))
        found.append(Bad(argument, torch.tensor([1, 1]), f"{field}[1]"))
    return tuple(found)
