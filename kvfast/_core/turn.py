"""One call at a time (KV-ERR-7), and none after a change that broke off (KV-ERR-8)."""

from __future__ import annotations

import sys
from typing import NoReturn

from kvspec.errors import BusyError, SpoiltError

OUT_OF_MEMORY = "MemoryError"
"""The cause, where there is not even the memory to look what it is."""
IDLE, ASKING, CHANGING, SPOILT = 0, 1, 2, 3


class Turn:
    """Taken by every call of a manager and of objects above it, and returned at its end.

    A call changes nothing before `changes`. An exception between that and `changed` leaves the
    state half changed, which cannot be repaired: from then on every call is refused.

    No other thread can run between the test and the store of `take`.
    """

    def __init__(self) -> None:
        self.state = IDLE
        self.cause = ""

    def take(self) -> None:
        """Begin a call. BusyError in another one, nested or of another thread."""
        if self.state != IDLE:
            self.refuse()
        self.state = ASKING

    def refuse(self) -> NoReturn:
        """Raise the error that says why the turn is not available."""
        if self.state == SPOILT:
            raise SpoiltError(self.cause)
        raise BusyError("manager", None)

    def changes(self) -> None:
        """Mark the first change of the call: all its arguments have been checked."""
        self.state = CHANGING

    def changed(self) -> None:
        """Mark the change as complete."""
        self.state = ASKING

    def is_spoilt(self) -> bool:
        """Return whether all further calls are refused."""
        return self.state == SPOILT

    def give_back(self) -> None:
        """End the call, whether it returns or raises."""
        if self.state == CHANGING:
            self.spoil()
        else:
            self.state = IDLE

    def spoil(self) -> None:
        """Let this be the last call."""
        self.state = SPOILT
        self.cause = OUT_OF_MEMORY
        error = sys.exc_info()[1]
        self.cause = type(error).__name__
