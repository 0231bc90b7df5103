"""Draw a manager's state in a few lines of text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvcheck.rules.managed import Managed
from kvspec.interface import Feature

SHOWN = 24
"""Most blocks shown of a list or of the queue."""


def drawn(manager: Managed, requests: Mapping[str, Any]) -> str:
    """Return queue and block lists, a line each; cached blocks are marked with `*`."""
    has_snapshot = Feature.SNAPSHOT in manager.subject.capabilities.features
    cached = manager.cached() if has_snapshot else set()
    lines = []
    for name, request in requests.items():
        for group, blocks in enumerate(manager.lists(request)):
            where = f"{name}, group {group}" if len(manager.config.kv_cache.groups) > 1 else name
            computed = f"{request.num_computed_tokens} of {request.num_tokens} tokens computed"
            lines.append(f"{where:<12} {_row(blocks, cached)}   {computed}")
    if has_snapshot:
        lines.append(f"{'free queue':<12} {_row(manager.queue(), cached)}")
    else:
        lines.append(f"{'free':<12} {manager.num_free_blocks} blocks")
    return "\n".join(lines)


def _row(blocks: list[int], cached: set[int]) -> str:
    words = [f"{b or '-'}{'*' if b in cached else ''}" for b in blocks[:SHOWN]]
    more = [f"… {len(blocks) - SHOWN} more"] if len(blocks) > SHOWN else []
    return f"[{' '.join(words + more)}]"
