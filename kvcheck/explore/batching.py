"""A whole engine step performed: handles for the requests, memory for what it writes."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Any

from kvcheck.play.player import Outcome, Player
from kvspec.batched import StepOutput, StepPlan, StepResult
from kvspec.config import ManagerConfig
from kvspec.interface import Implementation
from kvspec.sequential import batched_of
from kvspec.specs import CrossAttentionSpec, EncoderOnlyAttentionSpec, MambaSpec

WITHOUT_SLOTS = (MambaSpec, CrossAttentionSpec, EncoderOnlyAttentionSpec)
"""Groups that have no slot mapping (KV-BATCH-9)."""


def batched_step(
    implementation: Implementation, player: Player, given: Mapping[str, Any]
) -> Outcome:
    """The step with the fields of `given`; requests are registered for it, by their names.

    So nothing of them is reported before (KV-BATCH-10): the rows are the whole lists.
    """
    try:
        batched = batched_of(implementation, player.manager)
        requests = sorted(player.requests.items())
        handles = {name: batched.register(request) for name, request in requests}
        named = {
            field: [handles[name] for name in given.get(field, ())]
            for field in ("finished", "preempted", "decoding", "new")
        }
        output = Output(player.manager.config, len(handles))
        result = batched.step(StepPlan(**{**given, **named}), output.given)
        told = {
            name: [request.num_computed_tokens, str(request.status), request.num_preemptions]
            for name, request in requests
        }
        return Outcome({**output.answer(result), "requests": told})
    except Exception as error:  # whatever an implementation does is its answer
        return Outcome(error=error)


class Output:
    """Memory for the slots and rows of a step."""

    def __init__(self, config: ManagerConfig, num_requests: int) -> None:
        specs = config.managed_specs
        num_tokens = num_requests * config.max_model_len_tokens
        num_rows = num_requests * len(specs) * (config.max_model_len_tokens + ROOM)
        rows = memoryview(array("i", bytes(16 * num_rows))).cast("B")
        self.rows = rows.cast("i", (num_rows, 4))
        self.slots = [
            None if isinstance(spec, WITHOUT_SLOTS) else array("q", bytes(8 * num_tokens))
            for spec in specs
        ]
        self.given = StepOutput(self.rows, self.slots)

    def answer(self, result: StepResult) -> dict[str, Any]:
        """What the step granted and wrote."""
        return {
            "num_scheduled_tokens": list(result.num_scheduled_tokens),
            "hit_tokens": list(result.hit_tokens),
            "slots": [
                None if each is None else list(each[: result.num_slots]) for each in self.slots
            ],
            "rows": self.rows.tolist()[: result.num_deltas],
            "num_rows_left": result.num_deltas_left,
        }


ROOM = 4
"""Entries of a list beyond one for each token: lookahead, speculative blocks."""
