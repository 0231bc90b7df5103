"""Trees of prefixes, as KV-TREE-1 … say: nodes that are searched from end to end."""

from kvref.tree.tree import ReferenceTree

__all__ = ["ReferenceTree"]
