"""Room in a tree: who is evicted, and what the host keeps of it (KV-TREE-29, KV-TREE-38 …)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from typing import Any, TypeVar, cast

from kvref.tree.arguments import check_config, check_number
from kvref.tree.nodes import EVICTED_FIRST, Node, is_whole
from kvref.tree.pools import Pool
from kvref.tree.requests import TreeRequest
from kvspec.errors import InvalidArgumentError
from kvspec.tree import Evicted, Part, Transfer, TreeConfig, TreeCounts

CallT = TypeVar("CallT", bound=Callable[..., Any])


def audited(call: CallT) -> CallT:
    """Audit the tree after a call of it, if its configuration says so."""

    @wraps(call)
    def called(tree: Any, *args: Any, **kwargs: Any) -> Any:
        result = call(tree, *args, **kwargs)
        if tree.config.check_invariants:
            tree.audit()
        return result

    return cast("CallT", called)


class Room:
    """The pools of a tree, its nodes and its requests.

    `transfers`: begun, and not reported yet. `loads`: those that the next run makes.
    """

    def __init__(self, config: TreeConfig) -> None:
        check_config(config)
        self.config = config
        self.page_size = config.page_size_tokens
        self.pools = {
            Part.FULL: Pool(config.num_slots, self.page_size),
            Part.WINDOW: Pool(config.num_window_slots, self.page_size),
            Part.STATE: Pool(config.num_states),
        }
        self.roots: dict[str, Node] = {}
        self.requests: dict[str, TreeRequest] = {}
        self.host = Pool(config.num_host_slots, self.page_size)
        self.transfers: list[Transfer] = []
        self.num_transfers = 0
        self.loads: set[int] = set()

    def _nodes(self) -> Iterator[Node]:
        for root in self.roots.values():
            yield from root.below()[1:]

    # Copies on the host.

    def _mirror(self, path: Sequence[Node]) -> None:
        """Begin copies of nodes whose parents have one, as far as there is room (KV-TREE-38)."""
        for node in path:
            if node.host_slots is not None:
                continue
            if not self._make_host_room(len(node.key)):
                return
            node.host_slots = []
            self.host.fill(node.host_slots, len(node.key))
            self._transfer([node], is_store=True)

    def _load(self, path: Sequence[Node]) -> None:
        """Take slots for what the host alone has (KV-TREE-40)."""
        lacking = [node for node in path if not node.slots]
        for node in lacking:
            self.pools[Part.FULL].fill(node.slots, len(node.key))
        if lacking:
            self.loads.add(self._transfer(lacking, is_store=False))

    def _transfer(self, nodes: Sequence[Node], *, is_store: bool) -> int:
        self.num_transfers += 1
        slots = tuple(slot for node in nodes for slot in node.slots)
        host_slots = tuple(slot for node in nodes for slot in node.host_slots or ())
        self.transfers.append(Transfer(self.num_transfers, is_store, slots, host_slots))
        for node in nodes:
            node.transfers.add(self.num_transfers)
        return self.num_transfers

    def take_transfers(self) -> tuple[Transfer, ...]:
        transfers, self.transfers = self.transfers, []
        return tuple(transfers)

    @audited
    def complete(self, number: int) -> None:
        under_way = {each for node in self._nodes() for each in node.transfers}
        if type(number) is not int or number not in under_way - self.loads:
            raise InvalidArgumentError("number", number, "a store that is under way")
        self._done(number)

    def _done(self, number: int) -> None:
        for node in self._nodes():
            node.transfers.discard(number)

    def _make_host_room(self, number: int) -> bool:
        """Drop leaves that the host alone has until so many slots are free (KV-TREE-41)."""
        while self.host.num_free < number:
            alone = [node for node in self._nodes() if not node.slots and not node.children]
            if not alone:
                return False
            self._remove(min(alone, key=lambda node: node.last_used))
        return True

    # Room.

    def _needed(self, request: TreeRequest, length: int, new_length: int) -> dict[Part, int]:
        """Return the free slots of each part that a row needs to grow."""
        needed = {Part.FULL: self.pools[Part.FULL].missing(length, new_length)}
        needed[Part.FULL] += sum(len(n.key) for n in request.last.path() if not n.slots)
        if self.config.window_tokens:
            needed[Part.WINDOW] = needed[Part.FULL]
        if self.config.num_states and not request.is_running:
            needed[Part.STATE] = 1
        return needed

    def _fill(self, request: TreeRequest, length: int) -> None:
        self.pools[Part.FULL].fill(request.slots, length)
        if self.config.window_tokens:
            self.pools[Part.WINDOW].fill(request.window_slots, length)

    def _make_room(self, needed: dict[Part, int]) -> bool:
        """Evict until so many slots are free; evict nothing if that cannot be."""
        for part, number in needed.items():
            if self.pools[part].num_free + self.counts(part).num_evictable < number:
                return False
        for part, number in needed.items():
            while self.pools[part].num_free < number:
                if not self._evict_one(part):
                    return False
        return True

    @audited
    def evict(self, num_slots: int, num_window_slots: int = 0, num_states: int = 0) -> Evicted:
        wanted = {Part.FULL: num_slots, Part.WINDOW: num_window_slots, Part.STATE: num_states}
        for part, number in wanted.items():
            check_number(f"num_{part}", number, 0)
        before = {part: pool.num_free for part, pool in self.pools.items()}
        least = {part: min(wanted[part], self.counts(part).num_evictable) for part in wanted}
        for part, number in least.items():
            while self.pools[part].num_free < before[part] + number:
                if not self._evict_one(part):
                    break
        return Evicted(*(pool.num_free - before[part] for part, pool in self.pools.items()))

    def _evict_one(self, part: Part) -> bool:
        """Evict the first node that may go: a leaf whole, another's part (KV-TREE-29)."""
        may_go = [node for node in self._nodes() if self._may_go(node, part)]
        if not may_go:
            return False
        first = EVICTED_FIRST[self.config.order if part == Part.FULL else "lru"]
        is_by_tail = part == Part.FULL and self.config.order == "tlru"

        def key(node: Node) -> tuple[int, bool, Any]:
            is_tail = is_by_tail and node.start >= node.longest - self.config.tail_tokens
            return len(node.sessions), not is_tail, first(node)

        node = min(may_go, key=key)
        if node.host_slots is not None:  # the host keeps it (KV-TREE-39)
            self.pools[part].give_back(node.slots)
            node.slots = []
        elif not node.children:
            self._remove(node)
        elif part == Part.WINDOW:
            self.pools[part].give_back(node.window_slots or ())
            node.window_slots = None
        else:
            self.pools[part].give_back([node.state])
            node.state = None
        return True

    def _may_go(self, node: Node, part: Part) -> bool:
        if part == Part.FULL:
            is_leaf = node.slots and not any(child.slots for child in node.children)
            return bool(is_leaf) and not self._is_locked(node, part)
        has_part = node.window_slots is not None if part == Part.WINDOW else node.state is not None
        return has_part and not self._is_locked(node, part)

    def _remove(self, node: Node) -> None:
        """Remove a leaf, and then those above it in which no match can end now (KV-TREE-25)."""
        self.pools[Part.FULL].give_back(node.slots)
        self.host.give_back(node.host_slots or ())
        self.pools[Part.WINDOW].give_back(node.window_slots or ())
        self.pools[Part.STATE].give_back([node.state])
        above = node.parent
        if above is None:
            return
        above.children.remove(node)
        is_used = above.parent is None or above.children or self._is_locked(above, Part.FULL)
        if not is_used and not is_whole(above, self.config):
            self._remove(above)

    def _is_locked(self, node: Node, part: Part) -> bool:
        """Check whether a request, or a transfer, locks the node for this part (KV-TREE-9 …)."""
        if any(each.transfers for each in node.below()):
            return True
        for request in self.requests.values():
            if part == Part.STATE and request.last is node:
                return True
            is_on_path = node in request.last.path()
            if part == Part.FULL and is_on_path:
                return True
            if part == Part.WINDOW and is_on_path and node.end > request.window_start:
                return True
        return False

    def counts(self, part: Part) -> TreeCounts:
        evictable = protected = 0
        for node in self._nodes():
            number = len(node.slots)
            if part == Part.STATE:
                number = int(node.state is not None)
            elif part == Part.WINDOW and node.window_slots is None:
                number = 0
            if self._is_locked(node, part):
                protected += number
            else:
                evictable += number
        rows = sum(self._num_owned(request, part) for request in self.requests.values())
        return TreeCounts(self.pools[part].num_free, evictable, protected, rows)

    def _num_owned(self, request: TreeRequest, part: Part) -> int:
        """Return how many slots a request's row has outside of its protected tokens."""
        if part == Part.STATE:
            return int(request.state is not None)
        slots = request.slots if part == Part.FULL else request.window_slots
        own = [slot for slot in slots[request.num_protected :] if slot is not None]
        return self.pools[part].whole(len(own))
