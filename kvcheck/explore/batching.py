"""Perform a whole engine step: handles for the requests, memory for its outputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvcheck.play.player import Outcome, Player
from kvcheck.rules.batch_sides import Outputs
from kvcheck.rules.random_batches import WITHOUT_SLOTS
from kvspec.batched import StepPlan, StepResult
from kvspec.config import ManagerConfig
from kvspec.interface import Implementation
from kvspec.sequential import batched_of


def batched_step(
    implementation: Implementation, player: Player, given: Mapping[str, Any]
) -> Outcome:
    """Make the step with the fields of `given`; register requests for it, by their names.

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
        output = outputs(player.manager.config, len(handles))
        result = batched.step(StepPlan(**{**given, **named}), output.given)
        told = {
            name: [request.num_computed_tokens, str(request.status), request.num_preemptions]
            for name, request in requests
        }
        return Outcome({**answer(output, result), "requests": told})
    except Exception as error:  # whatever an implementation does is its result
        return Outcome(error=error)


def outputs(config: ManagerConfig, num_requests: int) -> Outputs:
    num_tokens = num_requests * config.max_model_len_tokens
    num_rows = num_requests * len(config.managed_specs) * (config.max_model_len_tokens + ROOM)
    lengths = [
        None if isinstance(spec, WITHOUT_SLOTS) else num_tokens for spec in config.managed_specs
    ]
    return Outputs(num_rows, lengths)


def answer(output: Outputs, result: StepResult) -> dict[str, Any]:
    slots = [
        None if each is None else list(each[: result.num_slots]) for each in output.slots or ()
    ]
    return {
        "num_scheduled_tokens": list(result.num_scheduled_tokens),
        "hit_tokens": list(result.hit_tokens),
        "slots": slots,
        "rows": [list(output.row(number)) for number in range(result.num_deltas)],
        "num_rows_left": result.num_deltas_left,
    }


ROOM = 4
"""Entries of a list beyond one for each token: lookahead, speculative blocks."""
