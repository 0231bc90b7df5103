"""Servers of SGLang's that `kvspec check --tree` can judge, each with its options.

kvspec check --tree kvcheck.adapters.sglang.trees:rust_core
"""

from __future__ import annotations

from kvcheck.adapters.sglang.engine import Options, load_modules
from kvcheck.adapters.sglang.tree import SGLangTree
from kvspec.errors import InvalidArgumentError
from kvspec.tree import ORDERS, Part, TreeCapabilities, TreeConfig


class SGLangTrees:
    """See `kvspec.tree.TreeImplementation` for what each call promises."""

    name = "sglang"

    def __init__(self, options: Options) -> None:
        self.version = str(load_modules().version)
        self.options = options

    @property
    def tree_capabilities(self) -> TreeCapabilities:
        """What the tree and its server's options have; a plain tree has one pool."""
        is_plain = self.options.core == "plain"
        return TreeCapabilities(
            parts=frozenset() if is_plain else frozenset({Part.WINDOW, Part.STATE}),
            has_nodes=self.options.core != "rust",
            orders=frozenset(ORDERS),
            admits_any_that_fit=False,
            checks_calls=False,
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
    """Return `UnifiedRadixCache` with its tree in Python."""
    return SGLangTrees(Options())


def rust_core() -> SGLangTrees:
    """Return the same with its tree in Rust, as a server builds it."""
    return SGLangTrees(Options("rust"))


def extra_buffer() -> SGLangTrees:
    """Return the same in Python, with states left at a grid of positions."""
    return SGLangTrees(Options(has_extra_buffer=True))


def in_session() -> SGLangTrees:
    """Return the same in Python, with requests that are each one of a session."""
    return SGLangTrees(Options(in_session=True))


def plain_radix_cache() -> SGLangTrees:
    """Return the older `RadixCache`."""
    return SGLangTrees(Options("plain"))
