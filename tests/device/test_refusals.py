"""Bad arguments of every public callable are refused before anything is done (KV-DEV-7)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from inspect import isclass, isfunction, signature
from pkgutil import iter_modules

import pytest

from kvfast import device
from kvfast.device import _arguments, _hashing_prompts, _tables_input
from kvfast.device._backend import Backend
from kvfast.device.pools import KVPools
from tests.device import (
    refusals_pages,
    refusals_prompts,
    refusals_resident,
    refusals_swaps,
    refusals_tables,
)
from tests.device.refusals import Call, World, verdict

CALLS = (
    *refusals_pages.CALLS,
    *refusals_swaps.CALLS,
    *refusals_tables.CALLS,
    *refusals_resident.CALLS,
    *refusals_prompts.CALLS,
)
IDS = [call.name for call in CALLS]


@pytest.mark.rule("KV-DEV-2", "KV-DEV-7", "KV-DEV-14")
@pytest.mark.parametrize("call", CALLS, ids=IDS)
def test_what_is_bad_is_named_and_nothing_is_done(call: Call, backend: Backend) -> None:
    world = World(backend)
    found = {str(bad): verdict(call, bad, world) for bad in call.bad}
    assert {bad: problem for bad, problem in found.items() if problem is not None} == {}
    if call.name.startswith("tables."):
        is_same = world.after_a_step() == World(backend).after_a_step()
        assert is_same, "what was refused shows in the next step"


def public_callables() -> dict[str, Callable[..., object]]:
    """Functions, constructors and methods of the modules and names without an underscore."""
    found: dict[str, Callable[..., object]] = {}
    for info in iter_modules(device.__path__):
        module = import_module(f"{device.__name__}.{info.name}")
        for name, thing in vars(module).items() if info.name[0] != "_" else ():
            if name[0] == "_" or getattr(thing, "__module__", None) != module.__name__:
                continue
            if isfunction(thing):
                found[f"{info.name}.{name}"] = thing
            elif isclass(thing):
                found[f"{info.name}.{name}"] = thing.__init__
                found |= {
                    f"{info.name}.{name}.{method}": function
                    for method, function in vars(thing).items()
                    if isfunction(function) and method[0] != "_"
                }
    return {name: found[name] for name in found if parameters(found[name])}


def parameters(function: Callable[..., object]) -> set[str]:
    return set(signature(function).parameters) - {"self"}


NOT_CALLED: Mapping[str, str] = {
    **dict.fromkeys(
        (
            "hashing.BlockHashes",
            "layout.Part",
            "pools.Layer",
            "resident.ResidentRun",
            "segments.Segments",
            "swap.Transfer",
        ),
        "made by the library and handed out",
    ),
    "swap.copy_pages": "what swaps have in common; trusts its arguments",
    **dict.fromkeys(
        (
            "errors.DeviceMemoryError",
            "errors.MissingDependencyError",
            "errors.ResidentOrderError",
            "errors.RunDifferenceError",
        ),
        "raised by the library",
    ),
}
"""What takes arguments that no user gives."""


def missing(calls: Iterable[Call]) -> set[str]:
    """Callables and arguments of which the table has no bad one."""
    tried = {(call.name, bad.argument) for call in calls for bad in call.bad}
    return {
        f"{name}({argument})"
        for name, function in public_callables().items()
        if name not in NOT_CALLED
        for argument in parameters(function)
        if (name, argument) not in tried
    }


def test_every_argument_of_every_public_callable_is_in_the_table() -> None:
    assert missing(CALLS) == set()
    assert set(IDS) | NOT_CALLED.keys() == public_callables().keys()
    made = {f"pools.KVPools({name})" for name in parameters(KVPools.__init__)}
    assert missing(CALLS[1:]) == made
    assert "operations.PageOperations.write(slots)" in missing(())


CHECKS = tuple(
    name
    for module in (_arguments, _hashing_prompts, _tables_input)
    for name, thing in vars(module).items()
    if isfunction(thing) and thing.__module__ == module.__name__ and "check_" in name
)


@pytest.mark.parametrize("check", CHECKS)
def test_without_a_check_the_table_fails(check: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each check by turns does nothing: then something is done that must not be, or it crashes."""
    world = World("torch")
    names = [one.name for one in iter_modules(device.__path__) if "triton" not in one.name]
    for module in (import_module(f"{device.__name__}.{name}") for name in names):
        if isfunction(getattr(module, check, None)):
            monkeypatch.setattr(module, check, lambda field, value, *others, **options: value)
    found = (verdict(call, bad, world) for call in CALLS for bad in call.bad)
    assert any(problem is not None for problem in found)
