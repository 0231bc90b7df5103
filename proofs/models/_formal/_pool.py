"""kvref's block pool called in every order that is legal, which PoolModel must equal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, combinations, product
from typing import Any

from kvref.block_pool import BlockPool
from kvref.events import EventLog
from kvspec.blocks import NULL_BLOCK
from proofs.models._formal._values import Move


@dataclass(frozen=True)
class PoolBounds:
    """As the constants of PoolModel; `num_blocks` with the null block."""

    num_blocks: int = 4
    num_keys: int = 3
    max_refs: int = 2
    max_released: int = 2
    pool_class: type[BlockPool] = BlockPool

    module = "PoolModel"

    @property
    def constants(self) -> dict[str, int]:
        """Constants of the TLA+ module."""
        return {
            "NumBlocks": self.num_blocks,
            "NumKeys": self.num_keys,
            "MaxRefs": self.max_refs,
            "MaxReleased": self.max_released,
        }

    def moves(self) -> Iterator[Move]:
        """Yield every move, possible or not."""
        blocks = range(1, self.num_blocks)
        yield from (Move("TakeBlocks", (n,)) for n in blocks)
        subsets = chain.from_iterable(combinations(blocks, n) for n in blocks)
        yield from (Move("TouchBlocks", (frozenset(each),)) for each in subsets)
        for n in range(1, self.max_released + 1):
            yield from (Move("ReturnBlocks", (each,)) for each in product(blocks, repeat=n))
        keys = [(number,) for number in range(1, self.num_keys + 1)]
        yield from (Move("RegisterBlock", (block, key)) for block in blocks for key in keys)
        yield from (Move("EvictBlock", (block,)) for block in blocks)
        yield Move("ResetPool")

    def first(self) -> BlockPool:
        """Return a new pool."""
        return self.pool_class(self.num_blocks, events=EventLog(False, False))

    def after(self, state: BlockPool, move: Move) -> BlockPool | None:
        """Return the pool after a move; None where it is illegal."""
        if not self._is_legal(state, move.action, *move.arguments):
            return None
        pool = self._copy(state)
        if move.action == "TakeBlocks":
            pool.allocate(*move.arguments)
        elif move.action == "TouchBlocks":
            pool.touch(sorted(move.arguments[0]))
        elif move.action == "ReturnBlocks":
            pool.release(*move.arguments)
        elif move.action == "RegisterBlock":
            block, key = move.arguments
            pool.register(block, bytes(key), 1)
        elif move.action == "EvictBlock":
            pool.forget(*move.arguments)
        else:
            pool.reset()
        return pool

    def _is_legal(self, pool: BlockPool, action: str, *arguments: Any) -> bool:
        if action == "TakeBlocks":
            return bool(arguments[0] <= pool.num_free_blocks)
        if action == "TouchBlocks":
            return all(pool.keys[b] and pool.ref_counts[b] < self.max_refs for b in arguments[0])
        if action == "ReturnBlocks":
            return all(n <= pool.ref_counts[b] for b, n in Counter(arguments[0]).items())
        if action == "RegisterBlock":
            return pool.ref_counts[arguments[0]] > 0 and not pool.keys[arguments[0]]
        return action != "EvictBlock" or bool(pool.keys[arguments[0]])

    def _copy(self, pool: BlockPool) -> BlockPool:
        copy = self.first()
        copy.free_queue = list(pool.free_queue)
        copy.ref_counts = list(pool.ref_counts)
        copy.keys = [list(keys) for keys in pool.keys]
        copy.primary_num_tokens = list(pool.primary_num_tokens)
        copy.cached = {key: list(blocks) for key, blocks in pool.cached.items()}
        return copy

    def value(self, state: BlockPool) -> dict[str, Any]:
        """Return the state as the model has it."""
        return pool_value(
            state.free_queue,
            state.ref_counts,
            state.keys,
            state.cached,
            {bytes((n,)): (n,) for n in range(9)},
        )


def pool_value(
    queue: Sequence[int],
    refs: Sequence[int],
    keys: Sequence[Sequence[bytes]],
    cached: Any,
    contents: Any,
) -> dict[str, Any]:
    """Return a pool as Pool.tla describes it; `contents` maps keys to tuples."""
    rest = slice(NULL_BLOCK + 1, None)
    return {
        "queue": tuple(queue),
        "refs": tuple(refs[rest]),
        "keys": tuple(contents[each[0]] if each else () for each in keys[rest]),
        "cached": {contents[key]: tuple(blocks) for key, blocks in cached.items()},
    }
