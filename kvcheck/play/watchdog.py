"""Interrupt implementations that hang: a program that runs too long is a finding.

An implementation in a child process has a time limit for each call (`cmd+timeout=S:`). One in this
process is interrupted by a timer of the system, if there is one and this is the main thread.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from kvcheck.play.elsewhere import is_elsewhere
from kvspec.interface import Implementation

PROGRAM_SECONDS = 30.0
"""Seconds for one program or example, which take milliseconds."""

PATIENCE_SECONDS = 60.0
"""Seconds for all slow failures: a subject that hangs once hangs in most programs."""


class Hang(BaseException):
    """No result in time. No Exception: a subject's `except Exception` must not swallow it."""


class OutOfPatienceError(Exception):
    """Too many programs failed too slowly to run the rest."""


@contextmanager
def time_limit(subject: Implementation) -> Iterator[None]:
    """Raise Hang in the body after PROGRAM_SECONDS, where that can be done."""
    if not _can_be_interrupted() or is_elsewhere(subject):
        yield
        return
    seconds = PROGRAM_SECONDS

    def stop(number: int, frame: FrameType | None) -> None:
        raise Hang(f"no answer within {seconds:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _can_be_interrupted() -> bool:
    """Check that signals reach this thread and its timer is unused."""
    return (
        hasattr(signal, "setitimer")
        and threading.current_thread() is threading.main_thread()
        and signal.getitimer(signal.ITIMER_REAL)[0] == 0
    )
