"""Copies of a manager by pickle, several times faster than restoring it.

What cannot change is left in place, and shared by all copies: classes, and frozen dataclasses such
as the configuration. Of the reference's manager that is more than half.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from io import BytesIO
from typing import Any

from kvspec.interface import KVCacheManager


class _Pickler(pickle.Pickler):
    """`shared`: what is left in place."""

    def __init__(self, file: BytesIO) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.shared: list[Any] = []

    def persistent_id(self, value: Any) -> int | None:
        """Where a shared value stands among them, None for what is copied."""
        if not isinstance(value, type) and not _is_frozen(value):
            return None
        self.shared.append(value)
        return len(self.shared) - 1


class _Unpickler(pickle.Unpickler):
    def __init__(self, packed: bytes, shared: list[Any]) -> None:
        super().__init__(BytesIO(packed))
        self.shared = shared

    def persistent_load(self, place: int) -> Any:
        """What stands there."""
        return self.shared[place]


def copies(manager: KVCacheManager) -> Callable[[], KVCacheManager] | None:
    """A function that answers a new manager in this state; None if pickle cannot copy this one."""
    file = BytesIO()
    pickler = _Pickler(file)
    try:
        pickler.dump(manager)
    except (pickle.PicklingError, TypeError, AttributeError):  # as pickle says that it cannot
        return None
    packed, shared = file.getvalue(), pickler.shared

    def copy() -> KVCacheManager:
        made: KVCacheManager = _Unpickler(packed, shared).load()
        return made

    return copy


def _is_frozen(value: Any) -> bool:
    parameters = getattr(value, "__dataclass_params__", None)
    return parameters is not None and bool(parameters.frozen)
