"""One call at a time (KV-ERR-7), and none after a change that broke off (KV-ERR-8)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Concatenate, ParamSpec, Protocol, TypeVar, cast

from kvspec.errors import BusyError, SpoiltError

P = ParamSpec("P")
T = TypeVar("T")


class Used(Protocol):
    """A request that is used by one call at a time."""

    is_busy: bool

    @property
    def request_id(self) -> str:
        """Id of the request."""


class Turn:
    """The call that is using a manager, and its request, if any.

    For managers in Python; no other thread can run between its test and its store.

    `is_changing`: the call has checked everything and begun to change the state. An exception from
    then on cannot be undone; its type is the `cause` with which every later call is refused.
    """

    def __init__(self) -> None:
        self.is_taken = False
        self.is_changing = False
        self.used: Used | None = None
        self.cause: str | None = None

    def check_sound(self) -> None:
        """Raise SpoiltError after a change that broke off."""
        if self.cause is not None:
            raise SpoiltError(self.cause)

    def uses(self, request: Used) -> None:
        """Claim this request for the current call; BusyError if another call uses it."""
        if request.is_busy:
            raise BusyError("request", request.request_id)
        if self.is_taken:
            request.is_busy = True
            self.used = request

    def changes(self) -> None:
        """Mark the start of the call's changes."""
        self.is_changing = self.is_taken

    def check_free(self) -> None:
        """Raise SpoiltError after a change that broke off, BusyError during another call."""
        self.check_sound()
        if self.is_taken:
            raise BusyError("manager", None)

    def run(self, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Make a call in this turn; return its result.

        An interrupt (KeyboardInterrupt of a signal) is raised where Python calls a function at the
        earliest: nothing is called between the store and `try`, nor in `except` and `finally`.
        """
        self.check_free()
        self.is_taken = True
        try:
            return call(*args, **kwargs)
        except BaseException as error:
            if self.is_changing:
                self.cause = "MemoryError"  # if there is not even memory for a name
                self.cause = error.__class__.__name__
            raise
        finally:
            if self.used is not None:
                self.used.is_busy = False
            self.used = None
            self.is_taken = self.is_changing = False


class HasTurn(Protocol):
    """An object whose calls take turns."""

    @property
    def turn(self) -> Turn:
        """Turn shared by its calls."""


S = TypeVar("S", bound=HasTurn)


def in_turn(call: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
    """Wrap a call so that it is refused while another one is under way."""

    @functools.wraps(call)
    def one_at_a_time(self: S, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.turn.run(call, self, *args, **kwargs)

    return cast("Callable[Concatenate[S, P], T]", one_at_a_time)
