"""How calls on the device plane are refused: the world they are made in, and what must stay.

A bad argument must raise an error that names it and its value, before anything was written: no
operation on pages or tables ran, no tensor changed, and the next step is as if there was no call.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

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
    ResidentDecode,
    ResidentRun,
    Swapper,
)
from kvfast.device.index.table import IndexTable
from kvfast.device.resident.state import RunState
from kvfast.device.tables.state import DeviceState
from kvspec.batched import BatchedManager, StepOutput, StepPlan
from kvspec.errors import InvalidArgumentError, KVSpecError
from kvspec.request import RequestInput
from tests.device.models import DEVICE, cache, filled, full, mamba, mla
from tests.device.tables import FULL, MAMBA, config_of, kernel_device, rows_of

HOST_BLOCKS = 4


@dataclass(frozen=True)
class Bad:
    """One bad argument, and the field that the error must name. `others`: given beside it.

    Without a field: any that begins with the argument's name.
    """

    argument: str
    value: Any
    field: str = ""
    others: Mapping[str, Any] | None = None
    error: type[KVSpecError] = InvalidArgumentError

    def __str__(self) -> str:
        return f"{self.argument} = {self.value!r:.60}"


@dataclass(frozen=True)
class Call:
    """A legal call of a public callable, as text about a world `w`, and the lines of bad values.

    `named`: parameters that errors name otherwise; `of_any_type`: no type excludes anything.
    """

    name: str
    function: str
    arguments: str
    lines: tuple[str, ...]
    names: Mapping[str, Any]
    named: Mapping[str, str]
    of_any_type: tuple[str, ...]

    def of(self, world: World) -> Callable[..., object]:
        found: Callable[..., object] = eval(self.function, {**self.names, "w": world})
        return found

    def legal(self, world: World) -> dict[str, Any]:
        return dict(eval(f"dict({self.arguments})", {**self.names, "w": world}))

    @property
    def bad(self) -> Iterator[Bad]:
        """Read the lines: `slots = [5] | [] -> keys.shape, with dtype = None`."""
        for line in self.lines:
            if line.startswith("* "):
                yield from eval(line[2:], {**self.names})
                continue
            given, _, said = line.partition(" -> ")
            argument, _, values = given.partition(" = ")
            field, _, others = said.partition(", with ")
            more = dict([others.split(" = ", 1)]) if others else {}
            beside = {name: eval(text, {**self.names}) for name, text in more.items()}
            error = self.names[field[1:]] if field.startswith("!") else InvalidArgumentError
            for text in values.split(" | "):
                value = eval(text, {**self.names})
                yield Bad(argument, value, field, beside, error)


def read_calls(names: Mapping[str, Any]) -> tuple[Call, ...]:
    text = Path(__file__).with_name("refusals.txt").read_text("utf-8")
    return tuple(_call(block.strip().splitlines(), names) for block in text.split("\n== ")[1:])


def _call(lines: Sequence[str], names: Mapping[str, Any]) -> Call:
    name, legal, *rest = lines
    made: Any = ast.parse(legal, mode="eval").body
    arguments = ", ".join(map(ast.unparse, made.keywords))
    free = tuple(line.split()[1] for line in rest if line.startswith("any "))
    renamed = dict(line[3:].split(" = ") for line in rest if line.startswith("as "))
    bad = tuple(line for line in rest if not line.startswith(("any ", "as ")))
    return Call(name, ast.unparse(made.func), arguments, bad, names, renamed, free)


def batched_of(*specs: Any) -> BatchedManager:
    implementation = kvfast.implementation()
    manager = implementation.create(replace(config_of(*specs), enable_caching=True))
    batched = implementation.batched(manager)
    for name in "ab":
        request = implementation.make_request(manager, RequestInput(name, range(4)))
        batched.register(request)
    return batched


def decoding(backend: Backend) -> tuple[ResidentDecode, BatchedManager]:
    batched, device = batched_of(FULL), kernel_device(backend)
    tables = DeviceTables(
        config_of(FULL), max_requests=2, max_tokens=8, device=device, backend=backend
    )
    plan, rows = StepPlan(new=[0, 1]), torch.zeros((8, 4), dtype=torch.int32)
    tables.step(plan, batched.step(plan, StepOutput(rows)), rows)
    batched.append([0, 1], [7, 7])
    return ResidentDecode(tables, max_blocks=4), batched


def ended(backend: Backend) -> tuple[ResidentDecode, BatchedManager, ResidentRun]:
    resident, batched = decoding(backend)
    assert resident.begin(batched, [0, 1], 1) == 1
    resident.step()
    return resident, batched, resident.end()


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
            *(getattr(self.prefixes._table, each.name) for each in fields(IndexTable)),
            *(getattr(state, each.name) for state in states for each in fields(DeviceState)),
            *(getattr(one._run, each.name) for one in runs for each in fields(RunState)),
        ]

    def bits(self) -> list[bytes]:
        return [one.contiguous().cpu().numpy().tobytes() for one in self.tensors()]

    def after_a_step(self) -> list[bytes]:
        """Run a legal step and return its bits, which show all earlier updates."""
        self.tables.update([1], [5])
        return [*self.bits(), self.tables.staged_bytes.to_bytes(8, "little")]


def verdict(call: Call, bad: Bad, world: World, before: list[bytes]) -> str | None:
    """Describe what is wrong with how a bad argument is treated; None if it is refused.

    `before`: the bits of the world, which stay.
    """
    arguments = {**call.legal(world), **(bad.others or {}), bad.argument: bad.value}
    function = call.of(world)
    caught: Exception | None = None
    watched = world.tensors()
    writes = sum(one._version for one in watched)  # torch counts them, also those through views
    try:
        function(**arguments)
    except Exception as error:
        caught = error
    if caught is None:
        return "nothing was raised"
    problem = _wrong(caught, call, bad)
    if problem is None and (sum(one._version for one in watched), world.bits()) != (writes, before):
        problem = "it wrote to a tensor"
    return problem


def _wrong(caught: Exception, call: Call, bad: Bad) -> str | None:
    if not isinstance(caught, bad.error):
        return f"{type(caught).__name__}: {caught}"
    if isinstance(caught, InvalidArgumentError):
        name = call.named.get(bad.argument, bad.argument)
        is_named = caught.field == bad.field if bad.field else re.match(rf"{name}\b", caught.field)
        if not is_named:
            return f"it names {caught.field}"
        if caught.field not in str(caught) or not caught.allowed:
            return f"it says nothing: {caught}"
        wanted = _value(bad, caught.field)
        if wanted and repr(caught.value) not in wanted:
            return f"it shows {caught.value!r}, not {wanted[0]}"
    return None


def _value(bad: Bad, named: str) -> list[str]:
    """Return the texts the error may show for the value; none for a description."""
    at = re.fullmatch(rf"{bad.argument}\[(\d+)\]", named)
    value = bad.value
    if at is not None and isinstance(value, list | str) and int(at[1]) < len(value):
        value = value[int(at[1])]
    if isinstance(value, str | int | float | None):
        return [repr(one) for one in (value, str(value), type(value).__name__)]
    return []
