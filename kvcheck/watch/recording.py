"""Record an implementation's manager: each call, its result, and the state after it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kvcheck.play.state import View, look, observed
from kvcheck.watch.calls import Call, note, with_lists
from kvcheck.watch.forwarding import Forwarding, ForwardingImplementation
from kvcheck.watch.requests import described
from kvcheck.watch.writing import OperationWriter, UnrecordableError
from kvspec.audit import unwrapped
from kvspec.config import ManagerConfig
from kvspec.errors import UnsupportedError
from kvspec.interface import Capabilities, Feature, Implementation, KVCacheManager
from kvspec.record import Header, Operation
from kvspec.record_file import trace_writer
from kvspec.request import Request, RequestInput

NOT_RECORDED = frozenset(
    {
        Feature.BATCHED,
        Feature.GIVEN_HASHES,
        Feature.HOLDING,
        Feature.BLOCK_FACTS,
        Feature.WITHDRAWAL,
    }
)
"""Features that no operation of a record expresses; whole steps are recorded as single calls."""


class RecordedImplementation(ForwardingImplementation):
    """Wraps `inner`, and writes the calls of its one manager and their results to `path`.

    Requests and their tokens are also operations of the record (spec/records.md); calls that
    records do not know are left out. It is written while it happens, and there when the `with`
    block ends (`is_written`), also with an error; not when it is interrupted or nothing was asked.
    Copies of the manager and restored ones are not recorded.

    >>> with RecordedImplementation(kvfast, Path("run.jsonl")) as recorded:  # doctest: +SKIP
    ...     manager = recorded.create(config)
    """

    def __init__(self, inner: Implementation, path: Path, *, scenario: str = "") -> None:
        super().__init__(inner)
        self.path = path
        self.scenario = scenario
        self.is_written = False
        self._recording: _Recording | None = None
        self._open_files = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None or (issubclass(kind, Exception) and self.num_operations):
            self._open_files.close()
            self.is_written = self._recording is not None
        else:
            self._open_files.__exit__(kind, error, trace)

    @property
    def num_operations(self) -> int:
        return 0 if self._recording is None else self._recording.writer.index

    @property
    def capabilities(self) -> Capabilities:
        """The capabilities of `inner` that a record can express."""
        has = self.inner.capabilities
        return replace(has, features=has.features - NOT_RECORDED)

    def create(self, config: ManagerConfig, **options: Any) -> KVCacheManager:
        """Make a manager that is recorded.

        Raises UnsupportedError for a second one, or for one that does not show its state.
        """
        if self._recording is not None:
            raise UnsupportedError("a second manager", "a record")
        manager = self.inner.create(config, **options)
        has = self.inner.capabilities
        source = f"{has.name} {has.version}"
        header = Header(
            manager.config, manager.none_hash, None, source=source, scenario=self.scenario
        )
        view = look(unwrapped(manager))
        initial = observed(view, None, is_small=header.is_small)
        header = replace(header, initial=initial)
        add = self._open_files.enter_context(trace_writer(self.path, header))
        writer = OperationWriter(manager.config, described, initial)
        self._recording = _Recording(
            unwrapped(manager), view, writer, add, is_small=header.is_small
        )
        return Forwarding(manager, self._recording.perform)  # type: ignore[abstract]  # made of the interface

    def make_request(self, manager: KVCacheManager, request: RequestInput) -> Request:
        """Make a request; recorded as `new_request`."""
        made = super().make_request(manager, request)
        if self._recording is not None:
            self._recording.made(made, request)
        return made

    def append_tokens(
        self, manager: KVCacheManager, request: Request, token_ids: Sequence[int]
    ) -> None:
        num_before = request.num_tokens
        super().append_tokens(manager, request, token_ids)
        if self._recording is not None:
            self._recording.extended(request, num_before)


@dataclass
class _Recording:
    """One manager, and where its operations go. `view`: its state now.

    `manager` is without the audits that may be around it: reading its state must not be audited.
    """

    manager: KVCacheManager
    view: View
    writer: OperationWriter
    add: Callable[[Operation], None]
    is_small: bool

    def made(self, request: Request, given: RequestInput) -> None:
        self.add(self.writer.new_request(request, given))

    def extended(self, request: Request, num_before: int) -> None:
        self.add(self.writer.append_tokens(request, num_before, request.num_tokens))

    def perform(self, call: Call, make: Callable[[], Any]) -> Any:
        """Make a call and record it. Raises UnrecordableError for a malformed result."""
        call.make(make)
        call.look(self.manager)
        try:
            noted = note(with_lists(call, self.manager))
            if noted is not None:
                before, self.view = self.view, look(self.manager)
                self.add(
                    self.writer.operation(
                        noted, observed(self.view, before, is_small=self.is_small)
                    )
                )
        except (AttributeError, TypeError, ValueError) as error:
            if call.error is None:
                problem = f"records cannot say what {call.name} answered: {error!r}"
                raise UnrecordableError(problem) from error
        return call.told()
