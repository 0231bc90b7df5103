"""Finding implementations: by the name they are installed under, as `package.module:factory`, or as
a program that speaks the protocol of `spec/protocol.md`.

kvcheck imports no implementation. Each registers a factory without arguments in the entry-point
group `kvspec.implementations`.
"""

from __future__ import annotations

import importlib.metadata
import os
import sys
import traceback
from importlib.metadata import EntryPoint, entry_points

from kvcheck.installed import GROUP, installed_implementations
from kvcheck.offload.alone import OffloadAlone
from kvcheck.tree.blocks import BlockTrees
from kvspec.errors import UnknownImplementationError
from kvspec.fleet import FleetImplementation
from kvspec.interface import Implementation
from kvspec.offload import OffloadImplementation
from kvspec.tree import TreeImplementation

ORACLE = "kvref"
"""The implementation that others are judged beside."""


def find_implementation(name: str) -> Implementation:
    """Return the implementation of that name, made by its factory.

    `name` is an installed name such as `kvref`, or `package.module:factory`, whose module may also
    be in the current directory, which is then appended to `sys.path`. It may also be `cmd:PROGRAM
    ARGS…`, see `kvcheck.remote.client.connect`, or `mistake:ID`, an installed implementation with
    one mistake, see `kvcheck.mistakes`. Raises UnknownImplementationError, with the reason, if
    nothing is found or it does not load or is no implementation, and RemoteError if a program does
    not speak the protocol.
    """
    if name.startswith(("cmd:", "cmd+")):
        # Late: most uses start no program.
        from kvcheck.remote.client import connect

        return connect(name)
    if name.startswith("mistake:"):
        return _mistaken(name)
    return _checked(name, _made(name))


def _checked(name: str, made: object) -> Implementation:
    if not isinstance(made, Implementation):
        raise _unknown(name, f"the factory returned {type(made).__name__}, not an Implementation")
    return made


def find_served(name: str) -> Implementation:
    """Return the implementation of that name, or one that only makes offload managers."""
    made = _anything(name)
    if isinstance(made, OffloadImplementation) and not isinstance(made, Implementation):
        return OffloadAlone(made)
    return _checked(name, made)


def find_offload(name: str) -> OffloadImplementation:
    """Return what makes offload managers: an implementation that does, or an object that does.

    Names and errors as those of `find_implementation`.
    """
    made = _anything(name)
    lacks = [each for each in ("make_offload", "offload_capabilities") if not hasattr(made, each)]
    if not isinstance(made, OffloadImplementation):
        kind = type(made).__name__
        raise _unknown(name, f"{kind} makes no offload managers: no {' and '.join(lacks)}")
    return made


def find_tree(name: str) -> TreeImplementation:
    """Return what makes trees of prefixes: an object that does, or one over blocks for a manager.

    Names and errors as those of `find_implementation`.
    """
    made = _anything(name)
    if isinstance(made, TreeImplementation):
        return made
    if isinstance(made, Implementation):
        return BlockTrees(made)
    raise _unknown(name, f"{type(made).__name__} makes neither trees nor managers")


def find_index(name: str = ORACLE) -> FleetImplementation:
    """Return what makes indexes of engines; names and errors as those of `find_implementation`."""
    made = _anything(name)
    if not isinstance(made, FleetImplementation):
        raise _unknown(name, f"{type(made).__name__} makes no index: no make_prefix_index")
    return made


def _anything(name: str) -> object:
    """Return what is of that name, an implementation or not."""
    is_plain = not name.startswith(("cmd:", "cmd+", "mistake:"))
    return _made(name) if is_plain else find_implementation(name)


def _made(name: str) -> object:
    """Return what the factory of this name makes."""
    entry = _by_path(name) if ":" in name else _by_installed_name(name)
    try:
        return entry.load()()
    except (Exception, SystemExit) as error:  # whatever a stranger's module does
        raise _unknown(name, _reason(entry, error)) from error


def _mistaken(name: str) -> Implementation:
    # Late: hardly anybody asks for one.
    from kvcheck.mistakes import MistakeError, find

    try:
        made: Implementation = find(name.partition(":")[2]).make()
    except MistakeError as error:
        raise _unknown(name, str(error)) from None
    return made


def _by_installed_name(name: str) -> EntryPoint:
    # A distribution seen twice on sys.path registers twice, with equal values.
    found = {entry.value: entry for entry in entry_points(group=GROUP, name=name)}
    if len(found) > 1:
        raise _unknown(name, f"registered more than once: {', '.join(sorted(found))}")
    if not found:
        raise _unknown(name)
    return next(iter(found.values()))


def _by_path(name: str) -> EntryPoint:
    module, _, factory = name.partition(":")
    if not all(part.isidentifier() for part in (*module.split("."), *factory.split("."))):
        raise _unknown(name, "not of the form package.module:factory")
    # The command does not run with the current directory on its path, and modules may be imported
    # late, so it stays there. Last: it must not shadow what is installed.
    here = os.getcwd()
    if here not in sys.path:
        sys.path.append(here)
    return EntryPoint(name=name, value=name, group=GROUP)


def _reason(entry: EntryPoint, error: BaseException) -> str:
    absent = error.name if isinstance(error, ModuleNotFoundError) else None
    if absent and f"{entry.module}.".startswith(f"{absent}."):
        return f"no module {absent!r}, neither installed nor in the current directory"
    return f"{entry.value} does not load: {type(error).__name__}: {error}{_place(error)}"


def _place(error: BaseException) -> str:
    """Return where in the implementation's files an error occurred; empty if it occurred here."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    ours = frame.filename in (__file__, importlib.metadata.__file__)
    # A SyntaxError's own text names the place.
    return (
        ""
        if ours or isinstance(error, SyntaxError)
        else f" ({frame.filename}, line {frame.lineno})"
    )


def _unknown(name: str, reason: str = "") -> UnknownImplementationError:
    return UnknownImplementationError(name, installed_implementations(), reason)
