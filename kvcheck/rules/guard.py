"""Watch a manager that a check calls from outside: owners, content, slots, conservation.

It checks what the monitor of a live engine does (`kvcheck.watch`), without its records. At level
safety nothing else is judged.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from kvcheck.watch.calls import Call
from kvcheck.watch.forwarding import Forwarding
from kvcheck.watch.requests import Describe
from kvcheck.watch.watch import Watch
from kvspec.errors import InvariantViolation
from kvspec.interface import Feature, KVCacheManager
from kvspec.snapshot import Snapshot


class Guard(Forwarding):
    """`inner`, with all that can be seen checked after each call; raises InvariantViolation.

    `features`: of its implementation. `describe`: from a request to its input.
    """

    def __init__(
        self, inner: KVCacheManager, describe: Describe, features: Collection[Feature]
    ) -> None:
        super().__init__(inner, self._checked)
        self.shows_state = Feature.SNAPSHOT in features
        is_stable = Feature.STABLE_LISTS in features
        self.watch = Watch(inner, describe, self._state(), has_stable_lists=is_stable)

    def _state(self) -> Snapshot | None:
        return self.inner.snapshot() if self.shows_state else None

    def _checked(self, call: Call, make: Callable[[], Any]) -> Any:
        before = self._state()
        self.watch.before(call)
        call.make(make)
        if isinstance(call.error, InvariantViolation):
            raise call.error  # it found its own fault
        call.look(self.inner)
        after = self._state()
        if after is not None:
            self.watch.state(call, before, after)
        self.watch.after(call)
        if after is not None:
            self.watch.agreement(call.name, after)
        return call.told()
