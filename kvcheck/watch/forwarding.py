"""A manager whose calls all pass through one function: that of a monitor or of a recording."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from kvcheck.play.calls import Delegating
from kvcheck.watch.calls import Call
from kvspec.audit import Wrapper, unwrapped
from kvspec.interface import Implementation, KVCacheManager
from kvspec.request import Request, RequestInput

Perform: TypeAlias = Callable[[Call, Callable[[], Any]], Any]
"""Makes a call: what it is, and how to make it."""


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
        make = getattr(self.inner, name)
        about = () if request is None else (request,)
        return self._perform(Call.of(name, request, given), lambda: make(*about, **given))


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
