"""Words of an example about a tree of prefixes: `tree 8 page=2`, `tree admit r -> 4`."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import Any

from kvcheck.play.left_out import LeftOut
from kvcheck.rules.bench import Bench
from kvcheck.rules.judging import NotationError, wrong
from kvcheck.rules.notation.values import Name, text_of, tokens_of
from kvcheck.rules.notation.words import call_named, check_words
from kvspec.tree import Part, PrefixTree, TreeConfig, TreeImplementation, TreeNode

MEMBERS = MappingProxyType(
    {
        "page": "page_size_tokens",
        "window": "window_tokens",
        "window_slots": "num_window_slots",
        "states": "num_states",
        "host": "num_host_slots",
    }
)


class Trees:
    """A tree of prefixes; a letter is a page of tokens.

    `num_cached`: prompts that `cache` made. `left`: letters that `lost` has returned. `running`:
    requests with a row.
    """

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.tree: PrefixTree | None = None
        self.config = TreeConfig(1)
        self.num_cached = 0
        self.left: list[str] = []
        self.running: set[str] = set()

    def do_tree(self, first: Any, *values: Any, **members: Any) -> Any:
        """Make a tree of `first` slots, or make a call of the current one by its name."""
        if not isinstance(first, Name):
            return self._made(first, **members)
        if self.tree is None:
            raise NotationError("no tree: it is made by `tree 8`")
        given = [value.word if isinstance(value, Name) else value for value in values]
        named = {name: getattr(value, "word", value) for name, value in members.items()}
        if first.word in ("join", "close_session"):
            self._need_sessions()
        if first.word in ("finish", "abort", "retract"):
            check_words(first.word, getattr(self.tree, first.word), *given)
            return self._ended(first.word, self.tree, *given)
        call = getattr(self, f"_{first.word}", None)
        if call is not None:
            check_words(first.word, call, self.tree, *given, **named)
            return call(self.tree, *given, **named)
        return call_named(self.tree, first.word, *given, **named)

    def _need_sessions(self) -> None:
        subject: Any = self.bench.subject
        if not subject.tree_capabilities.has_sessions:
            raise LeftOut("a tree with sessions")

    def _made(self, num_slots: int, **members: Any) -> None:
        """Make a tree; `window` and `states` bring pools of as many slots as are not given."""
        subject: Any = self.bench.subject
        if not isinstance(subject, TreeImplementation):
            raise LeftOut("a tree of prefixes")
        given = {MEMBERS.get(name, name): value for name, value in members.items()}
        order = given.pop("order", None)
        config = TreeConfig(num_slots, **given, check_invariants=False)
        if config.window_tokens and "num_window_slots" not in given:
            config = replace(config, num_window_slots=num_slots)
        config = config if order is None else replace(config, order=order.word)
        able = subject.tree_capabilities
        lacks = {Part.WINDOW: config.window_tokens, Part.STATE: config.num_states}
        if config.num_host_slots and not able.has_host:
            raise LeftOut("a tree with copies on the host")
        for part, number in lacks.items():
            if number and part not in able.parts:
                raise LeftOut(f"a tree with a part {part}")
        if config.order not in {"lru", *able.orders} and order is not None:
            raise LeftOut(f"a tree of order {config.order}")
        self.config, self.tree = config, subject.make_tree(config)
        self.left, self.running = [], set()

    def _arrive(self, tree: PrefixTree, name: str, *tokens: Any, **members: Any) -> None:
        tree.arrive(name, tokens_of(tokens, self.config.page_size_tokens), **members)

    def _append(self, tree: PrefixTree, name: str, *tokens: Any) -> None:
        tree.append(name, tokens_of(tokens, self.config.page_size_tokens))

    def _admit(self, tree: PrefixTree, name: str, num_new_tokens: int = 10**6) -> int | None:
        num_cached = tree.admit(name, num_new_tokens)
        self.running |= set() if num_cached is None else {name}
        return num_cached

    def _ended(self, call: str, tree: PrefixTree, name: str) -> None:
        getattr(tree, call)(name)
        self.running.discard(name)

    def _start(self, tree: PrefixTree, name: str, *tokens: Any, **members: Any) -> None:
        """Let a request arrive, be admitted whole, and run."""
        self._arrive(tree, name, *tokens, **members)
        if self._admit(tree, name) is None:
            raise wrong("the answer", "a row", None)
        tree.run()

    def _cache(self, tree: PrefixTree, *tokens: Any, **members: Any) -> None:
        """Start a request, and finish it at once: the tree has its prompt."""
        self.num_cached += 1
        name = f"prompt {self.num_cached}"
        self._start(tree, name, *tokens, **members)
        self._ended("finish", tree, name)

    def _decode(self, tree: PrefixTree, name: str, *tokens: Any) -> bool:
        """Append tokens, allocate them, and run."""
        given = tokens_of(tokens, self.config.page_size_tokens)
        tree.append(name, given)
        has_room = tree.extend(name, len(given))
        if has_room:
            tree.run()
        return has_room

    def _counts(self, tree: PrefixTree, part: str) -> Any:
        return tree.counts(Part(part))

    def _evict(self, tree: PrefixTree, *numbers: int) -> Any:
        found = tree.evict(*numbers)
        return [found.num_slots, found.num_window_slots, found.num_states][: len(self._parts)]

    def _take_copies(self, tree: PrefixTree) -> Any:
        return [[each.source, each.target] for each in tree.take_copies()]

    def _take_transfers(self, tree: Any) -> Any:
        begun = tree.take_transfers()
        return [[t.number, t.is_store, list(t.slots), list(t.host_slots)] for t in begun]

    def _nodes(self, tree: PrefixTree) -> Any:
        """Return each node as [text of its prefix, slots, slots of the window, state]."""
        return [self._node(node) for node in tree.nodes()]

    def _node(self, node: TreeNode) -> Any:
        text = text_of(node.tokens, self.config.page_size_tokens)
        window = None if node.window_slots is None else list(node.window_slots)
        parts = {Part.FULL: list(node.slots), Part.WINDOW: window, Part.STATE: node.state}
        return [text, *(parts[part] for part in self._parts)]

    def _lost(self, tree: PrefixTree, text: str) -> Any:
        """Return those letters of the text with which no node begins, in the order they left."""
        begun = {text_of(node.tokens, self.config.page_size_tokens)[0] for node in tree.nodes()}
        self.left += [letter for letter in text if letter not in {*begun, *self.left}]
        return "".join(self.left)

    @property
    def _parts(self) -> list[Part]:
        has = {Part.WINDOW: self.config.window_tokens, Part.STATE: self.config.num_states}
        return [part for part in Part if has.get(part, True)]

    def drawn(self) -> str:
        """Return the nodes, those below a node indented behind it, and the rows."""
        if self.tree is None:
            return ""
        page = self.config.page_size_tokens
        lines = []
        for node in self.tree.nodes():
            start = text_of(node.tokens[: len(node.tokens) - len(node.slots)], page)
            text = text_of(node.tokens, page)[len(start) :]
            slots = " ".join(map(str, node.slots))
            window = f"  window {list(node.window_slots)}" if node.window_slots else ""
            state = "" if node.state is None else f"  state {node.state}"
            lines.append(f"{' ' * len(start)}{text:<6} [{slots}]{window}{state}")
        for name in sorted(self.running):
            row = self.tree.row(name)
            slots = " ".join(map(str, row.slots))
            lines.append(f"row of {name}: [{slots}], {row.num_protected} protected")
        counts = (f"{part} {self.tree.counts(part).num_free}" for part in self._parts)
        return "\n".join([*lines, f"free: {', '.join(counts)}"])

    def visible(self) -> object:
        """Return what a refused call may not change."""
        if self.tree is None:
            return None
        return self.tree.nodes(), [self.tree.counts(part) for part in self._parts]
