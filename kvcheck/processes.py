"""Processes of this machine that make calls (`kvcheck.tasks`), and end when interrupted."""

from __future__ import annotations

import multiprocessing
import pickle
import signal
from collections.abc import Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, suppress
from multiprocessing import connection, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from queue import Empty, SimpleQueue
from threading import Lock
from time import monotonic

from kvcheck.tasks import Call, LostError, Outcome, made, read_outcome

GRACE_S = 3.0
"""For a process to end what it is at, with what it began itself, before it is killed."""


class Processes(AbstractContextManager["Processes"]):
    """Processes of this machine, and a thread for each, which hands it calls.

    One that dies is replaced, and the call made again. Leaving ends them, whatever they are at.
    They also end when this process has ended, after their current call.
    """

    def __init__(self, jobs: int) -> None:
        self.window = 4 * jobs
        if hasattr(signal, "pthread_sigmask"):
            resource_tracker.ensure_running()  # it would undo what _without_interrupts does
        self._threads = ThreadPoolExecutor(jobs, initializer=_without_interrupts)
        self._idle: SimpleQueue[_Worker] = SimpleQueue()
        self._workers: list[_Worker] = []
        self._lock, self._has_ended = Lock(), False

    def submit(self, call: Call) -> Future[bytes]:
        return self._threads.submit(self._made, call)

    def _made(self, call: Call) -> bytes:
        try:
            worker = self._idle.get_nowait()
        except Empty:
            worker = self._begun()
        outcome = worker.made(pickle.dumps(call))
        self._idle.put(worker)
        return outcome

    def _begun(self) -> _Worker:
        with self._lock:
            if self._has_ended:
                raise LostError(with_its_node=False)
            self._workers.append(_Worker())
            return self._workers[-1]

    def any_done(self, handles: Iterable[Future[bytes]]) -> Iterable[Future[bytes]]:
        return wait(handles, return_when=FIRST_COMPLETED).done

    def answer(self, handle: Future[bytes]) -> Outcome:
        return read_outcome(handle.result())

    def __exit__(self, *error: object) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            self._has_ended = True
        end = monotonic() + GRACE_S
        for worker in self._workers:
            worker.process.terminate()
        for worker in self._workers:
            worker.end(max(0.0, end - monotonic()))
        self._threads.shutdown()


class _Worker:
    def __init__(self) -> None:
        # Not by fork: a progress bar has a thread, and so have we.
        spawn = multiprocessing.get_context("spawn")
        self._here, there = spawn.Pipe()
        self.process: SpawnProcess = spawn.Process(target=_serve, args=(there,))
        self.process.start()
        there.close()  # else its end would not be seen

    def made(self, call: bytes) -> bytes:
        """Make a call and return its outcome. LostError if the process dies during it."""
        try:
            self._here.send_bytes(call)
            return self._here.recv_bytes()
        except (EOFError, OSError) as error:
            raise LostError(with_its_node=False) from error

    def end(self, grace_s: float) -> None:
        """Wait for the end of the process, and kill it after this time."""
        if not connection.wait([self.process.sentinel], grace_s):
            self.process.kill()
        self.process.join()
        self._here.close()


def _serve(parent: Connection) -> None:
    # Ctrl-C reaches every process of a terminal; the process that began the calls handles it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # SIGTERM ends this process as Ctrl-C would: no check may mistake that for a result.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with suppress(EOFError, OSError, KeyboardInterrupt):
        while True:
            parent.send_bytes(made(parent.recv_bytes()))


def _without_interrupts() -> None:
    """Block Ctrl-C in all processes that this thread starts, from their first instruction."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
