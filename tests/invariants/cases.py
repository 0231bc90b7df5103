"""Real states of kvref as `states.txt` tells; bad ones made of them as `spoilt.txt` says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import kvref
from kvcheck.rules.bench import Bench
from kvcheck.rules.notation.playing import Play
from kvspec.config import ManagerConfig
from kvspec.policy import Policy
from kvspec.snapshot import Snapshot
from tests.cases import cases, words


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


TOLD = {case.name: case.given for case in cases(__file__, "states.txt")}


def state(name: str) -> State:
    play = Play(Bench(kvref.implementation(), Policy(), guards=False))
    for line in TOLD[name]:
        if not line.startswith("#"):
            play.line(line)
    manager: Any = play.manager
    return State(manager.config, manager.snapshot())


KEYS: Mapping[str, Callable[[bytes], bytes]] = {
    "zero": lambda own: bytes(36),
    "of_group_1": lambda own: bytes(35) + b"\x01",
    "short": lambda own: own[1:],
    "in_group_1": lambda own: own[:-4] + b"\0\0\0\1",
}
"""Keys that a block gets, some made from its own."""
ORDERS: Mapping[str, Callable[[tuple[int, ...]], tuple[int, ...]]] = {
    "and_5": lambda blocks: (*blocks, 5),
    "and_6": lambda blocks: (*blocks, 6),
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
