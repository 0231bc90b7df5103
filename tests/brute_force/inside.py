"""The longest hit that ends inside a block, by trying every length (KV-INSIDE-7 … KV-INSIDE-9).

For configurations without drops: full attention and MLA beside Mamba in mode align.
"""

from __future__ import annotations

from kvspec.blocks import NULL_BLOCK
from kvspec.config import ManagerConfig
from kvspec.request import Request
from kvspec.snapshot import Snapshot


class Keys:
    """Which blocks of a text are found: by group and by the number of tokens that a key covers."""

    def __init__(self, config: ManagerConfig, state: Snapshot, request: Request) -> None:
        self.specs = config.managed_specs
        self.h = config.hash_block_size_tokens or 1
        self.found: dict[tuple[int, int], int] = {}
        for number, text in enumerate(request.block_hashes):
            for group in range(len(self.specs)):
                blocks = state.lookup_order.get(text + group.to_bytes(4, "big"))
                if blocks:
                    self.found[group, (number + 1) * self.h] = blocks[0]

    def covers(self, group: int, num_tokens: int, most_tokens: int) -> list[int] | None:
        """Return the group's entries for a hit of this length; None if it lacks it."""
        size, count = self.specs[group].block_size, -(-num_tokens // self.specs[group].block_size)
        equal = [g for g, spec in enumerate(self.specs) if spec == self.specs[group]]
        if self.specs[group].is_state:
            if not all((g, num_tokens) in self.found for g in equal):
                return None
            return [NULL_BLOCK] * (count - 1) + [self.found[group, num_tokens]]
        answer = []
        for entry in range(count):
            begin, end = entry * size, (entry + 1) * size
            # A whole block, or the farthest boundary in the last one: behind others there is none.
            ends = [end] if entry < count - 1 else range(end, max(begin, num_tokens - 1), -1)
            having = [
                n for n in ends if n <= most_tokens and all((g, n) in self.found for g in equal)
            ]
            if not having:
                return None
            answer.append(self.found[group, having[0]])
        return answer


def inside_hit(
    config: ManagerConfig, state: Snapshot, request: Request, most_tokens: int
) -> tuple[int, list[list[int]]]:
    keys = Keys(config, state, request)
    groups = range(len(keys.specs))
    for length in range(most_tokens // keys.h * keys.h, 0, -keys.h):
        answers = [keys.covers(group, length, most_tokens) for group in groups]
        if None not in answers:
            return length, [answer or [] for answer in answers]
    return 0, [[] for _ in groups]
