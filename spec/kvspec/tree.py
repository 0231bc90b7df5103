"""A cache of prefixes in a tree, with the admission that drives it (KV-TREE-1 …).

The nodes of a tree hold *slots*: places of one token's keys and values. A node's key is a run of
whole pages of tokens, and the path to it is a prefix; requests with equal prefixes share its slots.
Besides full attention a tree may have a pool of slots for layers with a sliding window, and a pool
of recurrent states. A request that runs has a *row*: the slots of its tokens, of which the first,
the protected ones, belong to the tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, runtime_checkable


class Part(StrEnum):
    """A pool of slots: of full attention, of layers with a window, of recurrent states."""

    FULL = "full"
    WINDOW = "window"
    STATE = "state"


ORDERS = ("lru", "lfu", "fifo", "mru", "filo", "priority", "slru", "tlru")
"""Orders of eviction by name (KV-TREE-30)."""


@dataclass(frozen=True)
class TreeConfig:
    """The pools of a tree, and how nodes are evicted.

    - `num_slots`: slots of full attention; as `num_window_slots` whole pages of `page_size_tokens`.
    - `window_tokens`: 0 without layers that have a window; then `num_window_slots` is 0, too.
    - `num_states`: 0 without recurrent layers.
    - `tail_tokens`: of order `tlru`, so many tokens at the end of what was stored go first.
    - `num_host_slots`: of the host's memory, whole pages; 0 without mirrors.
    - `check_invariants`: for a tree that can check itself after each call.
    """

    num_slots: int
    page_size_tokens: int = 1
    window_tokens: int = 0
    num_window_slots: int = 0
    num_states: int = 0
    order: str = "lru"
    check_invariants: bool = True
    tail_tokens: int = 0
    num_host_slots: int = 0


@dataclass(frozen=True)
class Row:
    """What a running request uses: the slots of its first tokens, as many as are allocated.

    - `window_slots`: the same for layers with a window; None for tokens that were given up.
    - `num_protected`: of its tokens that many are in the tree, and locked there.
    - `spare_states`: slots of states that it has beside the one it works on.
    """

    slots: tuple[int, ...]
    window_slots: tuple[int | None, ...] = ()
    state: int | None = None
    num_protected: int = 0
    spare_states: tuple[int, ...] = ()


@dataclass(frozen=True)
class StateCopy:
    """A state that was copied to `target` just now, or cleared there if `source` is None.

    `num_tokens`: the copy is of the state as it was after so many tokens of its request, in the
    `run` before this; None: as it is.
    """

    source: int | None
    target: int
    num_tokens: int | None = None


@dataclass(frozen=True)
class TreeCounts:
    """Slots of a part by their use; together all of them (KV-TREE-12).

    - `num_free`: of no node and no row.
    - `num_evictable`: of nodes that no request locks for this part.
    - `num_protected`: of nodes that one does.
    - `num_rows`: of rows, outside of their protected tokens; whole pages.
    """

    num_free: int
    num_evictable: int
    num_protected: int
    num_rows: int


@dataclass(frozen=True)
class Evicted:
    """How many slots of each part an eviction has freed (KV-TREE-15)."""

    num_slots: int = 0
    num_window_slots: int = 0
    num_states: int = 0


@dataclass(frozen=True)
class TreeNode:
    """A node, with the prefix that ends in it; its own are the last of these tokens.

    `window_slots`: None if they were given up, or there is no window. `host_slots`: its copy on the
    host, None without one; `slots` is empty if the host alone has the node.
    """

    salt: str
    tokens: tuple[int, ...]
    slots: tuple[int, ...]
    window_slots: tuple[int, ...] | None = None
    state: int | None = None
    host_slots: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Transfer:
    """Slots that are copied to the host (`is_store`), or from it; `number` names it."""

    number: int
    is_store: bool
    slots: tuple[int, ...]
    host_slots: tuple[int, ...]


class PrefixTree(Protocol):
    """Calls of a scheduler; errors leave all as it was (KV-TREE-33).

    A request arrives, waits, is admitted, runs, and is finished, aborted or retracted; a retracted
    one waits again. The next `run` computes all tokens that are allocated.
    """

    def arrive(
        self, request_id: str, tokens: Sequence[int], *, salt: str = "", priority: int = 0
    ) -> None:
        """Let a request wait; only requests with equal salts share nodes (KV-TREE-2)."""

    def match(self, request_id: str) -> int:
        """Return how many tokens of a waiting request are cached (KV-TREE-16 … KV-TREE-20)."""

    def admit(self, request_id: str, num_new_tokens: int) -> int | None:
        """Match, lock, and allocate up to so many tokens more; returns how many are cached.

        None, if there is no room: the request goes on waiting (KV-TREE-21, KV-TREE-22).
        """

    def extend(self, request_id: str, num_new_tokens: int) -> bool:
        """Allocate so many more of its tokens; False, and it has none of them, without room."""

    def append(self, request_id: str, tokens: Sequence[int]) -> None:
        """Add generated tokens to a running request."""

    def run(self) -> None:
        """Let the device compute all allocated tokens, after the copies of states."""

    def checkpoint(self, request_id: str) -> None:
        """Let the tree take over a running request's computed pages (KV-TREE-7)."""

    def finish(self, request_id: str) -> None:
        """Checkpoint and end a request; the tree gets its state (KV-TREE-8)."""

    def abort(self, request_id: str) -> None:
        """End a request, waiting or running; the tree may get what it computed (KV-TREE-8)."""

    def retract(self, request_id: str) -> None:
        """Take a running request's row; it waits again, with its generated tokens."""

    def evict(self, num_slots: int, num_window_slots: int = 0, num_states: int = 0) -> Evicted:
        """Free at least so many of each, or all evictable ones (KV-TREE-14, KV-TREE-15)."""

    def row(self, request_id: str) -> Row:
        """Return what a running request uses."""

    def counts(self, part: Part) -> TreeCounts:
        """Return how the slots of a part are used (KV-TREE-12)."""

    def take_copies(self) -> tuple[StateCopy, ...]:
        """Return the copies of states that were made since the last call, in order."""

    def nodes(self) -> tuple[TreeNode, ...]:
        """Return all nodes, each after those above it."""

    def reset(self) -> None:
        """Drop all nodes (KV-TREE-32)."""


