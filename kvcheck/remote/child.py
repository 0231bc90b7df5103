"""A child process that receives messages and replies, and always ends.

It uses one thread without blocking calls: writing, reading and draining standard error alternate
until the reply has arrived or the time is up. Needs a POSIX system.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
from collections.abc import Iterator
from time import monotonic, sleep
from typing import IO

from kvcheck.remote.codec import MessageBuffer
from kvspec.errors import FormatError

_READ_BYTES = 2**16
_STDERR_BYTES = 2**12
"""The number of bytes kept of the end of standard error."""

_SHOWN_BYTES = 40

_GRACE_S = 1.0
"""Time for a child to end by itself, after its standard input was closed."""

ENDING_S = 5.0
"""Time for a child whose output ended to end as well: then its exit status says more."""


class ChildFailure(Exception):  # noqa: N818 (what happened to the child)
    """The child did not reply; the text says what happened instead."""


class Child:
    """A running program. `end` must be called, and may be called again.

    The program leads its own process group, so that what it started ends with it.
    """

    def __init__(self, command: tuple[str, ...], framing: str) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
        self._owner = os.getpid()
        self._stdin, self._stdout, self._stderr = self._pipes()
        for pipe in (self._stdin, self._stdout, self._stderr):
            os.set_blocking(pipe.fileno(), False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._stdout, selectors.EVENT_READ)
        self._selector.register(self._stderr, selectors.EVENT_READ)
        self._buffer = MessageBuffer(framing)
        self._said = b""
        self._ended = False

    def _pipes(self) -> tuple[IO[bytes], IO[bytes], IO[bytes]]:
        process = self._process
        if process.stdin is None or process.stdout is None or process.stderr is None:
            raise TypeError("Popen gives the pipes it was asked for")
        return process.stdin, process.stdout, process.stderr

    @property
    def process_id(self) -> int:
        """Process id of the child, valid also after its end."""
        return self._process.pid

    def exchange(self, framed: bytes, timeout_s: float, num_answers: int = 1) -> Iterator[bytes]:
        """Send messages and yield the bodies of their replies, with a timeout for each.

        Raises ChildFailure if the child ends, or replies too late, unasked, or too long.
        """
        self._refuse_unasked()
        unsent = self._write(memoryview(framed))
        if unsent:
            self._selector.register(self._stdin, selectors.EVENT_WRITE)
        for answer in range(1, num_answers + 1):
            deadline = monotonic() + timeout_s
            body = self._take(is_last=answer == num_answers)
            while body is None:
                # Checked each time, not only after silence: a child may chatter without end.
                left = deadline - monotonic()
                if left <= 0:
                    raise ChildFailure(f"no answer within {timeout_s:g} s")
                for key, _ in self._selector.select(left):
                    if key.fileobj is self._stdin:
                        unsent = self._write(unsent)
                        if not unsent:
                            self._selector.unregister(self._stdin)
                    elif key.fileobj is self._stdout:
                        self._read()
                    elif not self._drain():
                        self._selector.unregister(self._stderr)
                body = self._take(is_last=answer == num_answers)
            if unsent and answer == num_answers:
                raise ChildFailure("answered before the message was sent")
            yield body

    def _take(self, *, is_last: bool) -> bytes | None:
        """Return the next reply if it is complete; nothing may follow the last one."""
        try:
            body = self._buffer.take()
        except FormatError as error:
            came = self._buffer.start()
            raise ChildFailure(f"wrote {error.problem} to stdout, beginning {came!r}") from None
        if body is not None and is_last and len(self._buffer):
            raise ChildFailure(f"wrote more than one answer: {self._buffer.start()!r} …")
        return body

    def _refuse_unasked(self) -> None:
        """Refuse bytes that arrived before the message was sent."""
        for key, _ in self._selector.select(0):
            if key.fileobj is self._stdout:
                data = os.read(self._stdout.fileno(), _READ_BYTES)
                if not data:
                    raise ChildFailure(self._why_it_stopped("stdout"))
                raise ChildFailure(f"wrote to stdout without being asked: {data[:_SHOWN_BYTES]!r}")
            if not self._drain():
                self._selector.unregister(self._stderr)

    def _write(self, unsent: memoryview) -> memoryview:
        try:
            return unsent[os.write(self._stdin.fileno(), unsent) :]
        except BlockingIOError:
            return unsent
        except BrokenPipeError:
            raise ChildFailure(self._why_it_stopped("stdin")) from None

    def _read(self) -> None:
        with contextlib.suppress(BlockingIOError):
            data = os.read(self._stdout.fileno(), _READ_BYTES)
            if not data:
                raise ChildFailure(self._why_it_stopped("stdout"))
            self._buffer.feed(data)

    def _drain(self) -> bool:
        """Read what there is of standard error; False at its end."""
        try:
            data = os.read(self._stderr.fileno(), _READ_BYTES)
        except BlockingIOError:
            return True
        self._said = (self._said + data)[-_STDERR_BYTES:]
        return bool(data)

    def _why_it_stopped(self, pipe: str) -> str:
        """Explain a closed pipe: usually the child ended, and its exit status says more."""
        status = self._wait(ENDING_S)
        if status is None:
            return f"closed its {pipe}"
        if status < 0:
            with contextlib.suppress(ValueError):
                return f"was killed by {signal.Signals(-status).name}"
            return f"was killed by signal {-status}"
        cut = f", after {len(self._buffer)} bytes of an answer" if len(self._buffer) else ""
        return f"ended with exit status {status}{cut}"

    def _wait(self, seconds: float) -> int | None:
        """Return the exit status (negative: a signal), or None if the child still runs after that
        time.
        """
        deadline = monotonic() + seconds
        pause = 0.001
        while True:
            self._drain()
            status = self._status()
            if status is not None:
                return status
            if monotonic() >= deadline:
                return None
            sleep(pause)
            pause = min(2 * pause, 0.05)

    def _status(self) -> int | None:
        """Return the exit status so far.

        The child is not reaped where the system has `waitid`: until then its process group cannot
        be reused, and `end` kills the right one.
        """
        if not hasattr(os, "waitid"):
            return self._process.poll()
        state = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if state is None:
            return None
        return state.si_status if state.si_code == os.CLD_EXITED else -state.si_status

    def last_words(self) -> str:
        """Return the end of standard error, as one line."""
        text = self._said.decode(errors="backslashreplace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return " | ".join(lines[-3:])[-400:]

    def end(self, grace_s: float = _GRACE_S) -> bytes:
        """End the child and all it started, and reap it; `grace_s` to end by itself.

        Returns the beginning of unread standard output.
        """
        if self._ended or os.getpid() != self._owner:  # a forked copy of us ends nothing
            return b""
        self._ended = True
        with contextlib.suppress(OSError):
            self._stdin.close()
        self._wait(grace_s)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._drain()
        unasked = self._buffer.start()
        with contextlib.suppress(BlockingIOError):
            unasked += os.read(self._stdout.fileno(), _READ_BYTES)
        self._selector.close()
        self._stdout.close()
        self._stderr.close()
        return unasked[:_SHOWN_BYTES]
