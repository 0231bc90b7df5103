"""The timed work of a contestant: the same by single calls or by batched ones.

A scenario says which requests get what. A `Work` turns that into a `Part`.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Any, NamedTuple

from kvcheck.tools.bench.calls import Calls
from kvspec.batched import BatchedManager, StepOutput, StepResult


class Part(NamedTuple):
    """`work` is timed. `read` is not: it makes a list of its result, to be compared.

    The list has one result per request, None for a refusal; nothing where nothing is compared.
    """

    work: Callable[[], Any]
    read: Callable[[Any], Sequence[Any]] = lambda _: ()


class Work:
    """Single calls in a loop, on requests as `make` returned them.

    `calls` are also for what is never timed.
    """

    def __init__(self, calls: Calls) -> None:
        self.calls = calls

    def make(self, given: Sequence[Any]) -> Part:
        """Make requests of these inputs; results: their hashes."""
        make = self.calls.make_request
        return Part(lambda: [make(each) for each in given], self.hashes)

    def hashes(self, requests: Sequence[Any]) -> list[list[bytes]]:
        """Return the hashes of each; nothing where there are none."""
        read = self.calls.read_hashes
        return [] if read is None else [read(self.request(each)) for each in requests]

    def request(self, reference: Any) -> Any:
        return reference

    def look_up(self, requests: Sequence[Any]) -> Part:
        """Look up; results: (length in tokens, ids) of each hit."""
        look_up, read = self.calls.look_up, self.calls.read_hit
        return Part(
            lambda: [look_up(request) for request in requests],
            lambda found: [read(hit) for hit in found],
        )

    def allocate(self, request: Any, num_new_tokens: int, hit: Any) -> Part:
        """Allocate for one request, with the hit of a look-up just before; result: the new ids."""
        allocate, read = self.calls.allocate_with_hit, self.calls.read_blocks
        return Part(lambda: allocate(request, num_new_tokens, hit), lambda answer: [read(answer)])

    def admit(self, requests: Sequence[Any], counts: Sequence[int]) -> Part:
        """Look up and allocate `counts` tokens after the hit; results: (hit in tokens, all ids)."""
        look_up, allocate = self.calls.look_up, self.calls.allocate_with_hit

        def work() -> list[tuple[Any, Any]]:
            answers = []
            for request, count in zip(requests, counts, strict=True):
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

    def run(self, requests: Sequence[Any], counts: int | Sequence[int]) -> Part:
        """Allocate `counts` more tokens for requests that hold blocks; results: the new ids."""
        allocate, read = self.calls.allocate, self.calls.read_blocks
        each = repeat(counts, len(requests)) if isinstance(counts, int) else counts
        pairs = list(zip(requests, each, strict=True))
        return Part(
            lambda: [allocate(request, count) for request, count in pairs],
            lambda answers: [read(answer) for answer in answers],
        )

    def append(self, requests: Sequence[Any], tokens: Sequence[int]) -> Part:
        """Append one token each; no results: read `hashes`."""
        append = self.calls.append_tokens
        pairs = [(request, [token]) for request, token in zip(requests, tokens, strict=True)]
        return Part(lambda: [append(request, token) for request, token in pairs])

    def free(self, requests: Sequence[Any]) -> Part:
        """Release everything; result: the number of free blocks."""
        free = self.calls.free
        return Part(
            lambda: [free(request) for request in requests],
            lambda _: [self.calls.num_free_blocks()],
        )

    def computed(self, requests: Sequence[Any], count: int) -> None:
        """Count the granted tokens as computed, as an engine does between two steps. Not timed."""
        for request in requests:
            request.num_computed_tokens += count


INCLUDES = (
    "batched calls over arrays of handles; `hash` registers the request, `free` unregisters it,"
    " and steps write their blocks to a buffer"
)


class BatchedWork(Work):
    """Batched calls; requests are named by their handles.

    `calls`: single calls on the manager that `batched` works on. `num_rows`: of the buffer of block
    deltas; more than a step brings.
    """

    def __init__(self, batched: BatchedManager, calls: Calls, num_rows: int) -> None:
        super().__init__(calls)
        self.batched = batched
        self._rows = memoryview(bytearray(16 * num_rows)).cast("i")
        self.output = StepOutput(self._rows.cast("B").cast("i", (num_rows, 4)))

    def make(self, given: Sequence[Any]) -> Part:
        make, register = self.calls.make_request, self.batched.register
        return Part(lambda: array("q", [register(make(each)) for each in given]), self.hashes)

    def request(self, reference: Any) -> Any:
        return self.batched.request_of(reference)

    def look_up(self, requests: Sequence[Any]) -> Part:
        """Look up at once. Ids are read by single look-ups, which must find the same."""
        look_up, handles = self.batched.lookup, array("q", requests)

        def read(lengths: Sequence[int]) -> list[tuple[int, list[int]]]:
            work, read = super(BatchedWork, self).look_up([*map(self.request, requests)])
            return [(length, ids) for length, (_, ids) in zip(lengths, read(work()), strict=True)]

        return Part(lambda: look_up(handles), read)

    def admit(self, requests: Sequence[Any], counts: Sequence[int]) -> Part:
        admit, output = self.batched.admit, self.output
        handles, given = array("q", requests), array("q", counts)
        return Part(
            lambda: admit(handles, given, output=output),
            lambda result: self.came(result, (), handles),
        )

    def run(self, requests: Sequence[Any], counts: int | Sequence[int]) -> Part:
        decode, output, handles = self.batched.decode, self.output, array("q", requests)
        given = counts if isinstance(counts, int) else array("q", counts)
        return Part(
            lambda: decode(handles, given, output=output), lambda result: self.came(result, handles)
        )

    def came(
        self, result: StepResult, running: Sequence[int], new: Sequence[int] = ()
    ) -> list[Any]:
        """Read the buffer and return what single calls return: None for a refused request."""
        ids: dict[int, list[int]] = {handle: [] for handle in (*running, *new)}
        for at in range(0, 4 * result.num_deltas, 4):
            ids[self._rows[at]].append(self._rows[at + 3])
        hits: list[int | None] = [None] * len(running) + [*result.hit_tokens]
        came: list[Any] = []
        for handle, hit, granted in zip(ids, hits, result.num_scheduled_tokens, strict=True):
            got = ids[handle] if hit is None else (hit, ids[handle])
            came.append(got if granted else None)
        return came

    def append(self, requests: Sequence[Any], tokens: Sequence[int]) -> Part:
        append, handles, given = self.batched.append, array("q", requests), array("q", tokens)
        return Part(lambda: append(handles, given))

    def free(self, requests: Sequence[Any]) -> Part:
        free, unregister, handles = self.batched.free, self.batched.unregister, array("q", requests)
        kept = [*map(self.request, requests)]  # until the part ends: destroying them is not timed

        def work() -> list[Any]:
            free(handles)
            unregister(handles)
            return kept

        return Part(work, lambda _: [self.calls.num_free_blocks()])

    def computed(self, requests: Sequence[Any], count: int) -> None:
        """Do nothing: a step has already raised the count."""
