"""What an allocation in a single group of full attention takes, by arithmetic."""

from __future__ import annotations

from collections.abc import Sequence

from kvcheck.judge.oracles import blocks_needed, expect_equal, queue_after_allocation
from kvcheck.play.runner import Performed, Runner, Tracked


class SingleGroupCheck:
    """Whether there is room, which blocks are taken, and what is left of the queue.

    From the snapshots around the operation, for one full-attention group under the default policy.
    """

    def after_operation(self, runner: Runner, done: Performed) -> None:
        """Work out every allocation that is not an error."""
        request = done.request
        if done.name != "allocate_slots" or request is None or done.outcome.error is not None:
            return
        state = done.before.snapshot.requests.get(request.name)
        held = 0 if state is None else len(state.block_ids[0])
        (hit,) = done.arguments.get("new_computed_blocks") or ([],)
        fits = _fits(runner, done, request, held, hit)
        expect_equal("KV-MGR-7", "there is room", fits, done.outcome.result is not None)
        if fits:
            _expect_taken(done, request, held, hit)

    def after_step(self, runner: Runner) -> None:
        """Allocations are operations."""


def _fits(runner: Runner, done: Performed, request: Tracked, held: int, hit: Sequence[int]) -> bool:
    """Whether the need, and that of the whole sequence where it counts, is free (KV-MGR-5, -7)."""
    arguments, config, before = done.arguments, runner.config, done.before.snapshot
    size = config.scheduler_block_size_tokens or 1
    most = config.max_model_len_tokens
    total = (
        arguments["num_computed_tokens"]
        + len(hit) * size
        + arguments.get("num_external_computed_tokens", 0)
    )
    ahead = arguments["num_new_tokens"] + arguments.get("num_lookahead_tokens", 0)
    need = blocks_needed(before, held, hit, min(min(total, most) + ahead, most), size)
    free = len(before.free_queue)
    watermark = 0
    if arguments.get("has_scheduled_reqs", True) and arguments["status"] != "RUNNING":
        watermark = int(config.watermark * config.kv_cache.num_blocks)
    if need + watermark > free - arguments.get("reserved_blocks", 0):
        return False
    if not arguments.get("full_sequence_must_fit", False):
        return True
    whole = blocks_needed(before, held, hit, min(len(request.seat.tokens), most), size)
    return whole + watermark <= free


def _expect_taken(done: Performed, request: Tracked, held: int, hit: Sequence[int]) -> None:
    """The blocks come from the front of the queue, and the list is held + hit + taken."""
    after = done.after.snapshot
    (blocks,) = after.requests[request.name].block_ids
    own = list(blocks[held + len(hit) :])
    taken, queue = queue_after_allocation(done.before.snapshot, hit, len(own))
    expect_equal("KV-POOL-3", "free queue after the allocation", queue, after.free_queue)
    expect_equal("KV-POOL-3", "blocks taken", list(taken), own)
    (new,) = done.outcome.result
    expect_equal("KV-MGR-3", "blocks returned", list(blocks[len(blocks) - len(new) :]), new)
