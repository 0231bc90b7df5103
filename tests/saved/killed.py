"""Kills a writer of states at many moments, and says what it left each time.

    python -m tests.saved.killed FOLDER ROUNDS [--in-place]

Prints JSON: how many kills found the file whole, broken, and a half-written one beside it. With
`--in-place` the writer is a broken one that writes to the file itself.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any, BinaryIO

import kvfast
import kvspec.saved
from kvspec.errors import SavedStateError
from kvspec.interface import KVCacheManager
from kvspec.request import RequestInput
from kvspec.saved import load, save
from tests.contract.builders import make_config


def managers() -> tuple[KVCacheManager, KVCacheManager]:
    fast, config = kvfast.implementation(), make_config(20_000, max_model_len_tokens=10**6)
    made = []
    for first in (0, 10**6):
        manager = fast.create(config, check_invariants=False)
        request = fast.make_request(manager, RequestInput("r", range(first, first + 60_000)))
        manager.allocate_slots(request, 60_000)
        made.append(manager)
    return made[0], made[1]


@contextmanager
def in_place(path: Path) -> Iterator[BinaryIO]:
    """Write as `replacing` would without a second file."""
    with path.open("wb") as file:
        yield file


def write_for_ever(path: Path, before: Callable[[], None]) -> None:
    """Write the two states in turn until the process is killed."""
    first, second = managers()
    before()
    while True:
        save(first, path)
        save(second, path)


def dying(name: str, *, after: bool) -> Callable[[], None]:
    """Let the child kill itself just before or after its third call of a function of `os`."""

    def plant() -> None:
        real, left = getattr(os, name), [3]

        def call(*args: Any, **kwargs: Any) -> Any:
            left[0] -= 1
            if left[0] == 0 and not after:
                os.kill(os.getpid(), signal.SIGKILL)
            answer = real(*args, **kwargs)
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return answer

        setattr(os, name, call)

    return plant


def state_after(path: Path, whole: list[Any]) -> str:
    try:
        loaded: Any = load(kvfast.implementation(), path, check_invariants=False)
    except SavedStateError as error:
        return error.reason
    return "whole" if loaded.columns() in whole else "another state"


def main(folder: Path, rounds: int, calls: tuple[str, ...]) -> Counter[str]:
    path, random = folder / "cache.state", Random(3)
    both: tuple[Any, Any] = managers()
    whole = [manager.columns() for manager in both]
    save(both[0], path)
    seen: Counter[str] = Counter()
    planted = [dying(name, after=after) for name in calls for after in (False, True)]
    for number in range(rounds + len(planted)):
        plant = planted[number] if number < len(planted) else (lambda: None)
        child = os.fork()
        if child == 0:
            try:
                write_for_ever(path, plant)
            finally:
                os._exit(1)
        if number >= len(planted):
            time.sleep(0.05 + random.random() * 0.2)
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):
            seen["ended by itself"] += 1
        partial = path.with_name(f".{path.name}.partial")
        seen["half beside it"] += partial.exists() and partial.stat().st_size > 0
        seen[state_after(path, whole)] += 1
    return seen


if __name__ == "__main__":
    calls: tuple[str, ...] = ("fsync", "replace")
    if "--in-place" in sys.argv:
        calls = ()  # it makes none of them
        vars(kvspec.saved)["replacing"] = in_place
    print(json.dumps(main(Path(sys.argv[1]), int(sys.argv[2]), calls)))
