"""A record as a script: the calls without their results, so that it can be changed.

Some results are arguments of later calls: the hit of a look-up, the blocks of a deferred free. In a
script they are links to the call that gave them, so that the script can be run again, with fewer
calls or on another implementation, and every expectation is computed again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kvcheck.play.recorder import Recorder
from kvspec.config import ManagerConfig
from kvspec.errors import FormatError
from kvspec.interface import Implementation
from kvspec.operations import LOOK_UPS
from kvspec.record import Operation


@dataclass(frozen=True)
class Call:
    """One call. `number` is its name: the index that it had in the record.

    `raises`: the error that it must end with. `takes_hit`: the look-up whose last hit it is given.
    `returns`: the (call, position) that gave each of its `block_ids`, where one did.
    """

    number: int
    name: str
    request_id: str | None
    arguments: Mapping[str, Any]
    raises: str | None = None
    takes_hit: str | None = None
    returns: tuple[tuple[int, int], ...] = ()

    @property
    def bounds(self) -> tuple[int, int, int]:
        """Ends of computed tokens, of external tokens and of all slots in an allocation.

        Computed tokens exclude the hit, which may change.
        """
        computed = self.arguments["num_computed_tokens"]
        hit = self.arguments.get("num_new_computed_tokens", 0)
        loaded = computed + hit + self.arguments.get("num_external_computed_tokens", 0)
        return computed, loaded, loaded + self.arguments["num_new_tokens"]


@dataclass(frozen=True)
class Script:
    config: ManagerConfig
    calls: tuple[Call, ...]

    @property
    def request_ids(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(c.request_id for c in self.calls if c.request_id is not None))

    @property
    def num_tokens(self) -> int:
        lists = [call.arguments.get("prompt_token_ids", ()) for call in self.calls]
        lists += [call.arguments.get("token_ids", ()) for call in self.calls]
        return sum(map(len, lists))


def script_of(config: ManagerConfig, operations: Iterable[Operation]) -> Script:
    hits: dict[str | None, tuple[str, Any]] = {}
    popped: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    calls = []
    for operation in operations:
        name, arguments, result = operation.name, operation.arguments, operation.result
        call = Call(operation.index, name, operation.request_id, arguments, operation.raises)
        if name in LOOK_UPS and result is not None:
            hits[operation.request_id] = (name, result["blocks"])
        elif name == "allocate_slots" and operation.raises is None:
            hit = arguments.get("new_computed_blocks")
            look_up, found = hits.get(operation.request_id, (None, None))
            call = replace(call, takes_hit=look_up if hit is not None and hit == found else None)
        elif name == "pop_blocks_for_free":
            for position, block in enumerate(result or ()):
                popped[block].append((operation.index, position))
        elif name == "free_blocks" and operation.raises is None:
            known = [block for block in arguments["block_ids"] if popped[block]]
            call = replace(call, returns=tuple(popped[block].pop() for block in known))
        calls.append(call)
    return Script(config, tuple(calls))


@dataclass
class _Performance:
    """One run of a script: the results that later calls use, and the scheduler's promises."""

    recorder: Recorder
    hits: dict[tuple[str | None, str], tuple[Any, int]] = field(default_factory=dict)
    popped: dict[int, Sequence[int]] = field(default_factory=dict)
    granted_tokens: dict[str | None, int] = field(default_factory=dict)

    def arguments(self, call: Call) -> dict[str, Any] | None:
        """Return the arguments with this run's results; None if the call has become meaningless."""
        arguments = dict(call.arguments)
        if call.returns:
            given = [
                self.popped[number][position]
                for number, position in call.returns
                if position < len(self.popped.get(number, ()))
            ]
            return {"block_ids": given} if given else None
        if call.name == "allocate_slots" and call.raises is None:
            return self._of_allocation(call, arguments)
        return arguments

    def _of_allocation(self, call: Call, arguments: dict[str, Any]) -> dict[str, Any] | None:
        computed, loaded, end = call.bounds
        if call.takes_hit is not None:
            blocks, hit = self.hits.get((call.request_id, call.takes_hit), (None, 0))
            arguments["new_computed_blocks"] = blocks if hit else None
            arguments["num_new_computed_tokens"] = hit
        else:
            hit = arguments.get("num_new_computed_tokens", 0)
        external = arguments.get("num_external_computed_tokens", 0) and max(
            loaded - computed - hit, 0
        )
        new = end - computed - hit - external
        if new < 0 or new + external == 0:
            return None
        arguments["num_new_tokens"] = new
        if "num_external_computed_tokens" in arguments:
            arguments["num_external_computed_tokens"] = external
        return arguments

    def keeps_promises(self, call: Call, arguments: Mapping[str, Any]) -> bool:
        """Return whether a scheduler may make the call: computed tokens were granted (KV-REQ-3)."""
        granted = self.granted_tokens.get(call.request_id, 0)
        if call.name in ("allocate_slots", "cache_blocks"):
            return bool(arguments["num_computed_tokens"] <= granted)
        if call.name == "remove_skipped_blocks":
            return bool(arguments["total_computed_tokens"] <= granted)
        return True

    def note(self, call: Call, arguments: Mapping[str, Any], result: Any) -> None:
        if call.name in LOOK_UPS and result is not None:
            lengths = result.get("hit_lengths") or [result["num_computed_tokens"]]
            self.hits[call.request_id, call.name] = (result["blocks"], max(lengths))
        elif call.name == "pop_blocks_for_free":
            self.popped[call.number] = result or ()
        elif call.name == "allocate_slots" and result is not None:
            asked = replace(call, arguments=arguments)
            self.granted_tokens[call.request_id] = asked.bounds[2]
        if call.name in ("free", "pop_blocks_for_free", "new_request"):
            self.granted_tokens[call.request_id] = 0


def perform(script: Script, oracle: Implementation, *, strict: bool = True) -> Recorder | None:
    """Run the script on an oracle and record it; None if it has become another program.

    That is so if a call that was legal raises an error or the other way round, is about a request
    that was not made, has nothing left to ask for, or, with `strict`, breaks a promise of the
    scheduler. Raises the exceptions of creating the manager.
    """
    run = _Performance(Recorder(oracle, script.config, check_invariants=False))
    made = set()
    for call in script.calls:
        arguments = run.arguments(call)
        if arguments is None or (call.request_id is not None and call.name != "new_request"
                                 and call.request_id not in made):  # fmt: skip
            return None
        made.add(call.request_id)
        legal = call.raises is None
        if strict and legal and not run.keeps_promises(call, arguments):
            return None
        try:
            result = run.recorder.play(call.name, call.request_id, **arguments)
        except FormatError:
            return None
        if (run.recorder.operations[-1].raises is None) is not legal:
            return None
        run.note(call, arguments, result)
    return run.recorder
