"""kvref's groups called step by step, which GroupsModel must equal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from kvref.groups.base import Demand, cdiv
from kvref.manager import ReferenceManager
from kvspec.snapshot import Snapshot
from proofs.models._formal._cache import CacheBounds, OneManager, Text, cache_value, texts
from proofs.models._formal._values import Move


class GroupsState(NamedTuple):
    """A cache, and what each request consists of; () where there is none."""

    snapshot: Snapshot
    texts: tuple[Text, ...]


class GroupsSide:
    """kvref's groups, which `bounds` limits."""

    module = "GroupsModel"

    def __init__(self, bounds: CacheBounds) -> None:
        self.bounds = bounds
        self.constants = bounds.constants
        self.contents = bounds.contents()
        self.kvref = OneManager(bounds)

    def moves(self) -> Iterator[Move]:
        """Yield every move, possible or not."""
        longest = self.bounds.max_tokens
        for r in range(1, self.bounds.num_requests + 1):
            for text in texts(self.bounds.num_tokens, 1, longest):
                yield Move("Come", (r, text))
            yield Move("Hit", (r,))
            for action in ("Grow", "Cache", "Remove"):
                yield from (Move(action, (r, n)) for n in range(1, longest + 1))
            yield Move("Leave", (r,))
        yield from (Move("Evict", (block,)) for block in range(1, self.bounds.num_blocks))

    def first(self) -> GroupsState:
        """Return the state without requests."""
        return GroupsState(self.kvref.manager.snapshot(), ((),) * self.bounds.num_requests)

    def value(self, state: GroupsState) -> dict[str, Any]:
        """Return the state as the model has it."""
        return {**cache_value(self.bounds, state.snapshot, self.contents), "texts": state.texts}

    def after(self, state: GroupsState, move: Move) -> GroupsState | None:
        """Return the state after a move; None where the move is illegal."""
        if move.action == "Evict":
            if not state.snapshot.block_keys[move.arguments[0]]:
                return None
            manager = self.kvref.restored(state.snapshot)
            manager.pool.forget(*move.arguments)
            return GroupsState(manager.snapshot(), state.texts)
        number = move.arguments[0] - 1
        text = state.texts[number]
        if move.action == "Come":
            return (
                None if text else state._replace(texts=_put(state.texts, number, move.arguments[1]))
            )
        if not text:
            return None
        manager = self.kvref.restored(state.snapshot)
        name = self.bounds.names()[number]
        if not self._step(manager, name, text, move.action, *move.arguments[1:]):
            return None
        rest = _put(state.texts, number, ()) if move.action == "Leave" else state.texts
        return GroupsState(manager.snapshot(), rest)

    def _step(
        self, manager: ReferenceManager, name: str, text: Text, action: str, n: int = 0
    ) -> bool:
        """Make one call to all groups, in order; return False where it is illegal."""
        coordinator, groups = manager.coordinator, manager.groups
        request = self.kvref.request(name, text)
        size = self.bounds.block_sizes[0]
        slots = size * len(groups[0].blocks_of(name))
        if action == "Hit":
            if coordinator.is_running(name) or coordinator.holds_blocks(name):
                return False
            hit = coordinator.longest_hit(request, len(text) - 1)
            for group, blocks in zip(groups, hit.blocks.groups, strict=True):
                group.take_hits(name, blocks, _demand(0, hit.hit_length_tokens))
        elif action == "Grow":
            missing = sum(cdiv(n, size) - len(group.blocks_of(name)) for group in groups)
            if not slots < n <= len(text) or missing > manager.num_free_blocks:
                return False
            coordinator.allocate_new(name, _demand(n, 0))
        elif action == "Cache":
            if n > len(text) or n > slots:
                return False
            coordinator.cache_blocks(request, n)
        elif action == "Remove":
            if n > slots:
                return False
            coordinator.remove_skipped_blocks(name, n)
        else:
            coordinator.free(name)
        return True


def _demand(slots: int, computed: int) -> Demand:
    return Demand(slots, slots, computed, 0, computed)


def _put(values: tuple[Text, ...], number: int, value: Text) -> tuple[Text, ...]:
    return (*values[:number], value, *values[number + 1 :])
