"""What a contestant does in a timed part: the same work by single calls or by batched ones.

A scenario says which requests get what. A `Work` turns that into a part: `work`, which is timed,
and `read`, which makes comparable answers of what it returned and is not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Protocol

from kvcheck.tools.bench.calls import Calls


@dataclass(frozen=True)
class Part:
    """`read` takes what `work` returned; one answer per request, None for a refusal. No answers at
    all: there is nothing to compare.
    """

    work: Callable[[], Any]
    read: Callable[[Any], Sequence[Any]]


class Work(Protocol):
    """How requests are handled. A group of requests is whatever `group` returns.

    `calls` are single calls on the same manager, for what is never timed.
    """

    @property
    def calls(self) -> Calls: ...

    def make(self, given: Sequence[Any]) -> Part:
        """Requests of these inputs; `work` returns their group."""

    def group(self, references: Sequence[Any]) -> Any:
        """The group of some members of other groups."""

    def look_up(self, group: Any) -> Part:
        """Answers: (length in tokens, ids) of each hit."""

    def admit(self, group: Any, counts: Sequence[int]) -> Part:
        """Look up and allocate so many tokens after the hit; answers: (hit in tokens, all ids)."""

    def run(self, group: Any, counts: int | Sequence[int]) -> Part:
        """So many more tokens for requests that hold blocks; answers: the ids that came."""

    def append(self, group: Any, tokens: Sequence[int]) -> Part:
        """One token each; no answers: see `last_hashes`."""

    def last_hashes(self, group: Any) -> Sequence[Any]:
        """The last hash of each; nothing where there are no hashes. Not timed."""

    def free(self, group: Any) -> Part:
        """Give everything back; answer: how many blocks are free."""

    def computed(self, group: Any, counts: int | Sequence[int]) -> None:
        """The tokens that were granted are computed. Not timed."""


class SingleWork:
    """One call after another, in a loop."""

    def __init__(self, calls: Calls) -> None:
        self.calls = calls

    def make(self, given: Sequence[Any]) -> Part:
        """See `Work`."""
        make = self.calls.make_request
        return Part(lambda: [make(each) for each in given], self._hashes)

    def _hashes(self, group: Sequence[Any]) -> list[list[bytes]]:
        read = self.calls.read_hashes
        return [] if read is None else [read(request) for request in group]

    def group(self, references: Sequence[Any]) -> Any:
        """A list."""
        return list(references)

    def look_up(self, group: Any) -> Part:
        """See `Work`."""
        look_up, read = self.calls.look_up, self.calls.read_hit
        return Part(
            lambda: [look_up(request) for request in group],
            lambda found: [read(hit) for hit in found],
        )

    def allocate(self, request: Any, num_new_tokens: int, hit: Any) -> Part:
        """One request, with the hit of a look-up just before; answer: the new ids."""
        allocate, read = self.calls.allocate_with_hit, self.calls.read_blocks
        return Part(
            lambda: allocate(request, num_new_tokens, hit),
            lambda answer: [read(answer)],
        )

    def admit(self, group: Any, counts: Sequence[int]) -> Part:
        """See `Work`."""
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
        """See `Work`."""
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
        """See `Work`."""
        append = self.calls.append_tokens
        pairs = [(request, [token]) for request, token in zip(group, tokens, strict=True)]
        return Part(lambda: [append(request, token) for request, token in pairs], lambda _: ())

    def last_hashes(self, group: Any) -> Sequence[Any]:
        """See `Work`."""
        return [hashes[-1:] for hashes in self._hashes(group)]

    def free(self, group: Any) -> Part:
        """See `Work`."""
        free = self.calls.free
        return Part(
            lambda: [free(request) for request in group],
            lambda _: [self.calls.num_free_blocks()],
        )

    def computed(self, group: Any, counts: int | Sequence[int]) -> None:
        """What an engine does between two steps."""
        each = repeat(counts) if isinstance(counts, int) else counts
        for request, count in zip(group, each, strict=False):
            request.num_computed_tokens += count


def outline(answer: Any) -> Any:
    """Of an answer, what managers with names of their own have in common with others: lengths."""
    if isinstance(answer, list):
        return len(answer)
    if isinstance(answer, tuple):
        return tuple(map(outline, answer))
    return answer
