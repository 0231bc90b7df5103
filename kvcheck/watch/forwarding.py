"""A manager whose calls all pass through one function: that of a monitor or of a recording."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from kvcheck.play.calls import Delegating
from kvspec.audit import Wrapper, unwrapped
from kvspec.interface import Implementation, KVCacheManager
from kvspec.request import Request, RequestInput

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

    def _made(self, name: str, request: Request | None, given: dict[str, Any]) -> Any:
        call = getattr(self.inner, name)
        if request is None:
            return self._perform(name, lambda: call(**given), given, None)
        return self._perform(name, lambda: call(request, **given), given, request)


class ForwardingImplementation:
    """Passes everything on to `inner`; a subclass wraps the managers that it makes."""

    def __init__(self, inner: Implementation) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        if name == "inner":  # missing while a copy is being built
            raise AttributeError(name)
        return getattr(self.inner, name)

    def make_request(self, manager: KVCacheManager, request: RequestInput) -> Request:
        return self.inner.make_request(unwrapped(manager), request)

    def append_tokens(
        self, manager: KVCacheManager, request: Request, token_ids: Sequence[int]
    ) -> None:
        self.inner.append_tokens(unwrapped(manager), request, token_ids)

    def clone(self, manager: KVCacheManager) -> KVCacheManager:
        return self.inner.clone(unwrapped(manager))
