"""Real states of kvref after a small scenario; bad ones made of them as `spoilt.txt` says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import kvref
from kvcheck.rules.specs import full, mamba, sliding
from kvspec.config import ManagerConfig
from kvspec.snapshot import Snapshot
from kvspec.specs import SinkFullAttentionSpec
from tests.cases import words
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


def aligned() -> State:
    """Request a has six tokens in mode align: null, the running state 1, a drafted one, 2."""
    implementation = kvref.implementation()
    manager = new_manager(implementation, 6, specs=[mamba(4, "align", drafts=1)])
    manager.allocate_slots(new_request(implementation, manager, "a", range(6)), 6)
    return State(manager.config, manager.snapshot())


def counted() -> State:
    """Return b = [1, 3], where 1 was used twice; 4, 5 and 2 are free, 2 was used once."""
    implementation = kvref.implementation()
    manager = new_manager(implementation, 6, eviction_order="lfu")
    requests = [
        new_request(implementation, manager, name, tokens)
        for name, tokens in (("a", range(9)), ("b", range(5)))
    ]
    admit(manager, requests[0])
    manager.free(requests[0])
    admit(manager, requests[1])
    return State(manager.config, manager.snapshot())


STATES = {
    each.__name__: each
    for each in (story, two_groups, two_copies, two_sizes, window, sinks, aligned, counted)
}
KEYS: Mapping[str, Callable[[bytes], bytes]] = {
    "zero": lambda own: bytes(36),
    "of_group_1": lambda own: bytes(35) + b"\x01",
    "short": lambda own: own[1:],
    "in_group_1": lambda own: own[:-4] + b"\0\0\0\1",
}
"""Keys that a block gets, some made from its own."""
ORDERS: Mapping[str, Callable[[tuple[int, ...]], tuple[int, ...]]] = {
    "and_5": lambda blocks: (*blocks, 5),
    "first_5": lambda blocks: (5, *blocks),
    "twice": lambda blocks: blocks * 2,
    "reversed": lambda blocks: blocks[::-1],
}


def spoilt(good: State, line: str) -> State:
    """Alter a state: `free_queue=[5 0]; a block_ids=[[1]]; key 2 zero; covers 2 6; order twice`."""
    bad = good
    for clause in line.split("; "):
        (verb, *given), members = words(clause)
        bad = _altered(bad, verb, given, members)
    return bad


def _altered(state: State, verb: str, given: list[Any], members: dict[str, Any]) -> State:
    old = state.snapshot
    if verb in old.requests:
        return state.with_request(verb, **members)
    match verb:
        case "state":
            return state.with_(**members)
        case "config":
            return State(replace(state.config, **members), old)
        case "key":
            block, *names = given
            own = old.block_keys[block][0] if old.block_keys[block] else b""
            return state.with_key(block, *(KEYS[name](own) for name in names))
        case "covers":
            block, number = given
            return state.with_(covered_tokens=put(old.covered_tokens, block, number))
        case "keys_twice":
            (block,) = given
            return state.with_(block_keys=put(old.block_keys, block, 2 * old.block_keys[block]))
        case "unfound":
            (key,) = old.block_keys[given[0]]
            return state.with_(lookup_order={k: v for k, v in old.lookup_order.items() if k != key})
        case "found_nowhere":
            return state.with_(lookup_order={**old.lookup_order, bytes(36): ()})
        case "without":
            kept = {name: each for name, each in old.requests.items() if name != given[0]}
            return state.with_(requests=kept)
    order = {key: ORDERS[given[0]](blocks) for key, blocks in old.lookup_order.items()}
    return state.with_(lookup_order=order)
