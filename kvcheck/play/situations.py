"""Situations that a run really reached: a run without an eviction has checked none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from kvcheck.play.runner import Check, Performed, Runner
from kvspec.blocks import NULL_BLOCK

SITUATIONS: Mapping[str, str] = {
    "refusal": "an allocation was refused",
    "gate refusal": "a step would have fitted, but not the whole sequence",
    "watermark refusal": "an allocation would have fitted but for the watermark",
    "state too new": "a hit was refused whose state is computed in this step",
    "removal at refusal": "a refused allocation released what fell out of a window",
    "pool full": "no block was free",
    "freed for another": "a refused request was served after another gave way",
    "hit": "a look-up found something",
    "shared block": "a hit took a block that another request holds",
    "revived block": "a hit took a block out of the free queue",
    "eviction": "an allocation took a block that was cached",
    "duplicates": "two blocks carried the same key",
    "several groups": "a hit was common to several groups",
    "resumed with a hit": "a preempted request found part of its own prefix",
    "resumed in part": "… and part of it was gone",
    "null in a hit": "a hit left out blocks that attention does not need",
    "window passed": "blocks fell out of a window while the request ran",
    "chunk passed": "a chunk was over while the request ran",
    "null gap": "null stood behind a block in a list",
    "align move": "a drafted state moved within its list",
    "masked block": "a full block was not worth caching",
    "groups disagreed": "some group's own hit was longer than the common one",
    "eagle drop": "a look-up gave up what is recomputed for drafting",
    "external tokens": "tokens came from another store",
    "load behind a hit": "… after a hit, and before new tokens",
    "hits of unequal length": "… and filled up what the hit of some group lacked",
    "late registration": "a load was registered after it arrived",
    "failed load": "a load turned out void, and its blocks were evicted",
    "failed load of several": "… and requests that had hit them were withdrawn",
    "withdrawal": "a planned part of a step did not run",
    "accepted drafts": "drafts became tokens",
    "rejected drafts": "drafts were computed and then others in their place",
    "partial entry": "a boundary inside a block was registered",
    "deferred free": "blocks were popped and returned later",
    "evicted by id": "a cached identity was dropped by block id",
    "reset": "the cache was reset",
    "reset refused": "a reset found blocks in use",
}
"""Name -> what happened."""


class SituationCounter(Check):
    """Counts situations; a check that never fails."""

    def __init__(self, counts: Counter[str]) -> None:
        self.counts = counts
        self.ends: dict[str, int] = {}
        self.refused: str | None = None
        self.gave_way = False

    def after_operation(self, runner: Runner, done: Performed) -> None:
        """Count the situations that this operation is an instance of."""
        if done.outcome.error is not None:
            return
        seen: Mapping[str, Callable[[Runner, Performed], None]] = {
            "allocate_slots": self._allocation,
            "get_computed_blocks": self._look_up,
            "append_tokens": self._append,
            "free": self._free,
            "withdraw": self._withdrawal,
        }
        named = {
            "cache_blocks": "late registration",
            "free_blocks": "deferred free",
            "evict_blocks": "failed load" if done.lost else "evicted by id",
            "reset_prefix_cache": "reset" if done.outcome.result else "reset refused",
            "cache_partial_block": "partial entry" if done.outcome.result else None,
        }
        if done.name in seen:
            seen[done.name](runner, done)
        elif (name := named.get(done.name)) is not None:
            self._count(name)
        if done.after.dup_order:
            self._count("duplicates")
        if not done.after.num_free_blocks:
            self._count("pool full")

    def _count(self, name: str) -> None:
        self.counts[name] += 1

    def _withdrawal(self, runner: Runner, done: Performed) -> None:
        if not done.lost:
            self._count("withdrawal")
        elif done.outcome.result:
            self._count("failed load of several")

    def _free(self, runner: Runner, done: Performed) -> None:
        if done.request is not None:
            self.ends.pop(done.request.name, None)
            self.gave_way |= done.request.name != self.refused

    def _look_up(self, runner: Runner, done: Performed) -> None:
        hit, request = done.outcome.result, done.request
        if not hit["num_computed_tokens"] or request is None:
            return
        self._count("hit")
        if hit["num_uncached_common_prefix_tokens"]:
            self._count("groups disagreed")
        if any(block == NULL_BLOCK for blocks in hit["blocks"] for block in blocks):
            self._count("null in a hit")
        groups = runner.config.kv_cache.groups
        if runner.config.use_eagle or any(group.is_eagle_group for group in groups):
            self._count("eagle drop")
        if len(runner.specs) > 1:
            self._count("several groups")

    def _allocation(self, runner: Runner, done: Performed) -> None:
        request = done.request
        if request is None:
            return
        if done.outcome.result is None:
            self._count("refusal")
            self.refused, self.gave_way = request.name, False
            for name in refusals(runner, done):
                self._count(name)
            return
        if self.refused == request.name and self.gave_way:
            self._count("freed for another")
            self.refused = None
        self._taken(done)
        start = done.arguments["num_computed_tokens"]
        if start < self.ends.get(request.name, 0):
            self._count("rejected drafts")
        hit = done.arguments.get("num_new_computed_tokens", 0)
        external = done.arguments.get("num_external_computed_tokens", 0)
        if external:
            self._count("external tokens")
            if hit and done.arguments["num_new_tokens"]:
                self._count("load behind a hit")
            found = zip(
                done.arguments.get("new_computed_blocks") or (), runner.block_sizes, strict=False
            )
            if any(len(blocks) * size < hit for blocks, size in found):
                self._count("hits of unequal length")
        self.ends[request.name] = start + hit + external + done.arguments["num_new_tokens"]
        self._lists(runner, done, request.name)

    def _taken(self, done: Performed) -> None:
        """Count situations of hits, and of cached blocks that were taken."""
        before, after, request = done.before.snapshot, done.after.snapshot, done.request
        hits = [b for blocks in done.arguments.get("new_computed_blocks") or () for b in blocks]
        taken = [block for block in hits if block != NULL_BLOCK]
        if any(before.ref_counts[block] for block in taken):
            self._count("shared block")
        if any(not before.ref_counts[block] for block in taken):
            self._count("revived block")
        if taken and request is not None and request.num_preemptions:
            self._count("resumed with a hit")
            if done.arguments["num_new_computed_tokens"] < request.num_lost:
                self._count("resumed in part")
        if any(key not in after.lookup_order for key in before.lookup_order):
            self._count("eviction")

    def _lists(self, runner: Runner, done: Performed, name: str) -> None:
        new = done.after.snapshot.requests.get(name)
        if new is None:
            return
        keys = done.after.snapshot.block_keys
        for blocks, count in zip(new.block_ids, new.num_cached_blocks, strict=True):
            if any(b != NULL_BLOCK and not keys[b] for b in blocks[: count or 0]):
                self._count("masked block")
            if any(blocks[i] and not blocks[i + 1] for i in range(len(blocks) - 1)):
                self._count("null gap")
        old = done.before.snapshot.requests.get(name)
        if old is None:
            return
        for spec, was, now in zip(runner.specs, old.block_ids, new.block_ids, strict=True):
            gone = [
                b for b, c in zip(was, now, strict=False) if b != NULL_BLOCK and c == NULL_BLOCK
            ]
            if gone:
                self._count("window passed")
                if spec.chunk_tokens:
                    self._count("chunk passed")
            if any(block in now for block in gone):
                self._count("align move")

    def _append(self, runner: Runner, done: Performed) -> None:
        request = done.request
        if request is not None and request.seat.num_computed == len(request.seat.tokens) - 1:
            self._count("accepted drafts")


def missed(counts: Counter[str]) -> tuple[str, ...]:
    return tuple(name for name in SITUATIONS if not counts[name])


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
