"""Watch a manager that a check calls from outside: owners, content, slots, conservation.

It checks what the monitor of a live engine does (`kvcheck.watch`), without its records. At level
safety nothing else is judged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kvcheck.watch.calls import Call
from kvcheck.watch.forwarding import Forwarding
from kvcheck.watch.requests import Describe
from kvcheck.watch.watch import Watch
from kvspec.errors import InvariantViolation
from kvspec.interface import KVCacheManager
from kvspec.request import Request
from kvspec.snapshot import Snapshot


class Guard(Forwarding):
    """`inner`, with all that can be seen checked after each call; raises InvariantViolation.

    `shows_state`: whether it has snapshots. `describe`: from a request to its input.
    """

    def __init__(self, inner: KVCacheManager, describe: Describe, *, shows_state: bool) -> None:
        super().__init__(inner, self._checked)
        self.shows_state = shows_state
        self.watch = Watch(inner, describe, self._state())

    def _state(self) -> Snapshot | None:
        return self.inner.snapshot() if self.shows_state else None

    def _checked(
        self,
        name: str,
        make: Callable[[], Any],
        arguments: Mapping[str, Any],
        request: Request | None,
    ) -> Any:
        call, before = Call.of(name, request, arguments), self._state()
        self.watch.before(call)
        try:
            call.result = make()
        except InvariantViolation:
            raise  # it found its own fault
        except Exception as error:  # of any kind: it must have changed nothing
            call.error = error
        call.num_free_blocks, call.usage = self.inner.num_free_blocks, self.inner.usage
        after = self._state()
        if after is not None:
            self.watch.state(call, before, after)
        self.watch.after(call)
        if after is not None:
            self.watch.agreement(name, after)
        if call.error is not None:
            raise call.error
        return call.result
