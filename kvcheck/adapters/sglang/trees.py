"""Servers of SGLang's that `kvspec check --tree` can judge, each with its options.

kvspec check --tree kvcheck.adapters.sglang.trees:rust_core
"""

from __future__ import annotations

from collections.abc import Collection

from kvcheck.adapters.sglang.engine import Options, load_modules
from kvcheck.adapters.sglang.tree import SGLangTree
from kvspec.errors import InvalidArgumentError
from kvspec.tree import ORDERS, Part, TreeCapabilities, TreeConfig


class SGLangTrees:
    """See `kvspec.tree.TreeImplementation` for what each call promises.

    - `has_states`: models with recurrent layers; without an extra buffer, pages are of one token.
    - `orders`: of eviction; those by age differ from the rules in one point (`all_orders`).
    - `is_kept`: a session's request may keep the state of a match while it waits.
    """

    name = "sglang"

    def __init__(
        self,
        options: Options,
        *,
        has_states: bool = False,
        orders: Collection[str] = ("fifo", "filo"),
        is_kept: bool = False,
    ) -> None:
        self.version = str(load_modules().version)
        self.options = options
        self.has_states = has_states
        self.orders = frozenset(orders)
        self.is_kept = is_kept

    @property
    def tree_capabilities(self) -> TreeCapabilities:
        """What the tree and its server's options have; a plain tree has one pool."""
        has_one_pool = self.options.core == "plain" or self.options.has_host
        parts = set() if has_one_pool else {Part.WINDOW}
        return TreeCapabilities(
            parts=frozenset(parts | {Part.STATE} if self.has_states else parts),
            page_sizes=(1,) if self.has_states and not self.options.has_extra_buffer else (),
            states_per_request=self.options.states_per_request,
            has_nodes=self.options.core != "rust",
            orders=self.orders,
            admits_any_that_fit=False,
            checks_calls=False,
            has_whole_leaves=False,
            waits_with_state=self.is_kept,
            has_sessions=self.options.keeps_sessions,
            has_host=self.options.has_host,
            has_reset=not self.options.has_host,
            stores_at_once=False,
        )

    def make_tree(self, config: TreeConfig) -> SGLangTree:
        """Make pools and an empty tree. InvalidArgumentError for what a server refuses."""
        least = self.options.states_per_request
        if config.num_states and config.num_states < least:
            allowed = f"0, or at least {least}: so many for each request"
            raise InvalidArgumentError("num_states", config.num_states, allowed)
        if config.num_states and config.page_size_tokens > 1 and not self.options.has_extra_buffer:
            allowed = "1 for states without an extra buffer"
            raise InvalidArgumentError("page_size_tokens", config.page_size_tokens, allowed)
        return SGLangTree(config, self.options)


def python_core() -> SGLangTrees:
    """Return `UnifiedRadixCache` with its tree in Python, for models without states."""
    return SGLangTrees(Options())


def all_orders() -> SGLangTrees:
    """Return the same with all orders of eviction."""
    return SGLangTrees(Options(), orders=ORDERS)


def rust_core() -> SGLangTrees:
    """Return the same with its tree in Rust, as a server builds it."""
    return SGLangTrees(Options("rust"))


def plain_radix_cache() -> SGLangTrees:
    """Return the older `RadixCache`; a split makes the first part anew, against `fifo`."""
    return SGLangTrees(Options("plain"), orders=())


def states() -> SGLangTrees:
    """Return the tree in Python for models with states, which are copied."""
    return SGLangTrees(Options(), has_states=True)


def rust_states() -> SGLangTrees:
    """Return the same in Rust."""
    return SGLangTrees(Options("rust"), has_states=True)


def extra_buffer() -> SGLangTrees:
    """Return the tree in Python, with states left at a grid of positions."""
    return SGLangTrees(Options(has_extra_buffer=True), has_states=True)


def in_session() -> SGLangTrees:
    """Return the tree in Python for models with states; each request is one of a session."""
    return SGLangTrees(Options(in_session=True), has_states=True)


def kept_in_session() -> SGLangTrees:
    """Return the same; that a request keeps the state of a match while it waits is no fault."""
    return SGLangTrees(Options(in_session=True), has_states=True, is_kept=True)


def sessions() -> SGLangTrees:
    """Return the tree in Python that evicts what sessions have stored last."""
    return SGLangTrees(Options(keeps_sessions=True))


def host() -> SGLangTrees:
    """Return the tree in Python with HiCache, which writes through."""
    return SGLangTrees(Options(has_host=True))
