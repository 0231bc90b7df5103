"""The acts of a script on one manager, by single calls or by batched ones."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from kvcheck.tools.bench.calls import ALLOCATE, Calls
from kvcheck.tools.bench.script import BLOCK_SIZE_TOKENS, Act, Do
from kvspec.batched import BatchedManager, StepOutput, StepResult


class Part(NamedTuple):
    """`work` is timed. `read` is not: it makes a list of its result, to be compared.

    The list has one result per request, None for a refusal; nothing where nothing is compared.
    """

    work: Callable[[], Any]
    read: Callable[[Any], Sequence[Any]] = lambda _: ()


class Work:
    """Single calls in a loop. `requests`: by their numbers in the script."""

    def __init__(self, calls: Calls) -> None:
        self.calls = calls
        self.not_timed = frozenset[str]()
        self.requests: dict[int, Any] = {}

    def part(self, do: Do) -> Part:
        """Prepare an act: what it needs is found and made here."""
        if do.act is Act.MAKE:
            return self.make(do)
        if do.act is Act.HASHES:
            return Part(lambda: None, lambda _: [each[-1:] for each in self.hashes(do)])
        name = "free" if do.act is Act.PREEMPT else do.act.name.lower()
        act: Callable[[Do, Sequence[Any]], Part] = getattr(self, name)
        return act(do, [self.requests[number] for number in do.requests])

    def make(self, do: Do) -> Part:
        """Make requests; results: their hashes."""
        make, made = self.calls.make_request, self.calls.make_input
        names = [f"request-{number}" for number in do.requests]
        given = [made(name, list(tokens)) for name, tokens in zip(names, do.given, strict=True)]

        def read(made: Sequence[Any]) -> list[list[bytes]]:
            self.requests.update(zip(do.requests, made, strict=True))
            return self.hashes(do)

        return Part(lambda: [make(each) for each in given], read)

    def hashes(self, do: Do) -> list[list[bytes]]:
        return [self.calls.read_hashes(self.request(number)) for number in do.requests]

    def request(self, number: int) -> Any:
        return self.requests[number]

    def look_up(self, do: Do, requests: Sequence[Any]) -> Part:
        """Look up; results: the lengths of the hits, in tokens."""
        look_up, read = self.calls.look_up, self.calls.read_hit
        return Part(
            lambda: [look_up(request) for request in requests],
            lambda found: [read(hit)[0] for hit in found],
        )

    def allocate(self, do: Do, requests: Sequence[Any]) -> Part:
        """Allocate for one request, with the hit of a look-up just before; result: as `admit`."""
        (request,), (count,) = requests, do.given
        allocate, hit = self.calls.allocate_with_hit, self.calls.look_up(request)
        return Part(
            lambda: [(hit, allocate(request, count, hit))],
            lambda found: self._admitted(do, requests, found),
        )

    def admit(self, do: Do, requests: Sequence[Any]) -> Part:
        """Look up and allocate the count after the hit; results: (hit in tokens, all ids)."""
        look_up, allocate = self.calls.look_up, self.calls.allocate_with_hit
        pairs = list(zip(requests, do.given, strict=True))

        def work() -> list[tuple[Any, Any]]:
            answers = []
            for request, count in pairs:
                hit = look_up(request)
                answers.append((hit, allocate(request, count, hit)))
            return answers

        return Part(work, lambda found: self._admitted(do, requests, found))

    def _admitted(
        self, do: Do, requests: Sequence[Any], found: Sequence[tuple[Any, Any]]
    ) -> list[Any]:
        results: list[tuple[int, list[int]] | None] = []
        for (hit, answer), request, count in zip(found, requests, do.given, strict=True):
            new = self.calls.read_blocks(answer)
            length, cached = self.calls.read_hit(hit)
            results.append(None if new is None else (length, [*cached, *new]))
            request.num_computed_tokens += 0 if new is None else length + count
        return results

    def run(self, do: Do, requests: Sequence[Any]) -> Part:
        """Allocate more tokens for requests that hold blocks; results: the new ids."""
        allocate, pairs = self.calls.allocate, list(zip(requests, do.given, strict=True))

        def read(answers: Sequence[Any]) -> list[Any]:
            results = [self.calls.read_blocks(answer) for answer in answers]
            for (request, count), new in zip(pairs, results, strict=True):
                request.num_computed_tokens += 0 if new is None else count
            return results

        return Part(lambda: [allocate(request, count) for request, count in pairs], read)

    def append(self, do: Do, requests: Sequence[Any]) -> Part:
        """Append one token each; no results: see `Act.HASHES`."""
        append = self.calls.append_tokens
        pairs = [(request, [token]) for request, token in zip(requests, do.given, strict=True)]
        return Part(lambda: [append(request, token) for request, token in pairs])

    def free(self, do: Do, requests: Sequence[Any]) -> Part:
        """Release everything; result: the number of free blocks. Preempted ones come again."""
        free = self.calls.free

        def read(_: Any) -> list[int]:
            for number, request in zip(do.requests, requests, strict=True):
                request.num_computed_tokens = 0
                if do.act is Act.FREE:
                    del self.requests[number]  # not in the timed part, which would destroy it
            return [self.calls.num_free_blocks()]

        return Part(lambda: [free(request) for request in requests], read)


INCLUDES = (
    "batched calls over arrays of handles; `hash` registers the request, `free` unregisters it,"
    " and steps write their blocks to a buffer"
)


class BatchedWork(Work):
    """Batched calls; requests are named by their handles, and steps count what is computed.

    `calls`: single calls on the manager that `batched` works on.
    """

    def __init__(self, batched: BatchedManager, calls: Calls) -> None:
        super().__init__(calls)
        self.not_timed |= {ALLOCATE}  # no batched call allocates without a look-up
        self.batched = batched
        self._rows = memoryview(b"").cast("i")
        self._output = StepOutput()

    def make(self, do: Do) -> Part:
        part, register = super().make(do), self.batched.register
        return Part(lambda: [register(request) for request in part.work()], part.read)

    def request(self, number: int) -> Any:
        return self.batched.request_of(self.requests[number])

    def look_up(self, do: Do, requests: Sequence[Any]) -> Part:
        look_up, handles = self.batched.lookup, array("q", requests)
        return Part(lambda: look_up(handles), lambda lengths: [*lengths])

    def allocate(self, do: Do, requests: Sequence[Any]) -> Part:
        return self.admit(do, requests)

    def admit(self, do: Do, requests: Sequence[Any]) -> Part:
        admit, output = self.batched.admit, self._output_for(do)
        handles, given = array("q", requests), array("q", do.given)

        def read(result: StepResult) -> list[Any]:
            pairs = zip(result.hit_tokens, self._came(result, handles), strict=True)
            return [None if ids is None else (hit, ids) for hit, ids in pairs]

        return Part(lambda: admit(handles, given, output=output), read)

    def run(self, do: Do, requests: Sequence[Any]) -> Part:
        decode, output = self.batched.decode, self._output_for(do)
        handles = array("q", requests)
        given = 1 if set(do.given) == {1} else array("q", do.given)
        return Part(
            lambda: decode(handles, given, output=output),
            lambda result: self._came(result, handles),
        )

    def _output_for(self, do: Do) -> StepOutput:
        """Return the buffer of block deltas, made longer if what is wanted may not fit."""
        hits = (want if isinstance(want, int) else 0 for want in do.wants)
        tokens = (hit + count for hit, count in zip(hits, do.given, strict=True))
        num_rows = sum(2 + count // BLOCK_SIZE_TOKENS for count in tokens)
        if len(self._rows) < 4 * num_rows:
            self._rows = memoryview(bytearray(16 * num_rows)).cast("i")
            self._output = StepOutput(self._rows.cast("B").cast("i", (num_rows, 4)))
        return self._output

    def _came(self, result: StepResult, handles: Sequence[int]) -> list[Any]:
        """Read the buffer and return each request's new ids; None for a refused one."""
        ids: dict[int, list[int]] = {handle: [] for handle in handles}
        for at in range(0, 4 * result.num_deltas, 4):
            ids[self._rows[at]].append(self._rows[at + 3])
        granted = zip(ids.values(), result.num_scheduled_tokens, strict=True)
        return [each if count else None for each, count in granted]

    def append(self, do: Do, requests: Sequence[Any]) -> Part:
        append, handles, given = self.batched.append, array("q", requests), array("q", do.given)
        return Part(lambda: append(handles, given))

    def free(self, do: Do, requests: Sequence[Any]) -> Part:
        free, unregister, handles = self.batched.free, self.batched.unregister, array("q", requests)
        kept = [self.request(number) for number in do.requests]  # destroying them is not timed
        is_end = do.act is Act.FREE
        for number in do.requests if is_end else ():
            del self.requests[number]

        def work() -> list[Any]:
            free(handles)
            if is_end:
                unregister(handles)
            return kept

        return Part(work, lambda _: [self.calls.num_free_blocks()])
