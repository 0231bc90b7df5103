"""Workers that answer in any order and lose answers, and the marks of tests on real nodes."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from kvcheck.tasks import Call, LostError


@dataclass
class Shuffling:
    """Workers that answer in any order, one or more at a time, and lose some answers.

    Calls and answers travel as between processes.
    """

    window: int = 7
    losing: float = 0.0
    made: int = 0
    results: dict[int, bytes] = field(default_factory=dict)
    random: random.Random = field(default_factory=lambda: random.Random(1))

    def submit(self, call: Call) -> int:
        """See `Workers`."""
        self.made += 1
        function, arguments = pickle.loads(pickle.dumps(call))
        self.results[self.made] = pickle.dumps(function(*arguments))
        return self.made

    def any_done(self, handles: Any) -> list[int]:
        """See `Workers`."""
        return self.random.sample(list(handles), self.random.randint(1, len(handles)))

    def answer(self, handle: int) -> Any:
        """See `Workers`."""
        result = self.results.pop(handle)
        if self.random.random() < self.losing:
            raise LostError(with_its_node=True)
        return pickle.loads(result)


def on_nodes(test: Callable[..., Any]) -> Callable[..., Any]:
    """A test with a Ray cluster of several nodes: with --deep, where Ray is installed."""
    quiet = pytest.mark.filterwarnings("ignore")  # Ray's own: unclosed files, deprecated calls
    marked: Callable[..., Any] = pytest.mark.cluster(pytest.mark.deep(quiet(test)))
    return marked
