"""A tree of prefixes with its admission, exactly as KV-TREE-1 … say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from kvref.tree.arguments import (
    check_config,
    check_new,
    check_number,
    check_session,
    check_tokens,
)
from kvref.tree.audit import audited, is_whole
from kvref.tree.nodes import EVICTED_FIRST, Node, walked
from kvref.tree.pools import Pool
from kvref.tree.requests import TreeRequest
from kvspec.errors import InvalidArgumentError
from kvspec.tree import Evicted, Part, Row, StateCopy, TreeConfig, TreeCounts, TreeNode


class ReferenceTree:
    """`staged`: copies of states that the next run makes first. `copies`: those that were made."""

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
        self.staged: list[StateCopy] = []
        self.copies: list[StateCopy] = []
        self.clock = 0

    # A request's life.

    @audited
    def arrive(
        self, request_id: str, tokens: Sequence[int], *, salt: str = "", priority: int = 0
    ) -> None:
        check_new(request_id, self.requests, salt, priority)
        known = check_tokens(tokens, least=1)
        root = self.roots.setdefault(salt, Node(salt))
        self.requests[request_id] = TreeRequest(salt, known, priority, root)

    def join(self, request_id: str, session: str) -> None:
        request = self._request(request_id, is_running=False)
        check_session(session)
        request.session = session

    def close_session(self, session: str) -> None:
        check_session(session)
        for node in self._nodes():
            node.sessions.discard(session)
        for request in self.requests.values():
            request.session = "" if request.session == session else request.session

    @audited
    def match(self, request_id: str) -> int:
        return self._matched(self._request(request_id, is_running=False)).end

    def _matched(self, request: TreeRequest) -> Node:
        """Return where the longest match ends (KV-TREE-16 … KV-TREE-19); it counts as a use."""
        root = self.roots[request.salt]
        end, live = root, 0
        for node in walked(root, request.tokens[:-1], self.page_size):
            live = live + len(node.key) if node.window_slots is not None else 0
            has_window = live >= min(self.config.window_tokens, node.end)
            has_state = not self.config.num_states or node.state is not None
            if has_window and has_state:
                end = node
        self._use(end)
        return end

    @audited
    def admit(self, request_id: str, num_new_tokens: int) -> int | None:
        """Use the match if there is room beside it, else do without (KV-TREE-21, KV-TREE-22)."""
        request = self._request(request_id, is_running=False)
        check_number("num_new_tokens", num_new_tokens, 1)
        for node in (self._matched(request), self.roots[request.salt]):
            request.lock(node, self.config.window_tokens)
            length = min(node.end + num_new_tokens, len(request.tokens))
            if self._make_room(self._needed(request, node.end, length)):
                self._begin(request, length)
                return node.end
        request.leave(self.roots[request.salt])
        return None

    def _begin(self, request: TreeRequest, length: int) -> None:
        request.is_running = True
        request.take_cached(has_window=self.config.window_tokens > 0)
        for node in request.last.path():
            node.num_hits += 1
        request.num_computed = request.num_protected
        if self.config.num_states:
            request.state = self.pools[Part.STATE].free.pop(0)
            self.staged.append(StateCopy(request.last.state, request.state))
        self._fill(request, length)

    @audited
    def extend(self, request_id: str, num_new_tokens: int) -> bool:
        request = self._request(request_id)
        check_number("num_new_tokens", num_new_tokens, 1)
        length = len(request.slots) + num_new_tokens
        if length > len(request.tokens):
            raise InvalidArgumentError("num_new_tokens", num_new_tokens, "tokens that there are")
        self._give_up(request)
        if not self._make_room(self._needed(request, len(request.slots), length)):
            return False
        self._fill(request, length)
        return True

    def _give_up(self, request: TreeRequest) -> None:
        """Free what neither a later token nor a checkpoint needs of the window (KV-TREE-31)."""
        start = request.num_protected
        stop = self._whole(self._whole(request.num_computed) - self.config.window_tokens)
        if self.config.window_tokens and start < stop:
            self.pools[Part.WINDOW].give_back(request.window_slots[start:stop])
            request.window_slots[start:stop] = [None] * (stop - start)

    @audited
    def append(self, request_id: str, tokens: Sequence[int]) -> None:
        self._request(request_id).tokens += check_tokens(tokens)

    @audited
    def run(self) -> None:
        """Make the staged copies, then compute."""
        self.copies += self.staged
        self.staged = []
        for request in self.requests.values():
            request.num_computed = len(request.slots)

    @audited
    def checkpoint(self, request_id: str) -> None:
        request = self._request(request_id)
        end = self._storable(request)
        if end is None:
            return
        state = None
        if self.config.num_states and not self._has_state(request, end):
            if not self._make_room({Part.STATE: 1}):
                return
            state = self.pools[Part.STATE].free.pop(0)
            self.copies.append(StateCopy(request.state, state))
        self._store(request, end, state)

    @audited
    def finish(self, request_id: str) -> None:
        request = self._request(request_id)
        end = self._storable(request)
        if end is not None:
            state = None if self._has_state(request, end) else request.state
            request.state = request.state if state is None else None
            self._store(request, end, state)
        for node in request.last.path() if request.session else ():
            node.sessions.add(request.session)
        self._release(request)
        del self.requests[request_id]

    @audited
    def abort(self, request_id: str) -> None:
        self._release(self._request(request_id, is_running=None))
        del self.requests[request_id]

    @audited
    def retract(self, request_id: str) -> None:
        self._release(self._request(request_id))

    def _release(self, request: TreeRequest) -> None:
        """Free the row but for its protected tokens, and unlock those (KV-TREE-8, KV-TREE-10)."""
        at = request.num_protected
        self.pools[Part.FULL].give_back(request.slots[at:])
        self.pools[Part.WINDOW].give_back(request.window_slots[at:])
        if request.state is not None:
            self.pools[Part.STATE].give_back([request.state])
            self.staged = [each for each in self.staged if each.target != request.state]
        request.leave(self.roots[request.salt])

    # What the tree takes over.

    def _storable(self, request: TreeRequest) -> int | None:
        """Return where a checkpoint ends; None if the tree has all that it can get (KV-TREE-28)."""
        end = self._whole(request.num_computed)
        is_exact = not self.config.num_states or end == request.num_computed
        return end if is_exact and end > request.num_protected else None

    def _has_state(self, request: TreeRequest, end: int) -> bool:
        path = walked(self.roots[request.salt], request.tokens[:end], self.page_size)
        return bool(path) and path[-1].end == end and path[-1].state is not None

    def _store(self, request: TreeRequest, end: int, state: int | None) -> None:
        """Store the first `end` tokens, and let the row use the tree's slots (KV-TREE-7)."""
        self.clock += 1
        last = self.roots[request.salt]
        for node in walked(last, request.tokens[:end], self.page_size):
            if node.end > request.num_protected:
                self._merge(request, node)
            last = node
        start = last.end
        given_up = [at for at in range(start, end) if request.window_slots[at : at + 1] == [None]]
        for stop in sorted({given_up[-1] + 1 if given_up else end, end}):
            last = self._grown(request, last, stop) if stop > last.end else last
        if state is not None:
            last.state = state
        for node in last.path():
            node.priority = max(node.priority, request.priority)
            node.longest = max(node.longest, end)
        self._use(last)
        request.lock(last, self.config.window_tokens)
        beyond = request.slots[end:], request.window_slots[end:]
        request.take_cached(has_window=self.config.window_tokens > 0)
        request.slots += beyond[0]
        request.window_slots += beyond[1]

    def _grown(self, request: TreeRequest, parent: Node, stop: int) -> Node:
        """Add a node with the request's own slots up to `stop`."""
        start = parent.end
        node = Node(request.salt, parent, tuple(request.tokens[start:stop]))
        node.slots = request.slots[start:stop]
        window = [slot for slot in request.window_slots[start:stop] if slot is not None]
        node.window_slots = window or None
        node.created = self.clock
        parent.children.append(node)
        return node

    def _merge(self, request: TreeRequest, node: Node) -> None:
        """Free the row's duplicates of a node, or let it recover its window (KV-TREE-26)."""
        start, stop = node.start, node.end
        own = request.window_slots[start:stop]
        live = [slot for slot in own if slot is not None]
        if node.window_slots is None and 0 < len(live) < len(own):
            upper = node.split(len(own) - len(live))
            self._merge(request, upper)
            self._merge(request, node)
            return
        if node.window_slots is None and live:
            node.window_slots = live
        else:
            self.pools[Part.WINDOW].give_back(live)
        self.pools[Part.FULL].give_back(request.slots[start:stop])

    # Room.

    def _needed(self, request: TreeRequest, length: int, new_length: int) -> dict[Part, int]:
        """Return the free slots of each part that a row needs to grow."""
        needed = {Part.FULL: self.pools[Part.FULL].missing(length, new_length)}
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
        if not node.children:
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
            return not node.children and not self._is_locked(node, part)
        has_part = node.window_slots is not None if part == Part.WINDOW else node.state is not None
        return has_part and not self._is_locked(node, part)

    def _remove(self, node: Node) -> None:
        """Remove a leaf, and then those above it in which no match can end now (KV-TREE-25)."""
        self.pools[Part.FULL].give_back(node.slots)
        self.pools[Part.WINDOW].give_back(node.window_slots or ())
        self.pools[Part.STATE].give_back([node.state])
        above = node.parent
        if above is None:
            return
        above.children.remove(node)
        is_used = above.parent is None or above.children or self._is_locked(above, Part.FULL)
        if not is_used and not is_whole(self, above):
            self._remove(above)

    def _is_locked(self, node: Node, part: Part) -> bool:
        """Check whether a request locks the node for this part (KV-TREE-9, KV-TREE-10)."""
        for request in self.requests.values():
            if part == Part.STATE and request.last is node:
                return True
            is_on_path = node in request.last.path()
            if part == Part.FULL and is_on_path:
                return True
            if part == Part.WINDOW and is_on_path and node.end > request.window_start:
                return True
        return False

    def reset(self) -> None:
        """Drop all nodes, unless a request runs (KV-TREE-32)."""
        if any(request.is_running for request in self.requests.values()):
            raise InvalidArgumentError("requests", "some run", "none that runs")
        for root in self.roots.values():
            root.children = []
        self.pools = {p: Pool(pool.num_slots, pool.page_size) for p, pool in self.pools.items()}

    # What can be seen.

    def row(self, request_id: str) -> Row:
        request = self._request(request_id)
        slots, window_slots = tuple(request.slots), tuple(request.window_slots)
        return Row(slots, window_slots, request.state, request.num_protected)

    def counts(self, part: Part) -> TreeCounts:
        evictable = protected = 0
        for node in self._nodes():
            number = len(node.key)
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

    def take_copies(self) -> tuple[StateCopy, ...]:
        copies, self.copies = self.copies, []
        return tuple(copies)

    def nodes(self) -> tuple[TreeNode, ...]:
        return tuple(
            TreeNode(
                node.salt,
                node.tokens,
                tuple(node.slots),
                None if node.window_slots is None else tuple(node.window_slots),
                node.state,
            )
            for node in self._nodes()
        )

    # Parts of the rules.

    def _nodes(self) -> Iterator[Node]:
        for root in self.roots.values():
            yield from root.below()[1:]

    def _request(self, request_id: str, *, is_running: bool | None = True) -> TreeRequest:
        request = self.requests.get(request_id) if type(request_id) is str else None
        if request is None or is_running not in (None, request.is_running):
            wanted = {True: "one that runs", False: "one that waits", None: "one that has arrived"}
            raise InvalidArgumentError("request_id", request_id, wanted[is_running])
        return request

    def _use(self, node: Node) -> None:
        """Make a path the most recently used, its end last."""
        for each in node.path():
            self.clock += 1
            each.last_used = self.clock

    def _whole(self, number: int) -> int:
        return max(0, number) // self.page_size * self.page_size
