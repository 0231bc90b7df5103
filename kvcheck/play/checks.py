"""Checks after every operation of a program.

- `ShadowCheck` needs no agreement on policy: shadow memory, conservation, errors without effect.
- `InvariantCheck`: the named invariants over every snapshot and transition.
- `CompareCheck`: the results (level behaviour) and the ids and eviction order (level identity)
  equal those of an oracle.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any

from kvcheck.play.agreement import (
    require_same,
    require_same_copies,
    require_same_events,
    require_same_outcome,
    require_same_view,
    rule_of,
)
from kvcheck.play.outside import check_from_outside
from kvcheck.play.runner import Check, Performed, Runner, Tracked
from kvcheck.play.scheduler import RUNNING
from kvcheck.play.shadow.claims import Claims
from kvcheck.play.shadow.content import Content
from kvcheck.play.shadow.content_check import ContentCheck
from kvcheck.play.shadow.event_fold import EventFold
from kvspec.errors import InvariantViolation
from kvspec.inside import hash_block_size
from kvspec.interface import Feature
from kvspec.invariants import check_snapshot
from kvspec.transitions import Transition, check_transition


class ShadowCheck(Check):
    """Check content: whatever attention reads is present and is what was written.

    `awaited`: loads that have not arrived, as the arguments of their allocations.
    """

    def __init__(self, runner: Runner) -> None:
        self.check = ContentCheck(runner.config, inside=runner.ends_inside)
        self.claims: Claims | None = None
        if runner.ends_inside and Feature.SNAPSHOT in runner.subject.features:
            self.claims = Claims(self.check, hash_block_size(runner.config))
        self.contents: dict[str, Content] = {}
        self.awaited: dict[str, Mapping[str, Any]] = {}

    def after_operation(self, runner: Runner, done: Performed) -> None:
        """Read hits back, write what was granted, and check that errors change nothing."""
        self._after_operation(runner, done)
        if self.claims is not None:
            if done.request is not None:
                hashes = runner.subject.player.requests[done.request.name].block_hashes
                self.claims.learn(self._content(done.request), hashes)
            self.claims.read(done.after.snapshot, done.name)

    def _after_operation(self, runner: Runner, done: Performed) -> None:
        if done.outcome.error is not None:
            return
        if done.name == "get_computed_blocks" and done.request is not None:
            hit = done.outcome.result
            content = self._content(done.request)
            name, length = done.request.name, hit["num_computed_tokens"]
            h = hash_block_size(runner.config) if runner.ends_inside else 1
            if length % h:
                detail = f"a hit of {length} tokens, no multiple of {h}"
                raise InvariantViolation("hits_end_at_hashes", "KV-INSIDE-1", detail)
            self.check.read_hit(name, content, hit["blocks"], length)
        elif done.name == "find_longest_cache_hit_per_group" and done.request is not None:
            self._read_hits(done.request, done.outcome.result)
        elif done.name == "allocate_slots" and done.request is not None:
            if done.copies is not None:
                num_blocks = runner.config.kv_cache.num_blocks
                self.check.copy(done.copies["pairs"], done.copies["retained"], num_blocks)
            if done.outcome.result is not None:
                self._write_granted(runner, done.request, done.arguments)
        elif done.name == "reset_prefix_cache":
            self._expect_idle(runner, done)
        elif done.name == "cache_blocks" and done.request is not None:
            self._arrive(runner, done.request)
        elif done.name in ("free", "pop_blocks_for_free") and done.request is not None:
            self.awaited.pop(done.request.name, None)
            self.check.release(done.request.name)
        elif done.name == "new_step_starts":
            self.check.new_step_starts()
        elif done.name == "evict_blocks":
            self._lose(runner, done.lost)
        elif done.name == "withdraw" and done.request is not None:
            lists = runner.subject.blocks(done.request)
            self.check.withdraw(lists, done.arguments["num_computed_tokens"])
        elif done.name == "append_tokens" and done.request is not None:
            self._accept_drafts(runner, done.request, done.arguments["token_ids"])
        elif done.name == "follow" and done.request is not None:
            self.contents.pop(done.request.name, None)  # retold

    def after_step(self, runner: Runner) -> None:
        for request in runner.requests:
            if request.seat.phase == RUNNING:
                name, lists = request.name, runner.subject.blocks(request)
                content, length = self._content(request), request.seat.num_computed
                what = f"held of {name}"
                self.check.read_held(name, what, content, lists, length, "KV-HASH-1")

    def _content(self, request: Tracked) -> Content:
        if request.name not in self.contents:
            root = repr((request.arrival.salt, request.arrival.lora)).encode()
            self.contents[request.name] = Content(root)
        content = self.contents[request.name]
        content.num_prompt = len(request.arrival.prompt)
        known = len(content.tokens)
        content.tokens.extend(identities(request, known, request.seat.tokens[known:]))
        return content

    def _expect_idle(self, runner: Runner, done: Performed) -> None:
        """Check that a reset succeeds only with no block in use, and leaves no key (KV-POOL-11)."""
        before = done.before.snapshot
        in_use = any(before.ref_counts) and set(before.reserved_blocks) != {
            block for block, count in enumerate(before.ref_counts) if count
        }
        if done.outcome.result is in_use:
            state = "in use" if in_use else "idle"
            raise InvariantViolation(
                "reset_only_when_idle", "KV-POOL-11", f"a reset of a pool that is {state}"
            )
        if done.outcome.result and done.after.snapshot.lookup_order:
            raise InvariantViolation(
                "reset_leaves_no_key", "KV-POOL-11", "keys are left after a reset"
            )

    def _write_granted(
        self, runner: Runner, request: Tracked, arguments: Mapping[str, Any]
    ) -> None:
        """Write external and new tokens, but not a load that arrives later."""
        external = arguments.get("num_external_computed_tokens", 0)
        self._write(runner, request, arguments, arguments["num_new_tokens"])
        is_first = not request.seat.holds_blocks  # a load in flight is complete after its step
        loads = external and not arguments["num_new_tokens"]
        if is_first and loads and arguments.get("delay_cache_blocks"):
            self.awaited[request.name] = arguments
            hits = arguments.get("new_computed_blocks") or [()] * len(runner.block_sizes)
            for blocks, found in zip(runner.subject.blocks(request), hits, strict=True):
                self.check.shadow.lose(blocks[len(found) :])

    def _write(
        self, runner: Runner, request: Tracked, arguments: Mapping[str, Any], num_new: int
    ) -> None:
        """Write what an allocation with these arguments loads and computes."""
        num_hit = arguments.get("num_new_computed_tokens", 0)
        self.check.write_granted(
            request.name,
            self._content(request),
            runner.subject.blocks(request),
            start=arguments["num_computed_tokens"] + num_hit,
            num_external=arguments.get("num_external_computed_tokens", 0),
            num_new=num_new,
            num_encoder=arguments.get("num_encoder_tokens", 0),
            hits=arguments["new_computed_blocks"] if num_hit else None,
        )

    def _read_hits(self, request: Tracked, hits: Mapping[str, Any]) -> None:
        """Check that each group's own hit holds what it claims."""
        content, what = self._content(request), f"own hit of {request.name}"
        for group, length in enumerate(hits["hit_lengths"]):
            self.check.read_group(what, content, group, hits["blocks"][group], length, "KV-HASH-1")

    def _lose(self, runner: Runner, lost: Sequence[int]) -> None:
        for request in runner.requests:
            if request.name in self.awaited:
                lists = runner.subject.blocks(request)
                if any(block in lost for blocks in lists for block in blocks):
                    self._arrive(runner, request)
        self.check.shadow.lose(lost)

    def _arrive(self, runner: Runner, request: Tracked) -> None:
        if request.name in self.awaited:
            self._write(runner, request, self.awaited.pop(request.name), 0)

    def _accept_drafts(self, runner: Runner, request: Tracked, tokens: Sequence[int]) -> None:
        """Write accepted drafts as the tokens they are; only a scheduled request has any."""
        content = self._content(request)
        start = len(content.tokens)
        content.tokens.extend(identities(request, start, tokens))
        lists = runner.subject.blocks(request)
        self.check.accept_drafts(content, lists, start, start + len(tokens))


