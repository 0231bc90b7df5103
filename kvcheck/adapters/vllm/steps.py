"""Obligations of vLLM 0.33's scheduler from one step to the next: tokens in flight, and copies.

They are checked from outside, by its plans and the members of its requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Require = Callable[[str, "str | None"], None]
"""A call, and what is wrong with it in words, or None."""


@dataclass
class InFlight:
    """A request's tokens whose output was not processed, by what was planned.

    `plans`: for each step of it that is under way how often it had been preempted.
    """

    request: Any
    num_tokens: int = 0
    plans: list[int] = field(default_factory=list)


@dataclass
class Steps:
    """The steps of a scheduler; those without tokens are not counted.

    `waits`: whether blocks that a step may write to are freed only after its output. `retained`:
    references held for copies, and the step that makes them.
    """

    require: Require
    waits: bool = False
    in_flight: dict[str, InFlight] = field(default_factory=dict)
    copies: tuple[tuple[int, int], ...] | None = None
    retained: list[tuple[tuple[int, ...], int]] = field(default_factory=list)
    num_planned: int = 0
    num_outputs: int = 0

    def starts(self) -> None:
        self.copies = None

    def allocates(self, call: str, request: Any) -> None:
        """Check the request's tokens in flight when slots are allocated."""
        self._counted(call, request)
        if self.copies is not None:
            self.require(call, "slots after the copies of the step were taken")

    def copied(self, pairs: tuple[tuple[int, int], ...], retained: tuple[int, ...]) -> None:
        if self.copies is not None:
            self.require("take_kv_cache_block_copies", "the copies of a step for the second time")
        self.copies = pairs
        if retained:
            self.retained.append((retained, self.num_planned + 1))

    def returns(self, blocks: Sequence[int]) -> None:
        """Check whether returned references are those of a copy."""
        found = next((each for each in self.retained if each[0] == tuple(blocks)), None)
        if found is not None:
            self.retained.remove(found)
            if self.waits and found[1] > self.num_outputs:
                self.require("free_blocks", "blocks back that a copy under way still needs")

    def planned(self, plan: Any, requests: Mapping[str, Any], *, copies_wait: bool) -> None:
        """Note a planned step: its tokens are in flight, and its plan lists its copies."""
        told = tuple((c.src_block_id, c.dst_block_id) for c in plan.kv_cache_block_copies or ())
        if copies_wait or told != (self.copies or ()):
            self.require("schedule", "a step without the copies that its allocations want")
        if not self.waits:
            self._kept("schedule")
        self.num_planned += bool(plan.num_scheduled_tokens)
        for name, num_tokens in plan.num_scheduled_tokens.items():
            request = requests[name]
            known = self.in_flight.get(name)
            if known is None or known.request is not request:
                known = self.in_flight[name] = InFlight(request)
            known.num_tokens += num_tokens
            known.plans.append(request.num_preemptions)
            self._counted("schedule", request)

    def outputs(self, plan: Any) -> dict[str, int]:
        """Return the computed tokens of requests preempted since the step, before its output.

        Sessions are excluded: they return to where they can continue.
        """
        found = {}
        self.num_outputs += bool(plan.num_scheduled_tokens)
        for name, known in self._of(plan):
            is_stale = known.request.num_preemptions > known.plans[0]
            if is_stale and not known.request.resumable:
                found[name] = known.request.num_computed_tokens
        return found

    def processed(self, plan: Any, stale: Mapping[str, int]) -> None:
        """Check the requests after an output was processed. `stale`: the result of `outputs`."""
        self._kept("update_from_output")
        for name, known in list(self._of(plan)):
            request = known.request
            known.num_tokens -= plan.num_scheduled_tokens[name]
            known.plans.pop(0)
            if request.is_finished():
                if not known.plans:
                    del self.in_flight[name]
                continue
            self._counted("update_from_output", request)
            processed = request.num_computed_tokens - request.num_in_flight_tokens
            if processed > request.num_tokens:
                said = f"{processed} tokens as computed, of which {request.num_tokens} are final"
                self.require("update_from_output", said)
            if name in stale and request.num_computed_tokens != stale[name]:
                said = f"{request.num_computed_tokens} computed tokens in place of {stale[name]}"
                self.require("update_from_output", f"{said}, after output from before a preemption")

    def _kept(self, call: str) -> None:
        """Check that references held for copies are returned once the copies are made."""
        done = self.num_outputs if self.waits else self.num_planned + 1
        if any(step <= done for _, step in self.retained):
            self.require(call, "blocks that are held for copies of a step that is over")

    def _of(self, plan: Any) -> Iterator[tuple[str, InFlight]]:
        for name in plan.num_scheduled_tokens:
            if name in self.in_flight and self.in_flight[name].plans:
                yield name, self.in_flight[name]

    def _counted(self, call: str, request: Any) -> None:
        """Check that the tokens in flight are those planned and not processed."""
        known = self.in_flight.get(request.request_id)
        planned = known.num_tokens if known is not None and known.request is request else 0
        told = request.num_in_flight_tokens
        if told != planned:
            said = f"{told} tokens in flight, and {planned} were planned and not processed"
            self.require(f"{call} of {request.request_id}", said)
