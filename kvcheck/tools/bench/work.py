"""The timed work of a contestant: the same by single calls or by batched ones.

A scenario says which requests get what. A `Work` turns that into a part: `work`, which is timed,
and `read`, which is not and converts its result into comparable form.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any

from kvcheck.tools.bench.calls import Calls
from kvspec.batched import BatchedManager, StepOutput, StepResult


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


INCLUDES = (
    "batched calls over arrays of handles; `hash` registers the request, `free` unregisters it,"
    " and steps write their blocks to a buffer"
)


class Rows:
    """A buffer of block deltas for a step; read outside the timed part."""

    def __init__(self, num_rows: int) -> None:
        self._numbers = array("i", bytes(16 * num_rows))
        view = memoryview(self._numbers).cast("B").cast("i", (num_rows, 4))
        self.output = StepOutput(block_deltas=view)

    def read(self, num_rows: int) -> dict[int, list[int]]:
        """Return the blocks that each handle got, in order, from the first rows of the buffer."""
        found: dict[int, list[int]] = {}
        numbers = self._numbers
        for at in range(0, 4 * num_rows, 4):
            found.setdefault(numbers[at], []).append(numbers[at + 3])
        return found


class BatchedWork(Work):
    """A group is an array of handles.

    `calls`: single calls on the manager that `batched` works on. `rows`: room for what a step
    brings.
    """

    def __init__(self, batched: BatchedManager, calls: Calls, rows: Rows) -> None:
        super().__init__(calls)
        self.batched = batched
        self.rows = rows

    def make(self, given: Sequence[Any]) -> Part:
        make, register = self.calls.make_request, self.batched.register
        return Part(
            lambda: array("q", [register(make(each)) for each in given]),
            lambda made: [self._hashes_of(handle) for handle in made],
        )

    def _hashes_of(self, handle: int) -> list[bytes]:
        read = self.calls.read_hashes
        return [] if read is None else read(self.batched.request_of(handle))

    def group(self, references: Sequence[Any]) -> Any:
        return array("q", references)

    def look_up(self, group: Any) -> Part:
        """Look up at once. Ids are read by single look-ups, which must find the same."""
        look_up, calls = self.batched.lookup, self.calls

        def read(lengths: Sequence[int]) -> list[tuple[int, list[int]]]:
            requests = map(self.batched.request_of, group)
            hits = [calls.read_hit(calls.look_up(request)) for request in requests]
            return [(length, ids) for length, (_, ids) in zip(lengths, hits, strict=True)]

        return Part(lambda: look_up(group), read)

    def admit(self, group: Any, counts: Sequence[int]) -> Part:
        admit, output, given = self.batched.admit, self.rows.output, array("q", counts)

        def read(result: Any) -> list[tuple[int, list[int]] | None]:
            came = zip(self.came(group, result), result.hit_tokens, strict=True)
            return [None if ids is None else (hit, ids) for ids, hit in came]

        return Part(lambda: admit(group, given, output=output), read)

    def run(self, group: Any, counts: int | Sequence[int]) -> Part:
        decode, output = self.batched.decode, self.rows.output
        given = counts if isinstance(counts, int) else array("q", counts)
        return Part(
            lambda: decode(group, given, output=output), lambda result: self.came(group, result)
        )

    def came(self, group: Any, result: StepResult) -> list[list[int] | None]:
        """Return the block ids that a step gave each scheduled request; None if it was refused."""
        ids, nothing = self.rows.read(result.num_deltas), list[int]()
        granted = zip(group, result.num_scheduled_tokens, strict=True)
        return [ids.get(handle, nothing) if new else None for handle, new in granted]

    def append(self, group: Any, tokens: Sequence[int]) -> Part:
        append, given = self.batched.append, array("q", tokens)
        return Part(lambda: append(group, given), lambda _: ())

    def last_hashes(self, group: Any) -> Sequence[Any]:
        return [self._hashes_of(handle)[-1:] for handle in group]

    def free(self, group: Any) -> Part:
        free, unregister = self.batched.free, self.batched.unregister
        requests = self.requests(group)

        def work() -> list[Any]:
            free(group)
            unregister(group)
            return requests

        return Part(work, lambda _: [self.calls.num_free_blocks()])

    def requests(self, group: Any) -> list[Any]:
        """Return requests to keep until a part ends, so that destroying them is not timed."""
        return [self.batched.request_of(handle) for handle in group]

    def computed(self, group: Any, counts: int | Sequence[int]) -> None:
        """Do nothing: a step has already raised the count."""
