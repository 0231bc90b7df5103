"""Expected hash counts, queue order and statistics, for any groups.

All are computed from the snapshots before and after an operation, under the default policy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import chain
from types import MappingProxyType

from kvcheck.judge.oracles import expect_equal, queue_after_release
from kvcheck.play.runner import Performed, Runner, Tracked
from kvcheck.play.state import View
from kvspec.event_codec import encode_stats
from kvspec.stats import PrefixCacheStats


class AccountCheck:
    """Keep the accounts of one run and compare each operation with them."""

    def __init__(self) -> None:
        self.stats = PrefixCacheStats()

    def after_operation(self, runner: Runner, done: Performed) -> None:
        """Check the operation's own account, and that free and used blocks add up to all blocks."""
        account = ACCOUNTS.get(done.name)
        if account is not None and done.outcome.error is None:
            account(self, runner, done)
        counts = done.after.snapshot.ref_counts
        total = runner.config.kv_cache.num_blocks - 1
        free = total - sum(1 for count in counts if count > 0)
        expect_equal("KV-POOL-15", "free blocks", free, done.after.num_free_blocks)
        usage = 1.0 - free / total if total else 0.0
        expect_equal("KV-POOL-12", "usage", usage, done.after.usage)

    def after_step(self, runner: Runner) -> None:
        """Check that all blocks are free once no request holds any."""
        if runner.subject.popped or any(request.seat.holds_blocks for request in runner.requests):
            return
        total = runner.config.kv_cache.num_blocks - 1
        whole = total - len(runner.view.snapshot.reserved_blocks)
        expect_equal("KV-POOL-15", "free once idle", whole, runner.view.num_free_blocks)

    def new_request(self, runner: Runner, done: Performed) -> None:
        """Check that the prompt has one hash per full block."""
        self._count_hashes(
            runner,
            len(done.arguments["prompt_token_ids"]),
            len(done.outcome.result["block_hashes"]),
        )

    def append_tokens(self, runner: Runner, done: Performed) -> None:
        """Check the same count after the request grew."""
        result = done.outcome.result
        self._count_hashes(runner, result["num_tokens"], result["num_block_hashes"])

    def _count_hashes(self, runner: Runner, num_tokens: int, num_hashes: int) -> None:
        size = runner.config.hash_block_size_tokens or 1
        hashed = max(0, num_tokens - runner.config.hash_lookahead_tokens)
        expected = hashed // size if runner.config.enable_caching else 0
        expect_equal("KV-HASH-4", f"hashes of {num_tokens} tokens", expected, num_hashes)

    def get_computed_blocks(self, runner: Runner, done: Performed) -> None:
        """Count the look-up, unless it reads nothing."""
        request = done.request
        if request is None or request.arrival.skip_reading or not runner.config.enable_caching:
            return
        if runner.config.policy.lookups_counted == "asked":  # KV-POL-18
            self._count_lookup(request, done.outcome.result["num_computed_tokens"])

    def record_prefix_cache_stats(self, runner: Runner, done: Performed) -> None:
        """Count the look-up of an admitted request, where that is chosen (KV-POL-18)."""
        request, config = done.request, runner.config
        if request is None or request.arrival.skip_reading or not config.enable_caching:
            return
        if config.policy.lookups_counted == "admitted":
            self._count_lookup(request, done.arguments["num_hits"])

    def _count_lookup(self, request: Tracked, num_hits: int) -> None:
        prefix = "preempted_" if request.num_preemptions else ""
        counted = {
            "requests": 1,
            "queries_tokens": len(request.seat.tokens),
            "hits_tokens": num_hits,
        }
        self.stats = replace(
            self.stats,
            **{
                prefix + name: getattr(self.stats, prefix + name) + more
                for name, more in counted.items()
            },
        )

    def make_prefix_cache_stats(self, runner: Runner, done: Performed) -> None:
        """Compare the statistics with the look-ups counted since the last call."""
        expected = encode_stats(self.stats) if runner.config.log_stats else None
        expect_equal("KV-STAT-1", "statistics", expected, done.outcome.result)
        self.stats = PrefixCacheStats()

    def reset_prefix_cache(self, runner: Runner, done: Performed) -> None:
        """Check that only an idle pool is reset, and that no key remains."""
        whole = runner.config.kv_cache.num_blocks - 1 - len(done.before.snapshot.reserved_blocks)
        idle = done.before.num_free_blocks == whole
        expect_equal("KV-POOL-11", "reset succeeds", idle, done.outcome.result)
        if idle:
            left = dict(done.after.snapshot.lookup_order)
            expect_equal("KV-POOL-11", "keys after a reset", {}, left)
            self.stats = replace(self.stats, reset=True)

    def allocate_slots(self, runner: Runner, done: Performed) -> None:
        """Check that a refused request without blocks had none that could have been released."""
        if done.outcome.result is not None or done.request is None:
            return
        before = done.before.snapshot
        if done.request.name not in before.requests:
            rule = "KV-MGR-5" if done.arguments.get("full_sequence_must_fit") else "KV-MGR-7"
            expect_equal(rule, "state after a refusal", before, done.after.snapshot)

    def free(self, runner: Runner, done: Performed) -> None:
        """Check for one release call per group, each list in reverse order."""
        lists = _lists(done)
        expected = queue_after_release(done.before.snapshot, [blocks[::-1] for blocks in lists])
        _expect_queue("KV-POOL-7", done.after, expected)

    def pop_blocks_for_free(self, runner: Runner, done: Performed) -> None:
        """Check that the lists are popped one after another and the queue is unchanged."""
        popped = list(chain.from_iterable(_lists(done)))
        expect_equal("KV-MGR-13", "popped blocks", popped, done.outcome.result)
        _expect_queue("KV-MGR-13", done.after, done.before.snapshot.free_queue)

    def free_blocks(self, runner: Runner, done: Performed) -> None:
        """Check for a single release call."""
        expected = queue_after_release(done.before.snapshot, [done.arguments["block_ids"]])
        _expect_queue("KV-POOL-6", done.after, expected)

    def evict_blocks(self, runner: Runner, done: Performed) -> None:
        """Check that the blocks have no keys and the queue is unchanged."""
        keys = done.after.snapshot.block_keys
        left = [key for block in done.arguments["block_ids"] for key in keys[block]]
        expect_equal("KV-POOL-10", "keys of evicted blocks", [], left)
        _expect_queue("KV-POOL-10", done.after, done.before.snapshot.free_queue)

    def withdraw(self, runner: Runner, done: Performed) -> None:
        """Check that incomplete blocks have no key, and that their holders are named."""
        tokens, after = done.arguments["num_computed_tokens"], done.after.snapshot
        behind = [
            block
            for blocks, size in zip(_lists(done), runner.block_sizes, strict=True)
            for place, block in enumerate(blocks)
            if block and (place + 1) * size > tokens
        ]
        left = [key for block in behind for key in after.block_keys[block]]
        expect_equal("KV-MGR-23", "keys of what is withdrawn", [], left)
        others = [
            name
            for name, state in after.requests.items()
            if name != getattr(done.request, "name", None)
            and any(block in behind for blocks in state.block_ids for block in blocks)
        ]
        expect_equal("KV-MGR-23", "its holders", sorted(others), done.outcome.result)
        _expect_queue("KV-MGR-23", done.after, done.before.snapshot.free_queue)


