"""A tree of prefixes with its admission, exactly as KV-TREE-1 … say."""

from __future__ import annotations

from collections.abc import Sequence

from kvref.tree.arguments import check_new, check_number, check_session, check_tokens
from kvref.tree.audit import audit
from kvref.tree.nodes import Node, walked
from kvref.tree.pools import Pool
from kvref.tree.requests import TreeRequest
from kvref.tree.room import Room, audited
from kvspec.errors import InvalidArgumentError
from kvspec.tree import Part, Row, StateCopy, TreeConfig, TreeNode


class ReferenceTree(Room):
    """`staged`: copies of states that the next run makes first. `copies`: those that were made."""

    def __init__(self, config: TreeConfig) -> None:
        super().__init__(config)
        self.staged: list[StateCopy] = []
        self.copies: list[StateCopy] = []
        self.clock = 0

    def audit(self) -> None:
        audit(self)

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
        root = self.roots[request.salt]
        end = self._matched(request)
        on_device = [node for node in end.path() if node.slots]
        for node in (end, *on_device[-1:], root):
            request.lock(node, self.config.window_tokens)
            length = min(node.end + num_new_tokens, len(request.tokens))
            if self._make_room(self._needed(request, node.end, length)):
                self._load(node.path())
                self._begin(request, length)
                return node.end
        request.leave(root)
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
        """Make the staged copies and the loads, then compute."""
        for number in self.loads:
            self._done(number)
        self.loads = set()
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
        self._mirror(last.path())
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
        if not node.slots:  # the host alone has it
            node.slots = request.slots[start:stop]
            return
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

    def reset(self) -> None:
        """Drop all nodes, unless a request runs (KV-TREE-32)."""
        if any(request.is_running for request in self.requests.values()):
            raise InvalidArgumentError("requests", "some run", "none that runs")
        if any(node.transfers for node in self._nodes()):
            raise InvalidArgumentError("transfers", "under way", "none")
        for root in self.roots.values():
            root.children = []
        self.pools = {p: Pool(pool.num_slots, pool.page_size) for p, pool in self.pools.items()}
        self.host = Pool(self.config.num_host_slots, self.page_size)

    # What can be seen.

    def row(self, request_id: str) -> Row:
        request = self._request(request_id)
        slots, window_slots = tuple(request.slots), tuple(request.window_slots)
        return Row(slots, window_slots, request.state, request.num_protected)

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
                None if node.host_slots is None else tuple(node.host_slots),
            )
            for node in self._nodes()
        )

    # Parts of the rules.

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
