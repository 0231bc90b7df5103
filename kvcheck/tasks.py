"""Divide work: calls of functions, made by processes of this machine or by a Ray cluster.

A call is a function that can be pickled, and its arguments. Results arrive in any order and are put
back into the order of the calls, so that the outcome never depends on the number of workers.
"""

from __future__ import annotations

import pickle
import socket
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from kvspec.errors import KVSpecError

Call: TypeAlias = tuple[Callable[..., Any], tuple[Any, ...]]
"""A function and its arguments."""

LOCAL = "local"
"""The address of a cluster of this machine alone, for the duration of its use."""


class ClusterError(KVSpecError):
    """The cluster does not exist, or Ray is not installed; the message says what to do."""


class LostError(Exception):
    """A result was lost; repeat the call. `with_its_node`: the node died, not just the process."""

    def __init__(self, *, with_its_node: bool) -> None:
        super().__init__(with_its_node)
        self.with_its_node = with_its_node


class WorkerDiedError(KVSpecError):
    """A process died of the call it made, not with its node. `function`: what was called."""

    def __init__(self, function: str) -> None:
        self.function = function
        super().__init__(
            f"a process ended while it was at {function}; an implementation that ends its process"
            " is checked as another program, where that is a finding: cmd:kvspec serve IMPL"
        )


MOST_DEATHS = 3
"""So often may processes die of one call; the system may have lacked memory."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of a call: its result, or its exception in parts.

    An exception is not sent as a whole: pickle would call kvspec's constructors with their messages
    only.
    """

    answer: Any = None
    raised: tuple[type[BaseException], tuple[Any, ...], dict[str, Any]] | None = None

    @classmethod
    def of(cls, call: Call) -> Outcome:
        function, arguments = call
        try:
            return cls(function(*arguments))
        except Exception as error:
            error.add_note("".join(traceback.format_exception(error)))
            return cls(raised=(type(error), error.args, dict(error.__dict__)))

    def told(self) -> Any:
        """Return the result, or raise the call's exception."""
        if self.raised is None:
            return self.answer
        kind, arguments, members = self.raised
        error = kind.__new__(kind, *arguments)
        error.__dict__.update(members)
        raise error


class Workers(Protocol):
    """Makers of calls. Use them in a `with` block, which ends calls under way."""

    @property
    def window(self) -> int:
        """Calls under way at a time: enough to keep all workers busy, few enough for memory."""

    def submit(self, call: Call) -> Any:
        """Begin a call; a handle for it."""

    def any_done(self, handles: Iterable[Any]) -> Iterable[Any]:
        """Wait for one or more of them."""

    def answer(self, handle: Any) -> Outcome:
        """Return the outcome of a finished call. Raises LostError."""


def in_order(
    workers: Workers | None,
    calls: Iterable[Call],
    heard: Callable[[int, Any], None] = lambda number, answer: None,
) -> Iterator[Any]:
    """Yield the results in the order of the calls, each once, however often a call was repeated.

    Without workers each call is made here, when its result is needed. A call's exception is raised
    in its place, whichever finished first. `heard`: called with each result as it arrives, and the
    number of its call. Raises WorkerDiedError.
    """
    if workers is None:
        for number, (function, arguments) in enumerate(calls):
            answer = function(*arguments)
            heard(number, answer)
            yield answer
        return
    under_way: dict[Any, tuple[int, Call]] = {}
    arrived: dict[int, Outcome] = {}
    deaths: Counter[int] = Counter()
    numbered, due, has_more = enumerate(calls), 0, True
    while has_more or under_way or arrived:
        while has_more and len(under_way) + len(arrived) < workers.window:
            number, call = next(numbered, (-1, None))
            has_more = call is not None
            if call is not None:
                under_way[workers.submit(call)] = number, call
        if due not in arrived and under_way:
            for handle in workers.any_done(list(under_way)):
                number, call = under_way.pop(handle)
                try:
                    arrived[number] = workers.answer(handle)
                except LostError as lost:
                    deaths[number] += not lost.with_its_node
                    if deaths[number] >= MOST_DEATHS:
                        raise WorkerDiedError(call[0].__name__) from lost
                    under_way[workers.submit(call)] = number, call
                else:
                    if arrived[number].raised is None:
                        heard(number, arrived[number].answer)
        if due in arrived:
            yield arrived.pop(due).told()
            due += 1


class Cluster(AbstractContextManager["Cluster"]):
    """A Ray cluster, by its address or `LOCAL`; kvspec has to be installed on each of its nodes.

    A call whose node died is made again elsewhere, as often as it takes: calls have no effects, so
    nothing is lost and nothing counts twice. One whose process alone dies has killed it, unless it
    fares better when it is made again. An exception in a call ends the run.
    """

    def __init__(self, address: str) -> None:
        try:
            import ray
        except ImportError as error:
            raise ClusterError("--cluster needs Ray: pip install 'kvspec[cluster]'") from error
        self._ray: Any = ray
        try:
            _expect_listener(address)
            ray.init(
                address=None if address == LOCAL else address,
                log_to_driver=False,
                logging_level="ERROR",
            )
        except (OSError, ValueError, RuntimeError) as error:
            raise ClusterError(f"no Ray cluster at {address}: {error}") from error
        # Ray's own retries make no difference between a dead node and a call that kills.
        self._remote: Any = ray.remote(num_cpus=1, max_retries=0)(made)

    @property
    def window(self) -> int:
        """Tasks in flight: four per processor now in the cluster, as nodes join and leave."""
        return 4 * max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    def submit(self, call: Call) -> Any:
        return self._remote.remote(pickle.dumps(call))

    def any_done(self, handles: Iterable[Any]) -> Iterable[Any]:
        done: list[Any] = self._ray.wait(list(handles), num_returns=1)[0]
        return done

    def answer(self, handle: Any) -> Outcome:
        errors = self._ray.exceptions
        try:
            return read_outcome(self._ray.get(handle))
        except errors.RayTaskError as error:
            raise error.cause from error
        except (errors.NodeDiedError, errors.ObjectLostError) as error:
            raise LostError(with_its_node=True) from error
        except (errors.WorkerCrashedError, errors.OutOfMemoryError) as error:
            raise LostError(with_its_node=False) from error

    def __exit__(self, *error: object) -> None:
        self._ray.shutdown()


def _expect_listener(address: str) -> None:
    """Raise OSError if no server is reachable; Ray itself would try for minutes, then exit."""
    host, _, port = address.rpartition(":")
    if host and "/" not in host and port.isdecimal():
        socket.create_connection((host, int(port)), timeout=10).close()


def made(call: bytes) -> bytes:
    """Make a call that was pickled. If it cannot be read or sent, that error is the outcome."""
    outcome = Outcome.of((_read_and_made, (call,)))
    try:
        return pickle.dumps(outcome)
    except Exception as error:
        problem = outcome.raised or error
        return pickle.dumps(Outcome(raised=(RuntimeError, (f"cannot be sent: {problem}",), {})))


def read_outcome(outcome: bytes) -> Outcome:
    """Unpickle the outcome that `made` returned."""
    found: Outcome = pickle.loads(outcome)
    return found


def _read_and_made(call: bytes) -> Any:
    function, arguments = pickle.loads(call)
    return function(*arguments)
