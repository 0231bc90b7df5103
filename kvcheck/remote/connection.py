"""One conversation with a child process, from the handshake to its end."""

from __future__ import annotations

import os
import shlex
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from kvcheck.remote.child import ENDING_S, Child, ChildFailure
from kvcheck.remote.codec import FRAMINGS, decode, encode
from kvcheck.remote.operations import MESSAGES, PROTOCOL_VERSION, check_hello
from kvcheck.remote.values import decode_capabilities, decode_error
from kvspec.errors import FormatError, RemoteError
from kvspec.files.objects import Where, anything, checked_members, shown
from kvspec.interface import Capabilities

DEFAULT_TIMEOUT_S = 30.0

DROP_AT_ONCE = 256
"""Unused handles are dropped on the server this many at a time."""


@dataclass(frozen=True)
class Options:
    """Options of a child: its program and arguments, the framing, seconds for each reply.

    `framing`: None tries each in turn, and keeps the one that the child reads (`hello_args`).
    """

    command: tuple[str, ...]
    framing: str | None = None
    timeout_s: float = DEFAULT_TIMEOUT_S

    @property
    def name(self) -> str:
        """Command as one would type it."""
        return shlex.join(self.command)


def hello_args(framing: str | None) -> dict[str, Any]:
    """Return the arguments of hello.

    A child whose framing is not known gets a newline within its first CBOR frame. If it reads lines
    it then gets one that is not JSON, and fails at once instead of waiting for the rest.
    """
    client = "kvspec" if framing else "kvspec\n"
    return {"protocol": [PROTOCOL_VERSION], "client": client}


@dataclass(frozen=True)
class Sent:
    """A message on its way. `named`: its handles, `set` and `args`, as far as it has them."""

    number: int
    op: str
    named: Mapping[str, Any]

    @property
    def name(self) -> str:
        return f"{self.op}, number {self.number}"

    def to_json(self) -> dict[str, Any]:
        return {"id": self.number, "op": self.op, **self.named}


Heard: TypeAlias = Callable[[str, Mapping[str, Any]], None]
"""Called with each message: `>` with what is sent, `<` with the reply, unchecked."""


