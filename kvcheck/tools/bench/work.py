"""The timed work of a contestant: the same by single calls or by batched ones.

A scenario says which requests get what. A `Work` turns that into a part: `work`, which is timed,
and `read`, which is not and converts its result into comparable form.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any

from kvcheck.tools.bench.calls import Calls


@dataclass(frozen=True)
class Part:
    """`read` converts the result of `work`; one result per request, None for a refusal. Without
    results there is nothing to compare.
    """

    work: Callable[[], Any]
    read: Callable[[Any], Sequence[Any]]


class Work:
    """Single calls in a loop. A group of requests is whatever `group` returns.

    `calls` are also for what is never timed.
    """

    def __init__(self, calls: Calls) -> None:
        self.calls = calls

    def make(self, given: Sequence[Any]) -> Part:
        """Make requests of these inputs; `work` returns their group."""
        make = self.calls.make_request
        return Part(lambda: [make(each) for each in given], self._hashes)

    def _hashes(self, group: Sequence[Any]) -> list[list[bytes]]:
        read = self.calls.read_hashes
        return [] if read is None else [read(request) for request in group]

    def group(self, references: Sequence[Any]) -> Any:
        """Return the group of these members of other groups."""
        return list(references)

    def look_up(self, group: Any) -> Part:
        """Look up; results: (length in tokens, ids) of each hit."""
        look_up, read = self.calls.look_up, self.calls.read_hit
        return Part(
            lambda: [look_up(request) for request in group],
            lambda found: [read(hit) for hit in found],
        )

    def allocate(self, request: Any, num_new_tokens: int, hit: Any) -> Part:
        """Allocate for one request, with the hit of a look-up just before; result: the new ids."""
        allocate, read = self.calls.allocate_with_hit, self.calls.read_blocks
        return Part(
            lambda: allocate(request, num_new_tokens, hit),
            lambda answer: [read(answer)],
        )

    def admit(self, group: Any, counts: Sequence[int]) -> Part:
        """Look up and allocate `counts` tokens after the hit; results: (hit in tokens, all ids)."""
        look_up, allocate = self.calls.look_up, self.calls.allocate_with_hit

        def work() -> list[tuple[Any, Any]]:
            answers = []
            for request, count in zip(group, counts, strict=True):
                hit = look_up(request)
                answers.append((hit, allocate(request, count, hit)))
            return answers

        return Part(work, lambda answers: [self._admission(*answer) for answer in answers])

    def _admission(self, hit: Any, answer: Any) -> tuple[int, list[int]] | None:
        new = self.calls.read_blocks(answer)
        if new is None:
            return None
        length, cached = self.calls.read_hit(hit)
        return length, [*cached, *new]

    def run(self, group: Any, counts: int | Sequence[int]) -> Part:
        """Allocate `counts` more tokens for requests that hold blocks; results: the new ids."""
        allocate, read = self.calls.allocate, self.calls.read_blocks
        if isinstance(counts, int):
            count: int = counts
            return Part(
                lambda: [allocate(request, count) for request in group],
                lambda answers: [read(answer) for answer in answers],
            )
        pairs = list(zip(group, counts, strict=True))
        return Part(
            lambda: [allocate(request, count) for request, count in pairs],
            lambda answers: [read(answer) for answer in answers],
        )

    def append(self, group: Any, tokens: Sequence[int]) -> Part:
        """Append one token each; no results: see `last_hashes`."""
        append = self.calls.append_tokens
        pairs = [(request, [token]) for request, token in zip(group, tokens, strict=True)]
        return Part(lambda: [append(request, token) for request, token in pairs], lambda _: ())

    def last_hashes(self, group: Any) -> Sequence[Any]:
        """Return the last hash of each; nothing without hashes. Not timed."""
        return [hashes[-1:] for hashes in self._hashes(group)]

    def free(self, group: Any) -> Part:
        """Release everything; result: the number of free blocks."""
        free = self.calls.free
        return Part(
            lambda: [free(request) for request in group],
            lambda _: [self.calls.num_free_blocks()],
        )

    def computed(self, group: Any, counts: int | Sequence[int]) -> None:
        """Count the granted tokens as computed, as an engine does between two steps. Not timed."""
        each = repeat(counts) if isinstance(counts, int) else counts
        for request, count in zip(group, each, strict=False):
            request.num_computed_tokens += count


def outline(answer: Any) -> Any:
    """Reduce a result to lengths, which managers with other block names can compare."""
    if isinstance(answer, list):
        return len(answer)
    if isinstance(answer, tuple):
        return tuple(map(outline, answer))
    return answer
