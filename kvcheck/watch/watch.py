"""The checks of a monitor: cheap ones after every call, those of the state at an audit.

Every method raises InvariantViolation at the first offence. A manager is judged by its results
alone, except at audits, which examine its snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import chain
from operator import index
from typing import TypeAlias

from kvcheck.play.shadow.content_check import ContentCheck
from kvcheck.play.shadow.event_fold import EventFold
from kvcheck.watch.calls import Call
from kvcheck.watch.ownership import Lists, Ownership, violated
from kvcheck.watch.requests import Describe, Followed, Requests
from kvspec.blocks import NULL_BLOCK
from kvspec.inside import looks_inside
from kvspec.interface import KVCacheManager
from kvspec.invariants import check_snapshot
from kvspec.request import Request
from kvspec.snapshot import Snapshot
from kvspec.transitions import Transition, check_transition


class Watch:
    """The knowledge about one manager. `snapshot`: its state now, None if it cannot show it.

    `void`: names of requests that hit what was withdrawn, until they are released.
    `has_stable_lists`: whether a new block is never another's with the same content.
    """

    def __init__(
        self,
        manager: KVCacheManager,
        describe: Describe,
        snapshot: Snapshot | None,
        *,
        has_stable_lists: bool = True,
    ) -> None:
        self.manager, self.has_stable_lists = manager, has_stable_lists
        self.config = manager.config
        groups = self.config.kv_cache.groups
        specs = [self.config.registry.resolve(group.spec) for group in groups]
        self.only_grows = all(spec.reads_whole_prefix for spec in specs)
        self.ownership = Ownership(self.config.kv_cache.num_blocks, len(groups))
        self.content = ContentCheck(self.config)
        self.has_copies = looks_inside(self.config)
        self.copies_may_wait = self.has_copies
        if self.has_copies:  # the calls do not show when a copy reads its source
            self.content.groups.clear()
            self.content.states.clear()
        tagged = self.config.policy.extra_keys == "tagged"
        self.requests = Requests(describe, tags_extra_keys=tagged)
        self.void: set[str] = set()
        self.fold = EventFold.under(self.config.policy)
        self.fold_is_exact = snapshot is not None and not snapshot.lookup_order
        if snapshot is not None:
            self.ownership.start_from(snapshot)
            written = (b for b, keys in enumerate(snapshot.block_keys) if keys)
            held = (b for b, count in enumerate(self.ownership.counts) if count)
            self.content.shadow.forget(chain(written, held))
        waiting = () if snapshot is None else snapshot.pending_copies
        ends = [block for pairs in waiting for pair in pairs for block in pair]
        self.ownership.pop(ends)
        self.ownership.num_set_aside = self.ownership.num_free - manager.num_free_blocks
        self.ownership.return_popped(ends)  # they become known when the copies are taken

    @property
    def size_bytes(self) -> int:
        return (
            self.ownership.size_bytes
            + self.content.shadow.size_bytes
            + self.requests.size_bytes
            + 150 * len(self.fold.keys)
        )

    def before(self, call: Call) -> None:
        """Take in what the engine did since: tokens that were appended, drafts that were right."""
        if call.request is None:
            return
        followed = self.requests.follow(call.request, call.num_tokens)
        if followed.draft_from is not None and call.name in ("allocate_slots", "cache_blocks"):
            computed = call.num_computed_tokens
            if call.name == "cache_blocks" and isinstance(call.arguments[COMPUTED], int):
                computed = call.arguments[COMPUTED]
            self._accept(call.request.request_id, followed, computed)

    def after(self, call: Call) -> None:
        if call.error is not None:
            self._failed(call)
        elif call.name in CHECKS:
            CHECKS[call.name](self, call)
        if not self.copies_may_wait:  # blocks held for copies become known when those are taken
            self.ownership.check_conservation(call.num_free_blocks)

    def state(self, call: Call, before: Snapshot | None, after: Snapshot) -> None:
        """Check the snapshot and the transition: the first part of an audit."""
        check_snapshot(self.config, after)
        if before is not None:
            check_transition(self.config, Transition(call.name, call.outcome, before, after))

    def agreement(self, name: str, after: Snapshot) -> None:
        """Check that the state agrees with the results, and holds what is read next: the second
        part.
        """
        self.ownership.check_agrees(after)
        self._read_held()
        if name == "take_events" and self.config.enable_events:
            int_hashes = self.config.int_event_hashes
            if self.fold_is_exact:
                self.fold.expect_state(after, int_hashes=int_hashes)
            else:  # earlier events were not observed
                self.fold.start_from(after, int_hashes=int_hashes)
                self.fold_is_exact = True

    def _read_held(self) -> None:
        """Check that requests still hold what they wrote, where it may have changed."""
        written = self.content.shadow.take_written()
        for name, lists in self.ownership.lists.items():
            followed = self.requests.get(name)
            if followed is None or name in self.void:
                continue
            computed = followed.num_computed
            is_same = followed.read == (lists, computed)
            if not is_same or not all(map(written.isdisjoint, lists)):
                what = f"held by {name}"
                self.content.read_held(name, what, followed.content, lists, computed, "KV-POOL-17")
                followed.read = (lists, computed)

    # Calls.

    def _failed(self, call: Call) -> None:
        """Check that an error changed nothing: at least the lists must be as before."""
        if call.request is not None:
            name = call.request.request_id
            held, now = self._lists(name), self._ask(call.request)
            if held != now:
                raise violated(
                    "errors_change_nothing",
                    "KV-ERR-2",
                    f"{call.describe()} raised {type(call.error).__name__} and changed the lists"
                    f" from {held} to {now}",
                )

    def _looked_up(self, call: Call) -> None:
        request, hit = _request(call), call.result
        name, length = request.request_id, index(hit.hit_length_tokens)
        lists = self.ownership.checked(hit.blocks, f"the hit of {name}")
        followed = self.requests.follow(request, call.num_tokens)
        self.content.read_hit(name, followed.content, lists, length)
        self.requests.forget_idle(self.ownership.lists)

    def _looked_up_per_group(self, call: Call) -> None:
        request, hits = _request(call), call.result
        name = request.request_id
        lists = self.ownership.checked(hits.blocks, f"the hits of {name}")
        followed = self.requests.follow(request, call.num_tokens)
        for group, length in enumerate(hits.hit_lengths_tokens):
            what = f"hit of {name}"
            self.content.read_group(
                what, followed.content, group, lists[group], index(length), "KV-HASH-1"
            )

    def _allocated(self, call: Call) -> None:
        request, given = _request(call), call.arguments
        name = request.request_id
        if name in self.void:
            raise violated(
                "hits_of_what_was_withdrawn_are_given_up",
                "KV-MGR-24",
                f"{name} continues behind a hit that another request was to compute and did not",
            )
        followed = self.requests.follow(request, call.num_tokens)
        external = given["num_external_computed_tokens"]
        start = call.num_computed_tokens + given["num_new_computed_tokens"]
        read_from = start + external
        if external:  # the last token is computed again
            read_from = min(read_from, call.num_tokens - 1)
        held = self._lists(name)
        self.copies_may_wait = self.has_copies
        if call.result is None:
            self._refused(call, held)
            if any(held):  # a refused load brings nothing; without what it skips none goes on
                goes_on = not external or self._lists(name) == held
                followed.num_computed = start if goes_on else 0
            return
        new = self.ownership.checked(call.result, "the answer of allocate_slots")
        if any(held) and self.only_grows and self.has_stable_lists and not external:
            lists: Lists = tuple(a + b for a, b in zip(held, new, strict=True))
        else:
            lists = self._ask(request)
        self.ownership.replace(name, lists)
        if self.has_stable_lists:
            self.ownership.check_new(name, chain.from_iterable(new))
        num_new = given["num_new_tokens"]
        hits = given["new_computed_blocks"].groups if given["num_new_computed_tokens"] else None
        self.content.write_granted(
            name,
            followed.content,
            lists,
            start=start,
            num_external=external,
            num_new=num_new,
            num_encoder=given["num_encoder_tokens"],
            hits=hits,
        )
        followed.num_computed = read_from
        if start + external + num_new > call.num_tokens and followed.draft_from is None:
            followed.draft_from = call.num_tokens

    def _refused(self, call: Call, held: Lists) -> None:
        """Check that a refusal released at most blocks that fell out of a window."""
        if self.only_grows:
            return
        request = _request(call)
        self._only_nulled(request, held, "a refused allocation", "KV-MGR-6")

    def _removed(self, call: Call) -> None:
        request = _request(call)
        name, computed = request.request_id, call.arguments["total_computed_tokens"]
        followed = self.requests.follow(request, call.num_tokens)
        if followed.draft_from is not None:
            self._accept(name, followed, computed)
        what = "remove_skipped_blocks"
        self._only_nulled(request, self._lists(name), what, "KV-MGR-14")
        followed.num_computed = max(followed.num_computed, computed)

    def _only_nulled(self, request: Request, held: Lists, what: str, rule: str) -> None:
        """Check that the lists are those held before, except for entries that became null."""
        now = self._ask(request)
        same_length = [len(blocks) for blocks in now] == [len(blocks) for blocks in held]
        pairs = zip(chain.from_iterable(held), chain.from_iterable(now), strict=False)
        if not same_length or any(new not in (old, NULL_BLOCK) for old, new in pairs):
            raise violated(
                "a_list_only_turns_null",
                rule,
                f"{what} of {request.request_id} changed the lists from {held} to {now}",
            )
        self.ownership.replace(request.request_id, now)

    def _popped(self, call: Call) -> None:
        request = _request(call)
        expected = tuple(chain.from_iterable(self._lists(request.request_id)))
        if tuple(call.result) != expected:
            raise violated(
                "popped_blocks_are_those_held",
                "KV-MGR-13",
                f"popped {list(call.result)}, {request.request_id} held {list(expected)}",
            )
        self.ownership.pop(call.result)
        self._forgotten(request, "KV-MGR-13")

    def _forgotten(self, request: Request, rule: str) -> None:
        name, now = request.request_id, self._ask(request)
        if any(now):
            raise violated(
                "a_released_request_holds_nothing", rule, f"{name} still holds {now} when released"
            )
        self.void.discard(name)
        self.ownership.replace(name, now)
        self.content.release(name)
        followed = self.requests.get(name)
        if followed is not None:
            followed.num_computed, followed.draft_from = 0, None
        self.requests.forget_idle(self.ownership.lists)

    def _withdrawn(self, call: Call) -> None:
        """Drop what the withdrawn step was to write behind the computed tokens (KV-MGR-23)."""
        request, computed = _request(call), call.arguments[COMPUTED]
        name = request.request_id
        self.content.withdraw(self._lists(name), computed)
        followed = self.requests.follow(request, call.num_tokens)
        computed = min(followed.num_computed, computed)
        # Behind its window it can only be released (KV-REQ-9).
        goes_on = self.content.has_window(self._lists(name), computed)
        followed.num_computed = computed if goes_on else 0
        self.void |= set(call.result)

    def _copied(self, call: Call) -> None:
        self.ownership.check_ids(call.result.retained, "the answer of take_block_copies")
        self.ownership.pop(call.result.retained)
        self.copies_may_wait = False

    def _reset(self, call: Call) -> None:
        if call.result is (self.ownership.num_held > 0):
            state = "in use" if self.ownership.num_held else "idle"
            raise violated(
                "reset_only_when_idle",
                "KV-POOL-11",
                f"a reset of a pool that is {state} answered {call.result}",
            )

    def _listed(self, call: Call) -> None:
        request = _request(call)
        held = self._lists(request.request_id)
        if self.ownership.checked(call.result, "the answer of get_blocks") != held:
            raise violated(
                "answers_tell_the_state",
                "KV-GRP-1",
                f"{request.request_id} holds {call.result.to_lists()}, by the answers {held}",
            )

    def _told(self, call: Call) -> None:
        if self.fold_is_exact:
            self.fold.take_in(call.result)

    # What is known.

    def _lists(self, name: str) -> Lists:
        return self.ownership.lists.get(name, ((),) * self.ownership.num_groups)

    def _ask(self, request: Request) -> Lists:
        """Return the block lists as the manager shows them now."""
        return self.ownership.checked(self.manager.get_blocks(request), "the answer of get_blocks")

    def _accept(self, name: str, followed: Followed, num_computed: int) -> None:
        """Accept the first `num_computed` tokens as verified, including drafts among them."""
        num_known = len(followed.content.tokens)
        if followed.draft_from is not None:
            first = followed.draft_from
            self.content.accept_drafts(followed.content, self._lists(name), first, num_computed)
            followed.draft_from = num_known if num_computed > num_known else None


COMPUTED = "num_computed_tokens"

CheckOfCall: TypeAlias = Callable[[Watch, Call], None]

CHECKS: Mapping[str, CheckOfCall] = {
    "get_computed_blocks": Watch._looked_up,
    "find_longest_cache_hit_per_group": Watch._looked_up_per_group,
    "allocate_slots": Watch._allocated,
    "remove_skipped_blocks": Watch._removed,
    "free": lambda watch, call: watch._forgotten(_request(call), "KV-MGR-12"),
    "pop_blocks_for_free": Watch._popped,
    "free_blocks": lambda watch, call: watch.ownership.return_popped(call.arguments["block_ids"]),
    "withdraw": Watch._withdrawn,
    "take_block_copies": Watch._copied,
    "reset_prefix_cache": Watch._reset,
    "get_blocks": Watch._listed,
    "take_new_block_ids": lambda watch, call: watch.ownership.check_ids(
        tuple(call.result), "the answer of take_new_block_ids"
    ),
    "take_events": Watch._told,
    "new_step_starts": lambda watch, call: watch.content.new_step_starts(),
}
"""Checks after a call that succeeded, besides conservation."""


def _request(call: Call) -> Request:
    if call.request is None:
        raise TypeError(f"{call.name} is about a request")
    return call.request
