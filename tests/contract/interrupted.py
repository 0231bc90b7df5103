"""Interrupt calls of a manager by signals; exit with an error if one stays busy (KV-ERR-7).

python -m tests.contract.interrupted kvref
"""

from __future__ import annotations

import signal
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from random import Random

from kvcheck.discovery import find_implementation
from kvspec.errors import BusyError, KVSpecError
from kvspec.request import RequestInput
from tests.contract.builders import make_config

NUM_CALLS = 20_000
LEAST_INTERRUPTED = 500


class Interrupt(BaseException):
    """Raised by the handler; no code catches it by its type."""


class Alarm:
    def __init__(self, random: Random) -> None:
        self.random = random
        self.is_set = False
        signal.signal(signal.SIGALRM, self.raise_once)

    def raise_once(self, *_: object) -> None:
        if self.is_set:
            self.is_set = False
            raise Interrupt

    def during(self, call: Callable[[], object]) -> bool:
        try:
            try:
                self.is_set = True
                signal.setitimer(signal.ITIMER_REAL, self.random.choice((2e-5, 5e-5, 1e-4)))
                call()
                return False
            finally:
                self.is_set = False
                signal.setitimer(signal.ITIMER_REAL, 0)
        except Interrupt:
            self.is_set = False
            return True


def main(name: str) -> None:
    """Interrupt calls of managers, which are replaced once they are spoilt."""
    subject, random, seen = find_implementation(name), Random(1), Counter[str]()
    config = make_config(200, max_model_len_tokens=256)
    alarm = Alarm(random)
    sys.unraisablehook = lambda _: None  # an interrupt where Python cannot raise is dropped
    while seen["calls"] < NUM_CALLS:
        manager = subject.create(config, check_invariants=False)
        request = subject.make_request(manager, RequestInput("r", list(range(60))))
        calls: list[Callable[[], object]] = [
            partial(manager.get_computed_blocks, request),
            partial(manager.free, request),
            partial(manager.evict_blocks, range(1, 50)),
            partial(manager.hold_blocks, [1, 2, 3]),
            partial(subject.append_tokens, manager, request, [1]),
            partial(subject.clone, manager),
        ]
        for call in random.choices(calls, k=30):
            seen["calls"] += 1
            seen["interrupted"] += alarm.during(call)
            try:
                manager.get_computed_blocks(request)
            except BusyError:
                raise SystemExit(f"a call stayed under way after {dict(seen)}") from None
            except KVSpecError:
                break  # spoilt: every call says so
    if seen["interrupted"] < LEAST_INTERRUPTED:
        raise SystemExit(f"too few interrupts: {dict(seen)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