def identities(request: Tracked, start: int, tokens: Sequence[int]) -> Iterator[int]:
    """Yield what identifies the tokens from `start` on: the token, its item and its embedding."""
    if not request.arrival.items and not request.arrival.embedded:
        yield from tokens
        return
    for position, token in enumerate(tokens, start):
        items = [
            (name, position - first)
            for name, first, length in request.arrival.items
            if first <= position < first + length
        ]
        embedded = (request.arrival.embedded or ())[position : position + 1]
        if not items and not embedded:
            yield token
        else:
            content = repr((token, items, embedded)).encode()
            yield int.from_bytes(blake2b(content, digest_size=7).digest(), "big")


UNSTABLE_LISTS = frozenset({"a_list_only_grows_or_turns_null", "states_stay_or_move_to_the_end"})
"""Not promised without Feature.STABLE_LISTS; the content of the new block is read back."""

MOVED_KEYS = frozenset({"blocks_that_stay_keep_their_keys", "lookups_keep_their_order"})
"""Not promised where a copy on write moves the keys, and tails are registered anew."""

REFUSALS = (("allocate_slots", None), ("reset_prefix_cache", False))
"""Operations that may refuse, each with the result that means so."""


class InvariantCheck(Check):
    """Check the named invariants after every operation, from outside without a snapshot."""

    def __init__(self) -> None:
        self.num_free_at_start: int | None = None

    def after_operation(self, runner: Runner, done: Performed) -> None:
        if self.num_free_at_start is None:
            self.num_free_at_start = done.before.num_free_blocks
        if Feature.SNAPSHOT in runner.subject.features:
            check_snapshot(runner.config, done.after.snapshot)
        else:
            check_from_outside(runner.config, done.after, self.num_free_at_start)
        outcome = "done"
        refused = (done.name, done.outcome.result) in REFUSALS
        if done.outcome.error is not None:
            outcome = "error"
        elif refused:
            outcome = "refused"
        call = {"get_block_ids": "get_blocks"}.get(done.name, done.name)
        transition = Transition(call, outcome, done.before.snapshot, done.after.snapshot)
        stable = Feature.STABLE_LISTS in runner.subject.features
        left_out = frozenset() if stable else UNSTABLE_LISTS
        left_out |= MOVED_KEYS if runner.ends_inside else frozenset()
        check_transition(runner.config, transition, left_out=left_out)


