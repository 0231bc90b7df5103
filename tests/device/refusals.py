"""A table of what the device plane refuses: each callable with legal arguments and bad ones.

A bad argument must raise an error that names it and its value, before anything was written: no
operation on pages or tables ran, no tensor changed, and the next step is as if there was no call.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from types import ModuleType
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

import kvfast
from kvfast.device import (
    Backend,
    Crossover,
    DeviceTables,
    HostTier,
    KVPools,
    PageOperations,
    PrefixIndex,
    Swapper,
)
from kvfast.device.hashing import plain as _hashing_torch
from kvfast.device.index import plain as _index_torch
from kvfast.device.index.table import IndexTable
from kvfast.device.pages import plain as _pages_torch
from kvfast.device.resident.state import RunState
from kvfast.device.tables import plain as _tables_torch
from kvfast.device.tables.state import DeviceState
from kvspec.errors import InvalidArgumentError, KVSpecError
from kvspec.request import RequestInput
from tests.device.models import DEVICE, cache, filled, full, mamba, mla
from tests.device.tables import FULL, MAMBA, config_of, kernel_device, rows_of

PAGE_FUNCTIONS = ("store_tokens", "load_tokens", "copy_pages", "zero_pages")
TABLE_FUNCTIONS = ("apply", "outputs", "gather")
INDEX_FUNCTIONS = ("insert", "lookup")
HOST_BLOCKS = 4


@dataclass(frozen=True)
class Bad:
    """One bad argument, and the field that the error must name. `others`: given beside it."""

    argument: str
    value: Any
    field: str
    error: type[KVSpecError] = InvalidArgumentError
    others: Mapping[str, Any] | None = None

    def __str__(self) -> str:
        return f"{self.argument} = {self.value!r:.60}"


@dataclass(frozen=True)
class Call:
    """A public callable, where it is found in a world, and what is legal for it."""

    name: str
    of: Callable[[World], Callable[..., object]]
    legal: Callable[[World], dict[str, Any]]
    bad: tuple[Bad, ...]


class World:
    """Pools of several kinds, all full of numbers, and tables in the middle of their work."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.pools = filled(cache(full(), mamba()))
        self.latents = filled(cache(mla("float8_e5m2")))
        self.small = filled(cache(full("float8_e4m3fn")))
        self.scaled = filled(cache(full("int8", "INT8_PER_TOKEN_HEAD")))
        self.host = KVPools(
            cache(full(), mamba(), num_blocks=HOST_BLOCKS), pin_memory=DEVICE.startswith("cuda")
        )
        for pages in self.host.pages:
            pages[1:] = 7
        self.pages, self.latent_pages, self.small_pages, self.scaled_pages = (
            PageOperations(pools, backend=backend)
            for pools in (self.pools, self.latents, self.small, self.scaled)
        )
        self.swapper = Swapper(self.pools, self.host, backend=backend)
        self.implementation = kvfast.implementation()
        manager = self.implementation.create(config_of(FULL, MAMBA))
        self.batched = self.implementation.batched(manager)
        request = self.implementation.make_request(manager, RequestInput("a", range(9)))
        self.handle = self.batched.register(request)
        device = kernel_device(backend)
        self.tables = DeviceTables(
            config_of(FULL, MAMBA), max_requests=2, max_tokens=16, device=device, backend=backend
        )
        self.tables.update([1], [12], rows_of((1, 0, 0, 3)))
        self.tables.update([1], [6], rows_of((0, 0, 1, 3)))
        self.tables.rewind([1], [1])
        self.prefixes = self.index()
        from tests.device.refusals_steps import decoding, ended

        self.decoding: Any = decoding(backend)
        self.ended: Any = ended(backend)

    def tier(self) -> HostTier:
        config = replace(config_of(FULL), enable_caching=True)
        batched = self.implementation.batched(self.implementation.create(config))
        request = RequestInput("a", range(9))
        batched.register(self.implementation.make_request(batched.manager, request))
        pools = KVPools(config.kv_cache, device=DEVICE)
        return HostTier(self.implementation, batched, pools, num_host_blocks=HOST_BLOCKS)

    def index(self) -> PrefixIndex:
        manager = self.implementation.create(replace(config_of(FULL), enable_caching=True))
        device = kernel_device(self.backend)
        made = PrefixIndex(
            self.implementation,
            manager,
            device=device,
            backend=self.backend,
            crossover=Crossover(1),
        )
        made._send_changes()
        return made

    def tensors(self) -> list[torch.Tensor]:
        pools = (self.pools, self.latents, self.small, self.scaled, self.host)
        runs = (self.decoding[0], self.ended[0])
        states = (self.tables._device.state, *(one.tables._device.state for one in runs))
        return [
            *(pages for one in pools for pages in one.pages),
            *(getattr(self.prefixes._table, field.name) for field in fields(IndexTable)),
            *(getattr(state, field.name) for state in states for field in fields(DeviceState)),
            *(getattr(one._run, field.name) for one in runs for field in fields(RunState)),
        ]

    def bits(self) -> list[bytes]:
        return [one.contiguous().cpu().numpy().tobytes() for one in self.tensors()]

    def after_a_step(self) -> list[bytes]:
        """Run a legal step and return its bits, which show all earlier updates."""
        self.tables.update([1], [5])
        return [*self.bits(), self.tables.staged_bytes.to_bytes(8, "little")]


