"""What is worth caching, stated over boundaries: each one needs the blocks that a hit there has."""

from __future__ import annotations

from collections.abc import Iterator

from kvspec.config import ManagerConfig
from kvspec.specs import MambaSpec, SlidingWindowSpec
from tests.brute_force.agreement import attention_groups
from tests.brute_force.statement import blocks_of_a_window


def cached_positions(config: ManagerConfig, group: int, num_tokens: int) -> set[int]:
    """Positions of one group that are cached once a prompt of so many tokens is computed at once.

    `config` is a manager's, with its block sizes.
    """
    (own,) = [found for found in attention_groups(config) if group in found.members]
    size, alignment = own.spec.block_size, config.scheduler_block_size_tokens or 1
    end = num_tokens
    if len(config.kv_cache.groups) > 1:  # KV-COORD-13
        end = max(range(0, num_tokens + 1, alignment))
        if own.is_eagle and end > 0:
            end = min(num_tokens, end + size)
    positions = set(range(end // size))
    if isinstance(own.spec, SlidingWindowSpec):
        tail = blocks_of_a_window(own.spec) + own.is_eagle
        retention = config.retention_interval_tokens
        step = alignment if retention is None else retention
        if step and tail >= step // size:  # KV-RET-1, KV-RET-3: everything
            return positions
        useful: set[int] = set()
        for boundary in boundaries(config, num_tokens):
            behind = boundary // size + own.is_eagle
            useful |= set(range(behind - tail, behind))
        return positions & useful
    if isinstance(own.spec, MambaSpec) and config.retention_interval_tokens is not None:
        ends = set(boundaries(config, num_tokens))  # KV-RET-5
        return {position for position in positions if (position + 1) * size in ends}
    return positions  # KV-FULL-6, KV-CHUNK-4


def boundaries(config: ManagerConfig, num_prompt_tokens: int) -> Iterator[int]:
    """Where hits are meant to end: multiples of A or of the interval; where a replay would end."""
    alignment, retention = config.scheduler_block_size_tokens or 1, config.retention_interval_tokens
    step = alignment if retention is None else retention
    if step:
        yield from range(step, num_prompt_tokens + step, step)
    if retention is not None:  # KV-RET-4: the last token is computed again
        yield max(range(0, num_prompt_tokens, alignment))