class CompareCheck(Check):
    """Check that results equal the oracle's; with `identity` ids and order too."""

    def __init__(self, *, exact_ids: bool) -> None:
        self.exact_ids = exact_ids

    def after_operation(self, runner: Runner, done: Performed) -> None:
        """Compare the result, the number of free blocks, and at level identity the state."""
        expected, got = done.oracle_after, done.after
        if done.oracle is None or expected is None:
            return
        when = f"after {done.name}"
        require_same_outcome(done.name, done.oracle, done.outcome, exact_ids=self.exact_ids)
        require_same_copies(done.oracle_copies, done.copies, exact_ids=self.exact_ids)
        free = (expected.num_free_blocks, got.num_free_blocks)
        require_same(rule_of(done.name), f"free blocks {when}", *free)
        if self.exact_ids:
            require_same_view(expected, got, when)


class EventCheck(Check):
    """Check that events show what is cached (KV-EVT-7) and equal the oracle's, if there is one."""

    def __init__(self) -> None:
        self.fold: EventFold | None = None

    def after_step(self, runner: Runner) -> None:
        if not runner.config.enable_events and Feature.EVENTS not in runner.subject.features:
            return
        got = runner.subject.player.manager.take_events()
        if not runner.config.enable_events:
            if got:
                raise InvariantViolation("no_event_when_off", "KV-EVT-1", f"events are off: {got}")
            return
        if self.fold is None:
            self.fold = EventFold.under(runner.config.policy)
        self.fold.take_in(got)
        if Feature.SNAPSHOT in runner.subject.features and runner.has_view:
            self.fold.expect_state(runner.view.snapshot, int_hashes=runner.config.int_event_hashes)
        if runner.oracle is None:
            return
        require_same_events(runner.oracle.player.manager.take_events(), got)