class SessionTree(PrefixTree, Protocol):
    """A tree that evicts the nodes of open sessions last (KV-TREE-37)."""

    def join(self, request_id: str, session: str) -> None:
        """Let a waiting request be one of a session, which it opens if need be."""

    def close_session(self, session: str) -> None:
        """Forget a session and what it has stored; its requests go on without."""


class MirroredTree(PrefixTree, Protocol):
    """A tree whose nodes have copies on the host (KV-TREE-38 …)."""

    def take_transfers(self) -> tuple[Transfer, ...]:
        """Return what was begun since the last call; loads are made by the next `run`."""

    def complete(self, number: int) -> None:
        """Let a store be done."""


@dataclass(frozen=True)
class TreeCapabilities:
    """What a subject has, and the choices it declares.

    - `parts`: pools beside that of full attention that it can have.
    - `page_sizes`: tokens per page that it takes; empty for any.
    - `states_per_request`: the most states that a request takes while it runs.
    - `has_salts`: requests may have one. `has_evict`, `has_reset`: it has these calls.
    - `has_sessions`: its trees are `SessionTree`s. `has_host`: `MirroredTree`s, if they have full
      attention alone. `stores_at_once`: all that is stored is copied if there is room (KV-TREE-38).
    - `has_rows`, `has_nodes`: without both only accounts are judged, with rows the content, too.
    - `orders`: orders of eviction that it keeps (KV-TREE-30).
    - `admits_any_that_fit`: a request, or its growth, is refused only for want of room
      (KV-TREE-22, KV-TREE-36).
    - `checks_calls`: illegal calls are InvalidArgumentErrors (KV-TREE-33); else none is made.
    - `has_whole_leaves`: a leaf that lacks a part is deleted (KV-TREE-25).
    - `waits_with_state`: a request that is passed over may keep the state that its match took.
    """

    parts: frozenset[Part] = frozenset(Part)
    page_sizes: tuple[int, ...] = ()
    states_per_request: int = 1
    has_salts: bool = True
    has_rows: bool = True
    has_nodes: bool = True
    has_evict: bool = True
    has_reset: bool = True
    orders: frozenset[str] = field(default=frozenset(ORDERS))
    admits_any_that_fit: bool = True
    checks_calls: bool = True
    has_whole_leaves: bool = True
    waits_with_state: bool = False
    has_sessions: bool = False
    has_host: bool = False
    stores_at_once: bool = True


@runtime_checkable
class TreeImplementation(Protocol):
    """What `kvspec check --tree` needs of an implementation, or of an object that is none."""

    @property
    def tree_capabilities(self) -> TreeCapabilities:
        """What the trees can do."""

    def make_tree(self, config: TreeConfig) -> PrefixTree:
        """Make an empty tree. InvalidArgumentError for pools or an order that it does not have."""
