"""A mutant put in place of the real function, in this process and for good.

The code of the function object itself is exchanged, so every module that has imported the function
runs the mutant, at full speed and with nothing imported again.
"""

from __future__ import annotations

import importlib
import types
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from tests.mutation.targets import ROOT, module_name

PLAIN = (bool, int, float, str, bytes, type(None))
"""The types of defaults that mutmut changes."""


class NotSwappedError(Exception):
    """Nothing changed: a mutant like that says nothing about the tests."""


def put_in_place(path: str, function: str, source: str) -> None:
    """Let `function` of the imported module run what it is in `source`.

    Raises NotSwappedError if the module is not the one of this file, or nothing differs.
    """
    file = ROOT / path
    module = importlib.import_module(module_name(file))
    if Path(module.__file__ or "").resolve() != file.resolve():
        raise NotSwappedError(f"{module.__name__} was imported from {module.__file__}, not {file}")
    real = _function(vars(module), function)
    new = _code_of(compile(source, str(file), "exec"), function)
    if new.co_freevars != real.__code__.co_freevars:
        if new.co_freevars:
            raise NotSwappedError(f"{function} of {path} has other free variables")
        new = new.replace(co_freevars=real.__code__.co_freevars)  # `super()` is gone
    if new != real.__code__:
        real.__code__ = new
        return
    if not _take_over_defaults(real, source, module, function):
        raise NotSwappedError(f"{function} of {path} is the same with the change")


def _function(names: Any, qualified: str) -> types.FunctionType:
    """The function of this name, whatever is wrapped around it."""
    found: Any = None
    for part in qualified.split("."):
        found = names[part]
        names = vars(found) if isinstance(found, type) else {}
    if isinstance(found, property):
        found = found.fget
    elif isinstance(found, cached_property):
        found = found.func
    elif isinstance(found, classmethod | staticmethod):
        found = found.__func__
    found = getattr(found, "__wrapped__", found)
    if not isinstance(found, types.FunctionType):
        raise NotSwappedError(f"{qualified} is no function")
    return found


def _code_of(code: types.CodeType, qualified: str) -> types.CodeType:
    """The code object of this qualified name."""
    found = [inner for inner in _codes(code) if inner.co_qualname == qualified]
    if not found:
        raise NotSwappedError(f"no {qualified}")
    return found[-1]


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield constant
            yield from _codes(constant)


def _take_over_defaults(
    real: types.FunctionType, source: str, module: types.ModuleType, qualified: str
) -> bool:
    """Plain defaults as they are in `source`; whether any differs."""
    scratch = dict(vars(module))
    exec(compile(source, str(module.__file__), "exec"), scratch)
    new = _function(scratch, qualified)
    before = (real.__defaults__, dict(real.__kwdefaults__ or {}))
    if real.__defaults__ and new.__defaults__:
        pairs = zip(real.__defaults__, new.__defaults__, strict=True)
        real.__defaults__ = tuple(b if isinstance(b, PLAIN) else a for a, b in pairs)
    if real.__kwdefaults__ and new.__kwdefaults__:
        plain = {n: value for n, value in new.__kwdefaults__.items() if isinstance(value, PLAIN)}
        real.__kwdefaults__ = {**real.__kwdefaults__, **plain}
    return (real.__defaults__, dict(real.__kwdefaults__ or {})) != before
