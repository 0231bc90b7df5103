"""Bad arguments of every public callable are refused before anything is done (KV-DEV-7)."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from inspect import isclass, isfunction, signature
from pkgutil import walk_packages

import pytest

from kvfast import device
from kvfast.device import Backend
from kvfast.device.base import arguments as base
from kvfast.device.hashing import prompts as hashing
from kvfast.device.pages import arguments as pages
from kvfast.device.tables import input as tables
from tests.device.refusals import World, read_calls, verdict
from tests.device.refusals_kinds import KINDS, of_other_types

CALLS = read_calls(KINDS)
IDS = [call.name for call in CALLS]


@pytest.mark.rule("KV-DEV-2", "KV-DEV-7", "KV-DEV-14")
@pytest.mark.parametrize("name", dict.fromkeys(IDS))
def test_what_is_bad_is_named_and_nothing_is_done(name: str, backend: Backend) -> None:
    world = World(backend)
    before = world.bits()
    calls = [call for call in CALLS if call.name == name]
    tried = [(calls[0], bad) for bad in of_other_types(calls[0], world)]
    tried += [(call, bad) for call in calls for bad in call.bad]
    found = [(str(bad), verdict(call, bad, world, before)) for call, bad in tried]
    assert [(bad, problem) for bad, problem in found if problem is not None] == []
    assert {bad.argument for _, bad in tried} == parameters(public_callables()[name])
    if name.startswith("DeviceTables."):
        is_same = world.after_a_step() == World(backend).after_a_step()
        assert is_same, "what was refused shows in the next step"


def public_callables() -> dict[str, Callable[..., object]]:
    found: dict[str, Callable[..., object]] = {}
    for name in device.__all__:
        thing = getattr(device, name)
        if isfunction(thing):
            found[name] = thing
        elif isclass(thing):
            found[name] = thing.__init__
            found |= {
                f"{name}.{method}": function
                for method, function in vars(thing).items()
                if isfunction(function) and method[0] != "_"
            }
    return {name: found[name] for name in found if parameters(found[name])}


def parameters(function: Callable[..., object]) -> set[str]:
    return set(signature(function).parameters) - {"self"}


NOT_CALLED = {
    *("BlockHashes", "DeviceStep", "Layer", "ResidentRun", "TableDifference", "Transfer"),
    *("DeviceMemoryError", "MissingDependencyError", "ResidentOrderError", "RunDifferenceError"),
}
"""Results and errors of the library."""


def test_every_public_callable_is_in_the_table() -> None:
    assert set(IDS) | NOT_CALLED == public_callables().keys()


CHECKS = tuple(
    name
    for module in (base, hashing, pages, tables)
    for name, thing in vars(module).items()
    if isfunction(thing) and thing.__module__ == module.__name__ and "check_" in name
)


@pytest.mark.parametrize("check", CHECKS)
def test_without_a_check_the_table_fails(check: str, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World("torch")
    before = world.bits()
    names = [one.name for one in walk_packages(device.__path__, f"{device.__name__}.")]
    for module in (import_module(name) for name in names if "kernels" not in name):
        if isfunction(getattr(module, check, None)):
            monkeypatch.setattr(module, check, lambda field, value, *others, **options: value)
    tried = ((call, bad) for call in CALLS for bad in (*call.bad, *of_other_types(call, world)))
    assert any(verdict(call, bad, world, before) is not None for call, bad in tried)