class Connection:
    """A child that speaks the protocol. `heard`: called with each message, if given.

    Every reply is checked before it is used. The first failure ends the child and the conversation,
    because later replies of a child that broke the protocol cannot be trusted.
    """

    def __init__(self, options: Options, heard: Heard | None = None) -> None:
        self._args_of_hello = hello_args(options.framing)
        self._is_guess = options.framing is None
        self._hint = f"; without +{options.framing} the framing is found out" * bool(
            options.framing
        )
        self.options = replace(options, framing=options.framing or FRAMINGS[0])
        self._heard = heard
        self._number = 0
        self._last_handle = 0
        self._last = "none"
        self._failure: RemoteError | None = None
        self._pipelining = False
        self._foreseen: tuple[tuple[str, Mapping[str, Any]], ...] = ()
        self._ahead: dict[str, tuple[Sent, dict[str, Any]]] = {}
        # Handles of values that were collected; the collector may run anywhere, so no message here.
        self._dropped: deque[tuple[str, int]] = deque()
        if os.name != "posix":
            raise RemoteError(options.name, "none", "programs can be asked on POSIX systems only")
        self.end: Callable[[], Any]
        self._start()
        self.capabilities = self._greet()

    @property
    def framing(self) -> str:
        return self.options.framing or FRAMINGS[0]

    def _start(self) -> None:
        options = self.options
        try:
            self._child = Child(options.command, self.framing)
        except (OSError, ValueError) as error:
            problem = f"can't be started: {getattr(error, 'strerror', None) or error}"
            raise RemoteError(options.name, "none", problem) from None
        self.end = weakref.finalize(self, self._child.end)

    @property
    def process_id(self) -> int:
        return self._child.process_id

    @property
    def has_failed(self) -> bool:
        return self._failure is not None

    def _greet(self) -> Capabilities:
        try:
            answer = self.call("hello", args=self._args_of_hello)
        except RemoteError as failure:
            if not self._is_guess:
                raise
            answer = self._greet_otherwise(failure)
        try:
            found = check_hello(answer, Where("answer", field="result"))
        except (FormatError, TypeError) as error:
            raise self._fail(f"answered nonsense: {error}") from None
        self._pipelining = found.get("pipelining", False)
        self.index: Mapping[str, Any] | None = found.get("index")
        self.offload: Mapping[str, Any] | None = found.get("offload")
        return decode_capabilities(found)

    def _greet_otherwise(self, failure: RemoteError) -> Any:
        """Start the child again and greet it in the other framing.

        Raises the first failure, with a hint, if the child reads neither.
        """
        self._is_guess = False
        self.options = replace(self.options, framing=FRAMINGS[1])
        self._args_of_hello = hello_args(self.framing)
        self._number, self._failure = 0, None
        self._start()
        try:
            return self.call("hello", args=self._args_of_hello)
        except RemoteError as second:
            if second.problem == failure.problem:
                raise failure from None
            self._last = "hello, number 0"
            said = f"{failure.problem}; in JSON lines: {second.problem}"
            raise self._fail(said) from None

    def close(self) -> None:
        """End the child. Raises RemoteError if it wrote more than it was asked for."""
        unasked = self._child.end(ENDING_S)
        if unasked and self._failure is None:
            raise self._fail(f"wrote more than its answers: {unasked!r}")

    def new_handle(self) -> int:
        """Return a handle that was never used in this conversation."""
        self._last_handle += 1
        return self._last_handle

    def forget(self, owner: object, table: str, handle: int) -> None:
        """Drop the handle on the server once `owner` is collected."""
        weakref.finalize(owner, self._dropped.append, (table, handle)).atexit = False

    def call(
        self,
        op: str,
        *,
        manager: int | None = None,
        request: int | None = None,
        owned: Mapping[str, Any] | None = None,
        args: Mapping[str, Any] | None = None,
    ) -> Any:
        """Send one message and return its checked result.

        Raises the contract's error in the reply, or RemoteError.
        """
        named = {"manager": manager, "request": request, "set": owned, "args": args}
        message = {name: value for name, value in named.items() if value not in (None, {})}
        if op in self._ahead:
            sent, answer = self._ahead[op]
            if sent.named == message:
                return self._result(sent, answer)
        foreseen, self._foreseen = self._foreseen, ()
        if len(self._dropped) >= DROP_AT_ONCE:
            self._drop()
        return self._ask((op, message), *foreseen)

    def foresee(self, manager: int, questions: Iterable[str]) -> None:
        """Send these queries about a manager along with the next message.

        The replies to those of `QUESTIONS` that are made before another message is sent are then
        already there. Does nothing if the server handles one message at a time.
        """
        if self._pipelining:
            self._foreseen = tuple((question, {"manager": manager}) for question in questions)

    def _drop(self) -> None:
        handles: dict[str, list[int]] = {"managers": [], "requests": [], "windows": []}
        while self._dropped:
            table, handle = self._dropped.popleft()
            handles.setdefault(table, []).append(handle)
        self._ask(("drop", {"args": handles}))

    def _ask(self, *messages: tuple[str, Mapping[str, Any]]) -> Any:
        """Send messages at once. Returns the first result; other replies are kept for `call`."""
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        self._ahead.clear()
        sent = [Sent(self._number + place, *message) for place, message in enumerate(messages)]
        self._number += len(sent)
        # May raise for a message that is too long; then nothing was sent.
        framed = b"".join(encode(message.to_json(), self.framing) for message in sent)
        self._tell(">", (message.to_json() for message in sent))
        answers = self._answers(sent, framed)
        self._tell("<", answers)
        self._ahead.update(
            (message.op, (message, answer))
            for message, answer in zip(sent[1:], answers[1:], strict=True)
        )
        return self._result(sent[0], answers[0])

    def _tell(self, sign: str, messages: Iterable[Mapping[str, Any]]) -> None:
        if self._heard is not None:
            for message in messages:
                self._heard(sign, message)

    def _answers(self, sent: Sequence[Sent], framed: bytes) -> list[dict[str, Any]]:
        """Return the child's replies to these messages, unchecked."""
        answers = []
        self._last = sent[0].name
        try:
            bodies = self._child.exchange(framed, self.options.timeout_s, len(sent))
            for message in sent:
                self._last = message.name
                answers.append(decode(next(bodies), self.framing))
                self._is_guess = False
                number = answers[-1].get("id")
                if type(number) is int and 0 <= number < sent[0].number:
                    # It arrived too late to be seen behind the first one, and instead of this
                    # reply.
                    raise ChildFailure(f"wrote more than one answer to number {number}")
        except ChildFailure as failure:
            hint = self._hint if sent[0].op == "hello" else ""
            raise self._fail(f"{failure}{hint}") from None
        except FormatError as error:
            raise self._fail(f"wrote what is no message: {error.problem}") from None
        except BaseException:
            self._fail("interrupted")  # the reply would be taken for the next one
            raise
        return answers

    def _result(self, sent: Sent, answer: dict[str, Any]) -> Any:
        self._last = sent.name
        where = Where("answer")
        try:
            outcome = "error" if "error" in answer else "result"
            checked_members(answer, where, {"id": anything, outcome: anything}, {})
            at = where.member(outcome)
            error = decode_error(answer[outcome], at) if outcome == "error" else None
            if isinstance(error, tuple):  # also with id null: the message was not readable
                raise self._refused(*error)
            if type(answer["id"]) is not int or answer["id"] != sent.number:
                raise where.member("id").error(f"{shown(answer['id'])}, not {sent.number}")
            if error is not None:
                raise error
            return MESSAGES[sent.op].result(answer[outcome], at)
        except FormatError as error:
            raise self._fail(f"answered nonsense: {error}") from None

    def nonsense(self, what: str) -> RemoteError:
        """End the conversation for a well-formed reply with impossible content."""
        return self._fail(f"answered nonsense: {what}")

    def _refused(self, kind: str, message: str) -> RemoteError:
        """Return the error for a failure of the implementation or an unknown message.

        The conversation continues: the server replied as it should.
        """
        problem = f"{kind}: {message}"
        return RemoteError(self.options.name, self._last, problem, self._child.last_words())

    def _fail(self, problem: str) -> RemoteError:
        """End everything; the error to raise now and at every later call."""
        self._child.end(grace_s=0.0)
        self._failure = RemoteError(
            self.options.name, self._last, problem, self._child.last_words()
        )
        return self._failure