def _lists(done: Performed) -> tuple[tuple[int, ...], ...]:
    """Return the blocks that the request held before the operation."""
    state = None if done.request is None else done.before.snapshot.requests.get(done.request.name)
    return () if state is None else state.block_ids


def _expect_queue(rule: str, after: View, expected: tuple[int, ...]) -> None:
    expect_equal(rule, "free queue", expected, after.snapshot.free_queue)


ACCOUNTS: Mapping[str, Callable[[AccountCheck, Runner, Performed], None]] = MappingProxyType(
    {
        "new_request": AccountCheck.new_request,
        "append_tokens": AccountCheck.append_tokens,
        "get_computed_blocks": AccountCheck.get_computed_blocks,
        "make_prefix_cache_stats": AccountCheck.make_prefix_cache_stats,
        "record_prefix_cache_stats": AccountCheck.record_prefix_cache_stats,
        "reset_prefix_cache": AccountCheck.reset_prefix_cache,
        "allocate_slots": AccountCheck.allocate_slots,
        "free": AccountCheck.free,
        "pop_blocks_for_free": AccountCheck.pop_blocks_for_free,
        "free_blocks": AccountCheck.free_blocks,
        "evict_blocks": AccountCheck.evict_blocks,
        "withdraw": AccountCheck.withdraw,
    }
)
"""The account of each operation that has one."""
