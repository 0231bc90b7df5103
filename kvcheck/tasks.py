"""Work that is divided: calls of functions by processes of this machine, or by a Ray cluster.

A call is a function that can be pickled, and its arguments. Answers come in any order and are put
back into the order of the calls, so that a result never depends on how many workers there are.
"""

from __future__ import annotations

import multiprocessing
import socket
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeAlias

from kvspec.errors import KVSpecError

Call: TypeAlias = tuple[Callable[..., Any], tuple[Any, ...]]
"""A function and its arguments."""

LOCAL = "local"
"""In place of an address: a cluster of this machine alone, for as long as it is used."""


class ClusterError(KVSpecError):
    """There is no such cluster, or Ray is not installed; says what to do."""


class Workers(Protocol):
    """Who makes calls. Use them in a `with` block, which ends what is under way."""

    @property
    def window(self) -> int:
        """Calls under way at a time: enough that nobody waits, few enough to be kept in memory."""

    def submit(self, call: Call) -> Any:
        """Begin a call; a handle for it."""

    def any_done(self, handles: Iterable[Any]) -> Iterable[Any]:
        """Wait for one or more of them."""

    def answer(self, handle: Any) -> Any:
        """What a call that is done answered; what it raised is raised."""


def in_order(workers: Workers, calls: Iterable[Call]) -> Iterator[Any]:
    """The answers, in the order of the calls. Each is given once, however often it was made."""
    under_way: dict[Any, int] = {}
    arrived: dict[int, Any] = {}
    numbered, due, has_more = enumerate(calls), 0, True
    while has_more or under_way or arrived:
        while has_more and len(under_way) + len(arrived) < workers.window:
            number, call = next(numbered, (-1, None))
            has_more = call is not None
            if call is not None:
                under_way[workers.submit(call)] = number
        if due not in arrived and under_way:
            for handle in workers.any_done(list(under_way)):
                arrived[under_way.pop(handle)] = workers.answer(handle)
        while due in arrived:
            yield arrived.pop(due)
            due += 1


class Processes(AbstractContextManager["Processes"]):
    """Processes of this machine. One that dies ends the run: what it ran has killed it."""

    def __init__(self, jobs: int) -> None:
        self.window = 4 * jobs
        # Not by fork: a progress bar has a thread.
        self._executor = ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"))

    def submit(self, call: Call) -> Future[Any]:
        """See `Workers`."""
        return self._executor.submit(call[0], *call[1])

    def any_done(self, handles: Iterable[Future[Any]]) -> Iterable[Future[Any]]:
        """See `Workers`."""
        return wait(handles, return_when=FIRST_COMPLETED).done

    def answer(self, handle: Future[Any]) -> Any:
        """See `Workers`."""
        return handle.result()

    def __exit__(self, *error: object) -> None:
        self._executor.shutdown(cancel_futures=True)


class Cluster(AbstractContextManager["Cluster"]):
    """A Ray cluster, by its address or `LOCAL`; kvspec has to be installed on each of its nodes.

    A call whose node or process died is made again elsewhere, as often as it takes: calls have no
    effects, so nothing is lost and nothing counts twice. What a call raises ends the run.
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
        self._remote: Any = ray.remote(num_cpus=1, max_retries=-1)(_made)

    @property
    def window(self) -> int:
        """By the processors that there are now: nodes come and go."""
        return 4 * max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    def submit(self, call: Call) -> Any:
        """See `Workers`."""
        return self._remote.remote(call)

    def any_done(self, handles: Iterable[Any]) -> Iterable[Any]:
        """See `Workers`."""
        done: list[Any] = self._ray.wait(list(handles), num_returns=1)[0]
        return done

    def answer(self, handle: Any) -> Any:
        """See `Workers`. An answer that was lost with its node is made again by Ray."""
        try:
            return self._ray.get(handle)
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause from error

    def __exit__(self, *error: object) -> None:
        self._ray.shutdown()


def _expect_listener(address: str) -> None:
    """OSError where nobody listens; Ray itself would try for minutes, and then end the process."""
    host, _, port = address.rpartition(":")
    if host and "/" not in host and port.isdecimal():
        socket.create_connection((host, int(port)), timeout=10).close()


def _made(call: Call) -> Any:
    function, arguments = call
    return function(*arguments)
