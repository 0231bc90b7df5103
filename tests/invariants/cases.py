"""Real states of kvref after a small scenario, and bad states made from them by one alteration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import kvref
from kvcheck.rules.specs import full, mamba, sliding
from kvspec.config import ManagerConfig
from kvspec.snapshot import Snapshot
from kvspec.specs import SinkFullAttentionSpec
from kvspec.transitions import Transition
from tests.contract.builders import admit, new_manager, new_request


@dataclass(frozen=True)
class State:
    config: ManagerConfig
    snapshot: Snapshot

    def with_(self, **members: Any) -> State:
        return State(self.config, replace(self.snapshot, **members))

    def with_request(self, name: str, **members: Any) -> State:
        requests = dict(self.snapshot.requests)
        requests[name] = replace(requests[name], **members)
        return self.with_(requests=requests)

    def with_key(self, block: int, *keys: bytes) -> State:
        """Return the state with other keys of one block, which look-ups then find only there.

        The primary one covers as much as before, or the first tokens that have a hash.
        """
        old = self.snapshot
        order = {k: v for k, v in old.lookup_order.items() if v != (block,)}
        for key in keys:
            order[key] = (*order.get(key, ()), block)
        covers = (old.covered_tokens[block] or self.config.hash_block_size_tokens) if keys else 0
        return self.with_(
            block_keys=put(old.block_keys, block, keys),
            lookup_order=order,
            covered_tokens=put(old.covered_tokens, block, covers),
        )

    def covering(self, block: int, num_tokens: int) -> State:
        return self.with_(covered_tokens=put(self.snapshot.covered_tokens, block, num_tokens))


def put(values: tuple[Any, ...], index: int, value: Any) -> tuple[Any, ...]:
    return (*values[:index], value, *values[index + 1 :])


def story() -> State:
    """Return six blocks: a = [1, 2, 3], b = [1, 2, 4], with 1 and 2 cached; 5 is free."""
    implementation = kvref.implementation()
    manager = new_manager(implementation)
    for name, tokens in (("a", range(1, 11)), ("b", [*range(1, 9), 20])):
        admit(manager, new_request(implementation, manager, name, tokens))
    return State(manager.config, manager.snapshot())


def two_groups() -> State:
    """Return a = [1], [2]: its one full block in two groups, both cached; 3, 4, 5 are free."""
    implementation = kvref.implementation()
    manager = new_manager(implementation, 6, specs=[full(4), full(4, head_size=16)])
    admit(manager, new_request(implementation, manager, "a", range(1, 5)))
    return State(manager.config, manager.snapshot())


def two_copies() -> State:
    """Return a = [1], b = [2] of equal content: one key finds 1, then 2; 3, 4, 5 are free."""
    implementation = kvref.implementation()
    manager = new_manager(implementation, 6)
    requests = [new_request(implementation, manager, name, range(1, 5)) for name in "ab"]
    for request in requests:
        manager.allocate_slots(request, 4, delay_cache_blocks=True)
    for request in requests:
        manager.cache_blocks(request, 4)
    return State(manager.config, manager.snapshot())


def two_sizes() -> State:
    """Return a = [1, 2, 3], [4]: blocks of 4 and 16 tokens; block 4 has partial entries.

    12 tokens, a hash each 4; block 4 carries keys of 8 and of 4 tokens; 5 … 8 are free.
    """
    implementation = kvref.implementation()
    manager = new_manager(implementation, 9, specs=[full(4), sliding(16, 20)])
    request = new_request(implementation, manager, "a", range(1, 31))
    manager.allocate_slots(request, 12)
    for num_tokens in (8, 4):
        manager.cache_partial_block(request, 1, num_tokens)
    return State(manager.config, manager.snapshot())


def window() -> State:
    """Return a = [0, 0, 3, 4, 5] in a window of 6 tokens; 1 and 2 are free."""
    implementation = kvref.implementation()
    manager = new_manager(implementation, 6, specs=[sliding(4, 6)])
    request = new_request(implementation, manager, "a", range(1, 20))
    manager.allocate_slots(request, 17)
    request.num_computed_tokens = 17
    manager.remove_skipped_blocks(request, 13)
    return State(manager.config, manager.snapshot())


def sinks() -> State:
    """Set block 1 aside; a = [2, 3]; 4 and 5 are free."""
    implementation = kvref.implementation()
    spec = SinkFullAttentionSpec(4, 1, 8, "float16", sink_len=4)
    manager = new_manager(implementation, 6, specs=[spec])
    admit(manager, new_request(implementation, manager, "a", range(1, 7)))
    return State(manager.config, manager.snapshot())


@dataclass(frozen=True)
class Case:
    """A bad state that `invariant`, and no other, rejects."""

    invariant: str
    name: str
    good: Callable[[], State]
    spoil: Callable[[State], State]

    def __str__(self) -> str:
        return f"{self.invariant}-{self.name}"


def _key(state: State, block: int) -> bytes:
    (key,) = state.snapshot.block_keys[block]
    return key


def _order(state: State, change: Callable[[tuple[int, ...]], tuple[int, ...]]) -> State:
    order = {key: change(blocks) for key, blocks in state.snapshot.lookup_order.items()}
    return state.with_(lookup_order=order)


Spoil: TypeAlias = Callable[[State], State]
SPOILT: dict[str, dict[str, tuple[Callable[[], State], Spoil]]] = {
    "has_the_right_shape": {
        "an_id_beyond_the_pool": (story, lambda s: s.with_(new_block_ids=((1, 2, 3, 6),))),
        "a_negative_id": (story, lambda s: s.with_(new_block_ids=((-1,),))),
        "zeroing_queues_of_two_groups": (story, lambda s: s.with_(new_block_ids=((), ()))),
        "step_keys_of_two_groups": (
            story, lambda s: s.with_(step_keys=(frozenset(), frozenset()))),
        "too_many_covered_tokens": (
            story, lambda s: s.with_(covered_tokens=(*s.snapshot.covered_tokens, 0))),
        "mamba_state_of_two_groups": (story, lambda s: s.with_request("a", mamba=(None, None))),
    },
    "null_block_is_apart": {
        "free": (story, lambda s: s.with_(free_queue=(5, 0))),
        "counted": (story, lambda s: s.with_(ref_counts=(1, 2, 2, 1, 1, 0))),
        "cached": (story, lambda s: s.with_key(0, bytes(36))),
    },
    "free_queue_has_no_duplicates": {"twice": (story, lambda s: s.with_(free_queue=(5, 5)))},
    "free_means_unreferenced": {
        "leaked": (story, lambda s: s.with_(free_queue=())),
        "free_in_use": (story, lambda s: s.with_(free_queue=(5, 4))),
    },
    "references_are_accounted_for": {
        "one_too_many": (story, lambda s: s.with_(ref_counts=(0, 2, 2, 2, 1, 0))),
        "one_too_few": (story, lambda s: s.with_(ref_counts=(0, 1, 2, 1, 1, 0))),
        "popped_but_not_counted": (story, lambda s: s.with_(popped_blocks=(3,))),
        "set_aside_but_not_counted": (story, lambda s: s.with_(reserved_blocks=(3,))),
    },
    "keys_and_lookups_agree": {
        "never_found": (story, lambda s: s.with_(lookup_order={
            key: blocks for key, blocks in s.snapshot.lookup_order.items() if key != _key(s, 2)})),
        "found_without_a_key": (story, lambda s: _order(s, lambda blocks: (*blocks, 5))),
    },
    "keys_are_listed_once": {
        "a_key_twice": (story, lambda s: s.with_(
            block_keys=put(s.snapshot.block_keys, 1, s.snapshot.block_keys[1] * 2))),
        "a_block_twice": (story, lambda s: _order(s, lambda blocks: blocks * 2)),
        "no_block": (
            story, lambda s: s.with_(lookup_order={**s.snapshot.lookup_order, bytes(36): ()})),
    },
    "keys_are_well_formed": {
        "a_short_hash": (story, lambda s: s.with_key(2, _key(s, 2)[1:])),
        # On a free block: a listed one would also be cached for a group that is not its own.
        "no_such_group": (story, lambda s: s.with_key(5, bytes(35) + b"\x01")),
    },
    "nothing_is_cached_with_caching_off": {
        "cached": (story, lambda s: State(replace(s.config, enable_caching=False), s.snapshot)),
    },
    "a_block_has_one_place": {
        "twice_in_a_list": (story, lambda s: s.with_request("b", block_ids=((1, 2, 4, 4),)).with_(
            ref_counts=(0, 2, 2, 1, 2, 0))),
        "at_two_indices": (story, lambda s: s.with_request("b", block_ids=((1, 2, 4, 3),)).with_(
            ref_counts=(0, 2, 2, 2, 1, 0))),
    },
    "cached_blocks_belong_to_their_group": {
        "of_another_group": (two_groups, lambda s: s.with_key(1, _key(s, 1)[:-4] + b"\0\0\0\1")),
    },
    "cached_counts_fit_the_lists": {
        "more_than_the_list": (story, lambda s: s.with_request("a", num_cached_blocks=(4,))),
        "below_zero": (story, lambda s: s.with_request("a", num_cached_blocks=(-1,))),
    },
    "nulls_come_first": {
        # The window lets go of block 4 and keeps 3, so 4 is free.
        "behind_a_block": (window, lambda s: s.with_request(
            "a", block_ids=((0, 0, 3, 0, 5),)).with_key(4).with_(
            ref_counts=(0, 0, 0, 1, 0, 1), free_queue=(4, *s.snapshot.free_queue))),
        "in_full_attention": (story, lambda s: s.with_request("a", block_ids=((0, 2, 3),)).with_(
            ref_counts=(0, 1, 2, 1, 1, 0))),
        "behind_a_group_without": (two_groups, lambda s: s.with_request(
            "a", block_ids=((1,), (0,))).with_(
            ref_counts=(0, 1, 0, 0, 0, 0), free_queue=(*s.snapshot.free_queue, 2))),
    },
    "keys_of_one_place": {
        "listed_elsewhere": (story, lambda s: s.covering(2, 12)),
        # On a free block: a listed one would also be cached for a group that is not its own.
        "of_two_groups": (
            two_sizes, lambda s: s.with_key(5, bytes(35) + b"\x01", bytes(36)).covering(5, 8)),
    },
    "keys_are_covered": {
        "a_key_of_nothing": (story, lambda s: s.covering(2, 0)),
        "no_key": (story, lambda s: s.covering(5, 4)),
        "no_hash_ends_there": (story, lambda s: s.covering(2, 6)),
        "a_key_behind_the_primary_one": (two_sizes, lambda s: s.covering(4, 4)),
    },
    "blocks_set_aside_are_alone": {
        "listed": (sinks, lambda s: s.with_request("a", block_ids=((2, 3, 1),)).with_(
            ref_counts=(0, 2, 1, 1, 0, 0))),
        "cached": (sinks, lambda s: s.with_key(1, bytes(36))),
        "twice": (sinks, lambda s: s.with_(
            reserved_blocks=(1, 1), ref_counts=(0, 2, 1, 1, 0, 0))),
    },
}  # fmt: skip
CASES = tuple(
    Case(invariant, name, *made)
    for invariant, some in SPOILT.items()
    for name, made in some.items()
)


@dataclass(frozen=True)
class TransitionCase:
    """A bad transition, from a real state to an altered one, that only `invariant` rejects."""

    invariant: str
    name: str
    call: str
    outcome: str
    good: Callable[[], State]
    spoil: Callable[[State], State]

    def __str__(self) -> str:
        return f"{self.invariant}-{self.name}"

    def transition(self) -> tuple[ManagerConfig, Transition]:
        good = self.good()
        after = self.spoil(good).snapshot
        return good.config, Transition(self.call, self.outcome, good.snapshot, after)


def _zeroed(state: State) -> State:
    return state.with_(new_block_ids=((),))


def aligned() -> State:
    """Request a has six tokens in mode align: null, the running state 1, a drafted one, 2."""
    implementation = kvref.implementation()
    manager = new_manager(implementation, 6, specs=[mamba(4, "align", speculative=1)])
    manager.allocate_slots(new_request(implementation, manager, "a", range(6)), 6)
    return State(manager.config, manager.snapshot())


TRANSITION_CASES: tuple[TransitionCase, ...] = (
    TransitionCase("errors_change_nothing", "zeroing_queue", "evict_blocks", "error",
                   story, _zeroed),
    TransitionCase("errors_change_nothing", "free_queue", "free_blocks", "error",
                   two_copies, lambda s: s.with_(free_queue=(4, 3, 5))),
    TransitionCase("pure_calls_change_nothing", "zeroing_queue", "get_blocks", "done",
                   story, _zeroed),
    TransitionCase("pure_calls_change_nothing", "references", "get_computed_blocks", "done",
                   story, lambda s: s.with_(ref_counts=(0, 3, 2, 1, 1, 0))),
    TransitionCase("a_refusal_only_releases", "reset", "reset_prefix_cache", "refused",
                   story, _zeroed),
    TransitionCase("a_refusal_only_releases", "a_new_key", "allocate_slots", "refused",
                   story, lambda s: s.with_key(3, bytes(36))),
    TransitionCase("a_refusal_only_releases", "a_reference", "allocate_slots", "refused",
                   story, lambda s: s.with_(ref_counts=(0, 2, 2, 1, 1, 1))),
    TransitionCase("a_refusal_only_releases", "a_forgotten_request", "allocate_slots", "refused",
                   story, lambda s: s.with_(requests={"a": s.snapshot.requests["a"]})),
    TransitionCase("a_list_only_grows_or_turns_null", "shorter", "allocate_slots", "done",
                   story, lambda s: s.with_request("a", block_ids=((1, 2),))),
    TransitionCase("a_list_only_grows_or_turns_null", "another_block", "cache_blocks", "done",
                   story, lambda s: s.with_request("a", block_ids=((1, 2, 5),))),
    TransitionCase("states_stay_or_move_to_the_end", "another_block", "allocate_slots", "done",
                   aligned, lambda s: s.with_request("a", block_ids=((0, 1, 3),))),
    TransitionCase("blocks_that_stay_keep_their_keys", "lost", "allocate_slots", "done",
                   story, lambda s: s.with_key(2)),
    TransitionCase("lookups_keep_their_order", "turned_around", "cache_blocks", "done",
                   two_copies, lambda s: _order(s, lambda blocks: blocks[::-1])),
    TransitionCase("lookups_keep_their_order", "a_new_one_in_front", "cache_blocks", "done",
                   story, lambda s: _order(s, lambda blocks: (5, *blocks))),
)  # fmt: skip
