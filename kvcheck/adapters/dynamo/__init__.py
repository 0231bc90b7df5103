"""Dynamo's radix tree of engines with the calls of an index, for `kvspec check --index`.

    kvspec check --index kvcheck.adapters.dynamo:tree

It needs the wheel `ai-dynamo-runtime`, and no GPU. Translation:

- engine `pod#1`: the worker of `pod`, rank 1. `forget` clears the rank; the tree's own
  `remove_worker` is for all ranks.
- a hash: its 64-bit int. The tree is asked by hashes of each block's own tokens, which Stored
  events teach the adapter; a hash that was in none of them is one that no engine has.
- a report: a Stored event. Of two Stored events of a key the tree keeps one.
- an event about a block that the tree does not have: passed over, as the tree says in its error.
"""

from __future__ import annotations

from kvcheck.adapters.dynamo.tree import DynamoTrees, DynamoUnavailableError, load_tree

__all__ = ["DynamoTrees", "DynamoUnavailableError", "tree"]


def tree() -> DynamoTrees:
    """Return what makes the trees. Raises DynamoUnavailableError if it cannot be imported."""
    return DynamoTrees(load_tree())
