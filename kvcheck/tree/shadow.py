"""What must hold of a tree, by what its calls return and its device computes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from kvcheck.play import lives
from kvcheck.tree.device import Content, Device, Running
from kvcheck.tree.mirror import Mirror
from kvcheck.tree.order import Ages
from kvcheck.tree.structure import Prefix, Stored
from kvspec.tree import Part, Row, TreeCapabilities, TreeConfig, TreeCounts, TreeNode

ENDS = ("KV-TREE-8", "KV-TREE-35")
"""Rules of calls that end a row."""


class Shadow(lives.Shadow):
    """`sizes`: slots of each part that the tree has. `copied`: prefixes of pages under way."""

    def __init__(self, config: TreeConfig, can: TreeCapabilities) -> None:
        super().__init__()
        self.config, self.can = config, can
        sizes = {
            Part.FULL: config.num_slots,
            Part.WINDOW: config.num_window_slots if config.window_tokens else 0,
            Part.STATE: config.num_states,
        }
        self.sizes = {part: size for part, size in sizes.items() if size}
        self.parts = tuple(self.sizes)
        self.device = Device(config.window_tokens)
        self.mirror = Mirror(config, self.judge)
        self.copied: set[Content] = set()
        self.requests: dict[str, Running] = {}
        self.ages = Ages(config)
        self.is_gone = self.has_lost_half = self.has_recovered = False
        self.has_sure_ages = True  # until a request is refused that may have been looked up

    def kept(self, part: Part) -> int:
        """Return how many states requests that wait may keep."""
        is_so = part == Part.STATE and self.can.waits_with_state
        return len(self.requests) - len(self.running) if is_so else 0

    @property
    def running(self) -> dict[str, Running]:
        return {name: each for name, each in self.requests.items() if each.is_running}

    # Results of calls.

    def matched(
        self,
        request: Running,
        num_tokens: int,
        nodes: Sequence[TreeNode],
        *,
        is_admitted: bool = False,
    ) -> None:
        """Judge a hit by the nodes before the call."""
        length = len(request.tokens)
        problem = f"{num_tokens} of {length} tokens are cached"
        self.judge("KV-TREE-19", num_tokens < length, problem)
        is_so = num_tokens % self.config.page_size_tokens == 0
        self.judge("KV-TREE-16", is_so, f"{problem}: no whole pages")
        if not self.can.has_nodes:
            return
        longest = Stored(self.config, nodes).longest(request.salt, request.tokens[:-1])
        rule = longest.rule_broken_by(num_tokens)
        if is_admitted and not num_tokens:
            rule = ""  # there may be no room beside a hit
        others = [each for each in nodes if each.salt != request.salt]
        is_elsewhere = any(tuple(request.tokens[: len(n.slots)]) == n.tokens for n in others)
        is_late = is_admitted and num_tokens == request.last_match != longest.most
        for each, is_tried in (("KV-TREE-2", is_elsewhere), ("KV-TREE-23", is_late)):
            self.tried[each] += is_tried
        rules = [rule, "KV-TREE-1", *longest.why]
        if num_tokens == request.last_match:
            rules.append("KV-TREE-23")
        if num_tokens > longest.full and (is_elsewhere or is_late):
            rules.insert(0, "KV-TREE-23" if is_late else "KV-TREE-2")
        for each in {"KV-TREE-16", *longest.why}:
            self.tried[each] += 1
        problem += f", and {longest.least} can be: the nodes have {longest.full}"
        self.judge(rules[0] or "KV-TREE-16", not rule, problem, *rules[1:])
        request.last_match = num_tokens

    def admitted(self, name: str, num_cached: int) -> None:
        """Judge the row of a request that was just admitted."""
        if not self.can.has_rows:
            return
        self.extended(name)
        request = self.requests[name]
        got = request.row.num_protected
        self.judge(
            "KV-TREE-6", got == num_cached, f"{got} of {num_cached} hit tokens are protected"
        )
        stale = self.device.stale(request, num_cached)
        if stale is None or self.config.num_host_slots:  # what is loaded is not there yet
            return
        part, at = stale
        slots = request.row.slots if part == Part.FULL else request.row.window_slots
        contents = self.device.full if part == Part.FULL else self.device.window
        slot = slots[at]
        held = None if slot is None else contents.get(slot)
        is_salted = held is not None and held[0] != request.salt
        rule = "KV-TREE-17" if part == Part.WINDOW else "KV-TREE-2" if is_salted else "KV-TREE-1"
        self.judge(rule, False, f"token {at} of {name} is a hit on {_content(held)}")

    def extended(self, name: str) -> None:
        """Judge how many slots a request has."""
        if self.can.has_rows:
            got, wanted = len(self.requests[name].row.slots), self.requests[name].num_allocated
            problem = f"{name} has {got} slots, and should have {wanted}"
            self.judge("KV-TREE-36", got == wanted, problem)

    def run(self) -> None:
        """Judge what each running request reads, then compute."""
        self.mirror.load(self.device.full)
        for name, request in self.running.items() if self.can.has_rows else ():
            self._reads(name, request)
        for request in self.running.values():
            if self.can.has_rows and not request.has_run:
                self.device.compute(request)
            request.num_computed, request.has_run = request.num_allocated, True

    def _reads(self, name: str, request: Running) -> None:
        stale = self.device.stale(request, request.num_computed)
        part, at = stale or (Part.FULL, 0)
        is_protected = at < request.row.num_protected
        rule = "KV-TREE-11" if is_protected else "KV-TREE-5"
        if part == Part.WINDOW:
            rule = "KV-TREE-9" if is_protected else "KV-TREE-31"
        problem = f"{name} reads something else at token {at} of {part}"
        self.judge(rule, stale is None, problem, "KV-TREE-7", "KV-TREE-17")
        if self.config.num_states and not request.has_run:
            self._reads_state(name, request)

    def _reads_state(self, name: str, request: Running) -> None:
        state = request.row.state
        wanted = request.state(request.num_computed)
        held = None if state is None else self.device.states.get(state)
        is_first = request.num_computed == request.row.num_protected
        rule = "KV-TREE-27" if is_first else "KV-TREE-5"
        problem = f"{name} goes on from a state of {_content(held)}, and not of {_content(wanted)}"
        self.judge(rule, held == wanted, problem, "KV-TREE-34", "KV-TREE-18")
        self.tried["KV-TREE-34"] += is_first and request.num_computed > 0

    def evicted(
        self, part: Part, asked: int, got: int, counts: tuple[TreeCounts, TreeCounts]
    ) -> None:
        """Judge a part's result of `evict` by the counts before and after."""
        freed = counts[1].num_free - counts[0].num_free
        self.judge(
            "KV-TREE-15", got == freed, f"{got} of {part} were said to be freed: {freed} were"
        )
        least = min(asked, counts[0].num_evictable)
        problem = f"{freed} of {part} were freed, of {asked} asked and {least} possible"
        self.judge("KV-TREE-14", freed >= least, problem, "KV-TREE-29")

    def took_nothing(
        self, rule: str, before: Mapping[Part, TreeCounts], after: Mapping[Part, TreeCounts]
    ) -> None:
        """Judge that nothing is used but what was; only an eviction may have taken place."""
        for part in self.parts:
            was, now = before[part], after[part]
            used = was.num_protected + was.num_rows, now.num_protected + now.num_rows
            is_so = used[0] <= used[1] <= used[0] + self.kept(part)
            self.judge(rule, is_so, f"{used[1]} of {part} are in use, before {used[0]}")

    # What can be seen after each call.

    def unchanged(self, name: str, before: Row, row: Row) -> None:
        """Judge the row of a request after a call that is not about it."""
        is_so = row.num_protected == before.num_protected
        problem = f"another request's call has changed the row of {name}"
        self.judge("KV-TREE-10", is_so, problem, "KV-TREE-6")
        self.judge("KV-TREE-5", row.slots == before.slots and row.state == before.state, problem)

    def nodes_fit(self, nodes: Sequence[TreeNode], rule: str) -> None:
        """Judge the shape of the tree, and the content of its nodes."""
        stored = Stored(self.config, nodes)
        problem = stored.shape()
        if not self.can.has_whole_leaves and problem is not None and problem[0] == "KV-TREE-25":
            problem = None
        for each in ("KV-TREE-1", "KV-TREE-4", "KV-TREE-25", "KV-TREE-29"):
            self.judge(each, problem is None or problem[0] != each, problem[1] if problem else "")
        loading = self.mirror.loading
        self.copied = self._copied(nodes)
        for node in nodes if self.can.has_rows else ():
            if loading.isdisjoint(node.slots):
                self._holds(node, rule)
        self.ages.see(stored)

    def _copied(self, nodes: Sequence[TreeNode]) -> set[Content]:
        locked, page = self.mirror.locked, self.config.page_size_tokens
        ends = [node for node in nodes if not locked.isdisjoint(node.slots)]
        return {
            (node.salt, node.tokens[:end])
            for node in ends
            for end in range(page, len(node.tokens) + 1, page)
        }

    def changed(self, before: Sequence[TreeNode], nodes: Sequence[TreeNode], rule: str) -> None:
        """Judge what a call has done to pages that were stored before it, and are still."""
        was, now = Stored(self.config, before), Stored(self.config, nodes)
        kept = was.slots.keys() & now.slots.keys()
        self.is_gone = kept != was.slots.keys() or bool(was.states - now.states)
        ends = {(node.salt, node.tokens) for node in before}
        is_split = any((node.salt, node.tokens) in kept - ends for node in nodes)
        lost, found = (was.live - now.live) & kept, (now.live - was.live) & kept
        moved = {prefix for prefix in kept if was.slots[prefix] != now.slots[prefix]}
        self.is_gone |= bool(lost) and not is_split
        self.has_lost_half, self.has_recovered = bool(lost) and is_split, bool(found)
        for each, pages in (("KV-TREE-24", lost), ("KV-TREE-26", found)):
            self.tried[each] += bool(pages)
        self.judge("KV-TREE-24", not moved & lost, f"{_ends(moved)} have other slots than before")
        if rule in ("KV-TREE-20", "KV-TREE-3"):
            first = "KV-TREE-3" if is_split else "KV-TREE-20"
            states = was.states & kept == now.states & kept
            is_so = not moved and not lost and not found and states and kept == was.slots.keys()
            problem = f"a look-up has changed {_ends(moved | lost | found or kept)}"
            self.judge(first, is_so, problem, "KV-TREE-20")

    def _holds(self, node: TreeNode, rule: str) -> None:
        """Judge the content of a node; `rule`: of the call, which may have stored it."""
        start = len(node.tokens) - len(node.slots)
        is_new = (node.salt, node.tokens) not in self.ages.of
        for place, slot in enumerate(node.slots):
            wanted = node.salt, node.tokens[: start + place + 1]
            held = self.device.full.get(slot)
            first = ("KV-TREE-7" if rule == "KV-TREE-8" else rule) if is_new else "KV-TREE-5"
            if held is not None and len(held[1]) == len(wanted[1]):
                first = "KV-TREE-2" if held[0] != wanted[0] else "KV-TREE-1"
            problem = f"the node of {_content(wanted)} has {_content(held)} in slot {slot}"
            self.judge(first, held == wanted, problem, rule, "KV-TREE-3")
            if node.window_slots is not None:
                held = self.device.window.get(node.window_slots[place])
                problem = f"the node of {_content(wanted)} has {_content(held)} in its window"
                self.judge("KV-TREE-26", held == wanted, problem, rule, "KV-TREE-5")
        if node.state is not None:
            held = self.device.states.get(node.state)
            is_so = held == (node.salt, node.tokens)
            problem = f"the node of {node.tokens} has a state that has seen {_content(held)}"
            self.judge("KV-TREE-28", is_so, problem, "KV-TREE-3", "KV-TREE-5")

    def rows_fit(self, nodes: Sequence[TreeNode], rule: str) -> None:
        """Judge that each slot has one owner, and that rows begin with the tree's slots."""
        stored = Stored(self.config, nodes)
        for name, request in self.running.items():
            row = request.row
            is_so = row.num_protected % self.config.page_size_tokens == 0
            is_so &= row.num_protected <= len(row.slots)
            self.judge("KV-TREE-6", is_so, f"{row.num_protected} tokens of {name} are protected")
            if not self.can.has_nodes:
                continue
            path = stored.slots_of(request.salt, request.tokens[: row.num_protected])
            problem = f"{name} locks {row.num_protected} tokens, and {len(path)} are in the tree"
            is_so = len(path) == row.num_protected
            self.judge("KV-TREE-11", is_so, problem, "KV-TREE-10", "KV-TREE-9", "KV-TREE-3")
            is_so = list(row.slots[: row.num_protected]) == path
            rules = ("KV-TREE-7", "KV-TREE-6") if rule == "KV-TREE-7" else ("KV-TREE-6", rule)
            self.judge(rules[0], is_so, f"the row of {name} and its path differ", rules[1])
        for part in self.parts:
            owners = Counter(stored.pages(part))
            for request in self.running.values():
                owners.update(self._own_pages(part, request))
            twice = sorted(page for page, number in owners.items() if number > 1)
            problem = f"of {part} {twice} have several owners (pages)"
            others = ("KV-TREE-26", rule) if self.has_recovered else (rule,)
            self.judge("KV-TREE-5", not twice, problem, *others)

    def _own_pages(self, part: Part, request: Running) -> set[int]:
        row, page = request.row, self.config.page_size_tokens
        if part == Part.STATE:
            return {*row.spare_states, *([] if row.state is None else [row.state])}
        slots = row.slots if part == Part.FULL else row.window_slots
        return {slot // page for slot in slots[row.num_protected :] if slot is not None}

    def counts_fit(
        self, counts: Mapping[Part, TreeCounts], nodes: Sequence[TreeNode], rule: str
    ) -> None:
        """Judge the accounts after a call that `rule` is about."""
        if self.can.has_nodes and self.can.has_rows:
            self._all_placed(counts, Stored(self.config, nodes), rule)
        for part, each in counts.items():
            self._one_count(part, each, rule)

    def _all_placed(self, counts: Mapping[Part, TreeCounts], stored: Stored, rule: str) -> None:
        """Judge that what neither a node nor a row has is free."""
        first = "KV-TREE-3" if self.has_lost_half else "KV-TREE-4" if self.is_gone else rule
        for part, each in counts.items():
            page = 1 if part == Part.STATE else self.config.page_size_tokens
            used = stored.pages(part)
            for request in self.running.values():
                used |= self._own_pages(part, request)
            wanted = self.sizes[part] - len(used) * page
            problem = f"{each.num_free} of {part} are free, and {wanted} are in no place"
            others = ("KV-TREE-24", "KV-TREE-29", rule, "KV-TREE-12")
            is_less = each.num_free < wanted
            is_so = wanted - self.kept(part) <= each.num_free <= wanted
            doubt = "KV-TREE-26" if self.has_recovered else "KV-TREE-12"
            rules = (first, *others) if is_less else ("KV-TREE-5", rule, doubt)
            self.judge(rules[0], is_so, problem, *rules[1:])

    def _one_count(self, part: Part, counts: TreeCounts, rule: str) -> None:
        total = counts.num_free + counts.num_evictable + counts.num_protected + counts.num_rows
        self.judge("KV-TREE-12", total == self.sizes[part], f"{part}: {counts} are {total}", rule)
        if not self.running:
            most = len(self.copied) * self.config.page_size_tokens
            is_so = counts.num_protected <= most and counts.num_rows <= self.kept(part)
            first = rule if rule in ("KV-TREE-20", "KV-TREE-21") else "KV-TREE-13"
            self.judge(first, is_so, f"nobody runs, and {part} has {counts}", rule, "KV-TREE-13")
        if not self.can.has_rows:
            return
        page = 1 if part == Part.STATE else self.config.page_size_tokens
        owned = sum(len(self._own_pages(part, each)) * page for each in self.running.values())
        problem = f"the rows own {owned} of {part}, and {counts.num_rows} are counted"
        is_so = owned <= counts.num_rows <= owned + self.kept(part)
        self.judge("KV-TREE-12", is_so, problem, rule)
        least, most = self._protected(part)
        got = counts.num_protected
        problem = f"{got} of {part} are protected, and rows lock at least {least}"
        copied = ["KV-TREE-38"] * bool(self.copied)
        self.judge("KV-TREE-10" if rule in ENDS else "KV-TREE-9", got >= least, problem, *copied)
        problem = f"{got} of {part} are protected, and rows lock at most {most}"
        first = rule if rule in ("KV-TREE-20", "KV-TREE-21") else "KV-TREE-10"
        self.judge(first, got <= most, problem, "KV-TREE-9")

    def _protected(self, part: Part) -> tuple[int, int]:
        """Return how many slots of nodes are locked at least and at most."""
        page = 1 if part == Part.STATE else self.config.page_size_tokens
        paths: set[Content] = set()
        read: set[Content] = set()
        if part == Part.FULL:
            paths, read = set(self.copied), set(self.copied)
        for request in self.running.values():
            stop = request.row.num_protected
            if part == Part.STATE:
                paths |= {request.content(stop)} if stop else set()
                read |= {request.content(stop)} if stop and not request.has_run else set()
                continue
            paths |= {request.content(end) for end in range(page, stop + 1, page)}
            reach = self.config.window_tokens - 1 if part == Part.WINDOW else request.num_computed
            first = max(0, request.num_computed - reach)
            pages = {at // page for at in range(first, stop)}
            read |= {request.content((each + 1) * page) for each in pages}
        return len(read) * page, len(paths) * page

    # Ages, for the order of eviction.

    def used(self, request: Running, num_tokens: int, *, is_hit: bool = False) -> None:
        self.ages.use(request.salt, request.tokens[:num_tokens], is_hit=is_hit)

    def wrote(self, request: Running, was: int, num_tokens: int) -> None:
        """Note a checkpoint, if it stored whole pages behind the first `was` tokens."""
        if num_tokens >= was + self.config.page_size_tokens:
            self.ages.use(request.salt, request.tokens[:num_tokens])

    def left_by(self, asked: Sequence[int], nodes: Sequence[TreeNode]) -> set[Prefix] | None:
        """Return the nodes that an eviction should leave; None if its order is not judged."""
        is_plain = self.parts == (Part.FULL,) and self.can.has_nodes and self.can.has_rows
        is_plain &= not self.config.num_host_slots
        is_plain &= self.has_sure_ages or self.config.order in ("fifo", "filo")
        if not is_plain or self.config.order not in self.can.orders:
            return None
        locked = [(r.salt, tuple(r.tokens[: r.row.num_protected])) for r in self.running.values()]
        return self.ages.left(nodes, asked[0], locked)

    def in_order(self, wanted: set[Prefix] | None, nodes: Sequence[TreeNode]) -> None:
        """Judge which leaves an eviction of full slots has taken (KV-TREE-30)."""
        if wanted is not None:
            got = {(node.salt, node.tokens) for node in nodes}
            problem = f"left are {sorted(got - wanted)}: {sorted(wanted - got)} gave way instead"
            rules = [*(["KV-TREE-37"] if self.ages.has_sessions else []), "KV-TREE-30", "KV-TREE-3"]
            self.judge(rules[0], got == wanted, problem, *rules[1:])

    def forget(self) -> None:
        self.ages = Ages(self.config)


def _ends(prefixes: Iterable[Prefix]) -> str:
    return ", ".join(str(list(tokens)) for _salt, tokens in sorted(prefixes))


def _content(held: Content | None) -> str:
    if held is None:
        return "nothing"
    salt, tokens = held
    return f"{list(tokens)}{salt and f' with salt {salt}'}"
