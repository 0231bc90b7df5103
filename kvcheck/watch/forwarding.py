"""A manager whose calls all pass through one function: that of a monitor or of a recording."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from kvcheck.play.calls import Delegating
from kvspec.audit import Wrapper
from kvspec.config import ManagerConfig
from kvspec.interface import KVCacheManager
from kvspec.request import Request
from kvspec.snapshot import Snapshot

Perform: TypeAlias = Callable[[str, Callable[[], Any], Mapping[str, Any], "Request | None"], Any]
"""Makes a call: its name, how to make it, its arguments by name with defaults, its request."""


class Forwarding(Delegating, Wrapper):
    """A `KVCacheManager` that passes each call for `inner` to `perform`, which makes it.

    Other members are those of `inner`. A copy is a copy of `inner`.
    """

    def __init__(self, inner: KVCacheManager, perform: Perform) -> None:
        self.inner = inner
        self._perform = perform

    def __getattr__(self, name: str) -> Any:
        if name in ("inner", "_perform"):  # missing while a copy is being built
            raise AttributeError(name)
        return getattr(self.inner, name)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return copy.deepcopy(self.inner, memo)

    @property
    def config(self) -> ManagerConfig:
        return self.inner.config

    @property
    def none_hash(self) -> bytes:
        """Parent of every request's first block hash (KV-HASH-3)."""
        return self.inner.none_hash

    @property
    def num_free_blocks(self) -> int:
        return self.inner.num_free_blocks

    @property
    def usage(self) -> float:
        return self.inner.usage

    def snapshot(self) -> Snapshot:
        return self.inner.snapshot()

    def _made(self, name: str, request: Request | None, given: dict[str, Any]) -> Any:
        call = getattr(self.inner, name)
        if request is None:
            return self._perform(name, lambda: call(**given), given, None)
        return self._perform(name, lambda: call(request, **given), given, request)
