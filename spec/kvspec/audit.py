"""A manager that audits itself: it checks the invariants after every call.

`audited(manager)` wraps any `KVCacheManager`. After each call, even one that raised, it takes a
snapshot and checks the snapshot invariants, and the transition invariants against the snapshot
before. This costs O(pool) per call. Between calls the inner manager must not be changed by others,
nor a snapshot once it is taken. A state equal to the last one that passed is not checked again.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from kvspec.errors import BusyError, InvariantViolation, KVSpecError, SpoiltError
from kvspec.interface import KVCacheManager
from kvspec.invariants import check_snapshot
from kvspec.snapshot import Snapshot
from kvspec.transitions import Transition, check_transition

if TYPE_CHECKING:
    from kvspec.batched import BatchedManager

_REFUSAL_CALLS = frozenset({"allocate_slots", "reset_prefix_cache"})
_PROPERTIES = frozenset({"config", "none_hash", "num_free_blocks", "usage"})


def audited(manager: KVCacheManager) -> KVCacheManager:
    """Return `manager` wrapped so that invariants are checked now and after every call.

    Raises InvariantViolation as soon as one does not hold.
    """
    return cast(KVCacheManager, AuditedManager(manager))


class Wrapper:
    """A manager around another one, `inner`; its calls are passed to the inner one."""

    inner: KVCacheManager


def unwrapped(manager: KVCacheManager) -> KVCacheManager:
    """Return the manager inside audits and monitors."""
    while isinstance(manager, Wrapper):
        manager = manager.inner
    return manager


def audited_batch(batch: BatchedManager, manager: AuditedManager) -> BatchedManager:
    """Return `batch`, which works on the manager inside `manager`, with its state checked per call.

    Raises InvariantViolation as soon as an invariant does not hold. A batched call is many single
    calls, so transitions between the states before and after one call are not checked.
    """
    return cast("BatchedManager", _AuditedBatch(batch, manager))


class _AuditedBatch:
    """Forwards everything and has the state checked after each call."""

    def __init__(self, batch: BatchedManager, manager: AuditedManager) -> None:
        self._batch = batch
        self._manager = manager

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._batch, name)
        if not callable(value) or name == "manager":
            return value

        def audited_call(*args: Any, **kwargs: Any) -> Any:
            try:
                result = value(*args, **kwargs)
            except BaseException:
                with suppress(BusyError, SpoiltError):  # then there is no state to check
                    self._manager.audit_state()
                raise
            self._manager.audit_state()
            return result

        return audited_call


def late(call: str, error: KVSpecError) -> InvariantViolation:
    """Return the violation for an error raised after a call's first change (KV-ERR-2)."""
    detail = f"{call} raised {type(error).__name__} after its first change: {error}"
    return InvariantViolation("errors_change_nothing", "KV-ERR-2", detail)


def _shares(state: Snapshot, other: Snapshot) -> bool:
    """Return whether two states share a list or dict: it may have changed, and they seem equal."""
    return state is other or any(
        value is getattr(other, name) and not isinstance(value, (int, bytes, tuple))
        for name, value in vars(state).items()
    )


class AuditedManager(Wrapper):
    """Forwards everything to `inner` and audits the state after each call."""

    def __init__(self, inner: KVCacheManager) -> None:
        self.inner = inner
        self._sound: Snapshot | None = None
        self.audit_state()

    def __getattr__(self, name: str) -> Any:
        if name == "inner":  # while a copy is being built there is none yet
            raise AttributeError(name)
        value = getattr(self.inner, name)
        if name in _PROPERTIES or not callable(value):
            return value
        return self._audited(name, value)

    def _audited(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def audited_call(*args: Any, **kwargs: Any) -> Any:
            try:
                result = call(*args, **kwargs)
            except (BusyError, SpoiltError, InvariantViolation):
                raise  # there is no state to check, or the manager found the violation itself
            except BaseException as error:
                try:
                    self._audit(name, "error")
                except SpoiltError:
                    if isinstance(error, KVSpecError):  # a typed error raised too late
                        raise late(name, error) from error
                raise
            refused = name in _REFUSAL_CALLS and (result is None or result is False)
            self._audit(name, "refused" if refused else "done")
            return result

        return audited_call

    def audit_state(self) -> None:
        """Check the state as it is now, which the next call begins with."""
        self._before = self.inner.snapshot()
        self._check(self._before)

    def _check(self, state: Snapshot) -> None:
        """Check the state unless it equals the last that passed: most calls change nothing."""
        if self._sound is None or _shares(state, self._sound) or state != self._sound:
            check_snapshot(self.inner.config, state)
            self._sound = state

    def _audit(self, name: str, outcome: str) -> None:
        before, after = self._before, self.inner.snapshot()
        self._before = after
        self._check(after)
        check_transition(self.inner.config, Transition(name, outcome, before, after))
