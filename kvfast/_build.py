"""Choose the build of the core: the compiled one if there is one, else plain Python."""

import functools
import importlib
import warnings
from collections.abc import Callable
from types import ModuleType

HOW_TO_COMPILE = "put a C compiler on the PATH and install kvspec again from its source"

_PROBES = ("batch", "chain", "many", "vllm_taking")  # with all that they load: every module


def is_compiled() -> bool:
    """Return whether the compiled build can be loaded on this machine."""
    return why_not_compiled() is None


def why_not_compiled() -> str | None:
    """Return None if the compiled build loads, else the reason in one line."""
    try:
        for name in _PROBES:
            importlib.import_module(f"kvfast._compiled.{name}")
    except ModuleNotFoundError:
        return "no compiled build was installed"
    except ImportError as error:
        # There, but made for another Python or machine.
        return f"the compiled build does not load: {error}"
    return None


def load(name: str) -> ModuleType:
    """Load a module of the core by name, such as `pool`; compiled where possible.

    Warns (RuntimeWarning, once per process) when it falls back to plain Python.
    """
    reason = why_not_compiled()
    if reason is None:
        return importlib.import_module(f"kvfast._compiled.{name}")
    _warn_once(reason)
    return importlib.import_module(f"kvfast._core.{name}")


def loader_of(build: str) -> Callable[[str], ModuleType]:
    """Return the loader of one build: "compiled" (ImportError if there is none) or plain Python."""
    package = "kvfast._compiled" if build == "compiled" else "kvfast._core"
    return lambda name: importlib.import_module(f"{package}.{name}")


@functools.cache  # a second call with the same reason does nothing
def _warn_once(reason: str) -> None:
    warnings.warn(
        f"kvfast runs uncompiled and is slow: {reason}; {HOW_TO_COMPILE}",
        RuntimeWarning,
        stacklevel=3,
    )
