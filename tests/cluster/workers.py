"""Workers that reply in any order and lose results, and the marks of tests on real nodes."""

from __future__ import annotations

import contextlib
import os
import pickle
import random
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import pytest

from kvcheck.tasks import Call, Cluster, LostError, Outcome


@dataclass
class Shuffling:
    """Workers that reply in any order, one or more at a time, and lose some results.

    Calls and results travel as between processes.
    """

    window: int = 7
    losing: float = 0.0
    made: int = 0
    results: dict[int, bytes] = field(default_factory=dict)
    random: random.Random = field(default_factory=lambda: random.Random(1))

    def submit(self, call: Call) -> int:
        self.made += 1
        self.results[self.made] = pickle.dumps(Outcome.of(pickle.loads(pickle.dumps(call))))
        return self.made

    def any_done(self, handles: Any) -> list[int]:
        return self.random.sample(list(handles), self.random.randint(1, len(handles)))

    def answer(self, handle: int) -> Outcome:
        result = self.results.pop(handle)
        if self.random.random() < self.losing:
            raise LostError(with_its_node=True)
        outcome: Outcome = pickle.loads(result)
        return outcome


class Counting(Cluster):
    """A Ray cluster. `lost`: whether each result was lost with its node."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.lost: list[bool] = []

    def __enter__(self) -> Self:
        return self

    def answer(self, handle: Any) -> Outcome:
        try:
            return super().answer(handle)
        except LostError as error:
            self.lost.append(error.with_its_node)
            raise


def kill_one_at_work(nodes: Any, working: Sequence[Any]) -> None:
    """Kill a node during a call, and its worker process, which would live on for seconds."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for node in working:
            busy = [number for number in _processes(node) if _title(number) == "ray::made"]
            if busy:
                nodes.remove_node(node, allow_graceful=False)
                for number in busy:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(number, signal.SIGKILL)
                return
    raise AssertionError("no node makes a call")


def _processes(node: Any) -> list[int]:
    (raylet,) = (each.process.pid for each in node.all_processes["raylet"])
    found = Path(f"/proc/{raylet}/task/{raylet}/children").read_text("ascii")
    return [int(number) for number in found.split()]


def _title(number: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{number}/cmdline").read_bytes().split(b"\0")[0].decode().strip()
    return ""


def on_nodes(test: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a test that needs a Ray cluster of several nodes: with --deep, if Ray is there."""
    quiet = pytest.mark.filterwarnings("ignore")  # Ray's own: unclosed files, deprecated calls
    marked: Callable[..., Any] = pytest.mark.cluster(pytest.mark.deep(quiet(test)))
    return marked
