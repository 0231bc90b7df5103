"""The same work by batched calls: one per part, over an array of handles.

An engine has to learn which blocks its requests got, as single calls return them. So every step
writes them, as rows of (handle, group, index, block), into a buffer made before.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

from kvcheck.tools.bench.calls import Calls
from kvcheck.tools.bench.work import Part, Work
from kvspec.batched import BatchedManager, StepOutput, StepResult

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