@contextmanager
def counted(world: World) -> Iterator[list[str]]:
    """Record which operations ran, and in-place writes to tensors of the world."""
    ran: list[str] = []

    def counting(module: ModuleType, name: str) -> Any:
        real = getattr(module, name)

        def call(*args: Any, **options: Any) -> Any:
            ran.append(name)
            return real(*args, **options)

        return patch.object(module, name, call)

    modules = [(_pages_torch, PAGE_FUNCTIONS), (_tables_torch, TABLE_FUNCTIONS)]
    modules += [(_hashing_torch, ("block_hashes",)), (_index_torch, INDEX_FUNCTIONS)]
    if world.backend == "triton":
        from kvfast.device.hashing import kernels as _hashing_triton
        from kvfast.device.index import kernels as _index_triton
        from kvfast.device.pages import kernels as _pages_triton
        from kvfast.device.tables import kernels as _tables_triton

        modules += [(_pages_triton, PAGE_FUNCTIONS), (_tables_triton, TABLE_FUNCTIONS)]
        modules += [(_hashing_triton, ("block_hashes",)), (_index_triton, INDEX_FUNCTIONS)]
    patches = [counting(module, name) for module, names in modules for name in names]
    for one in patches:
        one.start()
    watched = world.tensors()
    versions = [one._version for one in watched]  # torch counts writes, also those through views
    try:
        yield ran
    finally:
        for one in patches:
            one.stop()
        written = [one._version - old for one, old in zip(watched, versions, strict=True)]
        ran += ["a write of torch"] * sum(written)


def verdict(call: Call, bad: Bad, world: World) -> str | None:
    """Describe what is wrong with how a bad argument is treated; None if it is refused."""
    before = world.bits()
    arguments = {**call.legal(world), **(bad.others or {}), bad.argument: bad.value}
    function = call.of(world)
    caught: Exception | None = None
    with counted(world) as ran:
        try:
            function(**arguments)
        except Exception as error:
            caught = error
    if caught is None:
        return "nothing was raised"
    problem = _wrong(caught, bad)
    if problem is None and ran:
        problem = f"it ran {ran}"
    if problem is None and world.bits() != before:
        problem = "a tensor has changed"
    return problem


def _wrong(caught: Exception, bad: Bad) -> str | None:
    if not isinstance(caught, bad.error):
        return f"{type(caught).__name__}: {caught}"
    if isinstance(caught, InvalidArgumentError):
        if caught.field != bad.field:
            return f"it names {caught.field}"
        if bad.field not in str(caught) or not caught.allowed:
            return f"it says nothing: {caught}"
        wanted = _value(bad)
        if wanted and repr(caught.value) not in wanted:
            return f"it shows {caught.value!r}, not {wanted[0]}"
    return None


def _value(bad: Bad) -> list[str]:
    """Return the texts the error may show for the value; none for a description."""
    at = re.fullmatch(rf"{bad.argument}\[(\d+)\]", bad.field)
    value = bad.value
    if at is not None and isinstance(value, list | str | torch.Tensor):
        value = value.tolist() if isinstance(value, torch.Tensor) else value
        return [repr(value[int(at[1])]), repr(value)]
    if bad.field.startswith(bad.argument) and isinstance(value, str | int | float | None):
        return [repr(one) for one in (value, str(value), type(value).__name__)]
    return []


# What can be wrong with an argument, by the kind of argument that it is.


def objects(argument: str, *, error: Any = InvalidArgumentError) -> tuple[Bad, ...]:
    return tuple(
        Bad(argument, value, argument, error) for value in (None, 3, "x", [], {}, object())
    )


def numbers(
    argument: str, minimum: int, maximum: int | None = None, *, optional: bool = False
) -> tuple[Bad, ...]:
    values: list[Any] = [minimum - 1, True, 1.5, "3", [1], np.float32(1), torch.tensor([1])]
    values += [] if maximum is None else [maximum + 1]
    values += [] if optional else [None]
    return tuple(Bad(argument, value, argument) for value in values)


def scales(argument: str) -> tuple[Bad, ...]:
    values = (None, "1", True, 0.0, -1.0, float("nan"), float("inf"), 1e-60, 1e39, 10**400)
    return tuple(Bad(argument, value, argument) for value in (*values, torch.tensor(1.0), [1.0]))


def backends(argument: str = "backend") -> tuple[Bad, ...]:
    return tuple(Bad(argument, value, argument) for value in ("numpy", "", 1, True, ["torch"]))


def devices(argument: str = "device", *, optional: bool = False) -> tuple[Bad, ...]:
    values: list[Any] = ["nope", "meta", torch.device("meta"), "cuda:99", "", 7, 1.5, ["cpu"]]
    values += [] if optional else [None]
    return tuple(Bad(argument, value, argument) for value in values)


def ids(
    argument: str, lowest: int, limit: int, *, skips: bool = False, writes: bool = False
) -> tuple[Bad, ...]:
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
    """List bad keys, values or latents of two tokens, [2, heads, size], for float16 pools."""
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
