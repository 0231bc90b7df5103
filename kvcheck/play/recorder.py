"""Make records: play operations on an implementation and keep the results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvcheck.play.compare import BUILTIN_ERRORS
from kvcheck.play.player import Player
from kvcheck.play.state import look, observed
from kvspec.config import ManagerConfig
from kvspec.files.objects import Where
from kvspec.interface import Implementation
from kvspec.operations import OPERATIONS, check_arguments
from kvspec.record import START_VERSION, Finding, Footer, Header, Operation
from kvspec.record_file import read_trace, write_trace
from kvspec.snapshot import Snapshot


class Recorder:
    """Records every operation of one manager, in JSON terms.

    >>> recorder = Recorder(implementation, config)          # doctest: +SKIP
    >>> recorder.play("new_request", "r0", prompt_token_ids=[1, 2, 3, 4])
    >>> recorder.write(Path("mine.jsonl"))
    """

    def __init__(
        self,
        implementation: Implementation,
        config: ManagerConfig,
        *,
        scenario: str = "",
        seed: int = 0,
        check_invariants: bool = True,
    ) -> None:
        manager = implementation.create(config, check_invariants=check_invariants)
        self._player = Player(implementation, manager)
        self._view = look(manager)
        is_small = Header(manager.config, manager.none_hash, None).is_small
        self.header = Header(
            config=manager.config,
            none_hash=manager.none_hash,
            initial=observed(self._view, None, is_small=is_small),
            source=f"{implementation.capabilities.name} {implementation.capabilities.version}",
            scenario=scenario,
            seed=seed,
        )
        self.operations: list[Operation] = []

    def admit(
        self, name: str, num_new: int | None = None, *, num_tokens: int = 0, **more: Any
    ) -> Any:
        """Look up, and allocate as for a waiting request; without `num_new` all that is no hit."""
        hit = self.play("get_computed_blocks", name)
        length = hit["num_computed_tokens"]
        return self.play(
            "allocate_slots",
            name,
            num_computed_tokens=0,
            status="WAITING",
            num_new_tokens=num_tokens - length if num_new is None else num_new,
            num_new_computed_tokens=length,
            new_computed_blocks=hit["blocks"],
            **more,
        )

    def play(self, name: str, request_id: str | None = None, /, **arguments: Any) -> Any:
        """Play one operation and record it; return its result.

        An error that records can hold is recorded (the result is then None); any other is raised.
        """
        if name in OPERATIONS:
            check_arguments(OPERATIONS[name], arguments, Where("arguments"))
        outcome = self._player.perform(name, request_id, arguments)
        raises = None
        if outcome.error is not None:
            raises = _recordable(outcome.error)
        before, self._view = self._view, look(self._player.manager)
        self.operations.append(
            Operation(
                index=len(self.operations),
                name=name,
                request_id=request_id,
                arguments=arguments,
                observed=observed(self._view, before, is_small=self.header.is_small),
                result=outcome.result,
                raises=raises,
                message=None if outcome.error is None else str(outcome.error),
            )
        )
        return outcome.result

    @property
    def snapshot(self) -> Snapshot:
        return self._view.snapshot

    def coverage(self) -> Mapping[str, int]:
        """Count how often each operation was played, for the footer."""
        return dict(sorted(Counter(f"op:{op.name}" for op in self.operations).items()))

    def write(self, path: Path) -> Footer:
        return write_trace(path, self.header, self.operations, self.coverage())


def write_finding(
    path: Path,
    implementation: Implementation,
    config: ManagerConfig,
    operations: Iterable[tuple[str, str | None, Mapping[str, Any]]],
    finding: Finding,
) -> None:
    """Record what the implementation does, up to the operation that shows the finding.

    Raises FormatError for what no record may hold, such as a negative count, and whatever the
    implementation raises.
    """
    scenario = f"violation of {finding.rule}"
    recorder = Recorder(implementation, config, scenario=scenario, check_invariants=False)
    for name, request, arguments in operations:
        recorder.play(name, request, **arguments)
    last = replace(recorder.operations[-1], finding=finding)
    header = replace(recorder.header, version=START_VERSION)
    write_trace(path, header, [*recorder.operations[:-1], last], recorder.coverage())
    for _ in read_trace(path):
        pass


def _recordable(error: Exception) -> str:
    """Return the name under which records show this error; raise it again if there is none."""
    for name, cls in BUILTIN_ERRORS.items():
        if isinstance(error, cls):
            return name
    raise error
