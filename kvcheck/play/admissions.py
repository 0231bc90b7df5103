"""Reasons for a refused allocation, as far as they can be observed from outside."""

from __future__ import annotations

from collections.abc import Iterator

from kvcheck.play.runner import Performed, Runner


def refusals(runner: Runner, done: Performed) -> Iterator[str]:
    """Yield the situations that a refused allocation was."""
    if done.before.snapshot.requests != done.after.snapshot.requests:
        yield "removal at refusal"
    asked = done.arguments
    start = asked["num_computed_tokens"] + asked.get("num_new_computed_tokens", 0)
    start += asked.get("num_external_computed_tokens", 0)
    slots = start + asked["num_new_tokens"] + asked.get("num_lookahead_tokens", 0)
    free = done.before.num_free_blocks - asked.get("reserved_blocks", 0)
    if _at_most(runner, slots, asked.get("num_encoder_tokens", 0)) > free:
        return  # there may simply have been no room
    if any(spec.is_state for spec in runner.specs) and asked.get("num_new_computed_tokens"):
        yield "state too new"
    elif asked.get("full_sequence_must_fit"):
        yield "gate refusal"
    elif asked.get("has_scheduled_reqs", True) and asked["status"] != "RUNNING":
        yield "watermark refusal"


def _at_most(runner: Runner, num_slots: int, num_encoder_tokens: int) -> int:
    """Return an upper bound on the blocks for these slots, drafted states included."""
    needed = 0
    for spec, size in zip(runner.specs, runner.block_sizes, strict=True):
        tokens = max(num_slots, num_encoder_tokens)
        drafted = spec.num_speculative_blocks
        needed += -(-tokens // size) + drafted
    return needed
