"""The arithmetic of windows, chunks and states: kvref and kvfast answer the same for all counts.

Each pair of functions is compared by CrossHair's `diffbehavior`. `code/windows.py` proves that
the formulas of the rules do what they are for; here the code of both runs (KV-SW-1, KV-SW-2,
KV-SW-7, KV-CHUNK-1, KV-CHUNK-5, KV-MAMBA-1, KV-GRP-2, KV-GRP-6). Every number is one of 1 …
2^53 - 1, block sizes and chunks included (KV-ERR-6); for all others both answer None.
"""

from __future__ import annotations

import sys
from typing import cast

from kvfast import configuration
from kvref.groups.sliding_window import SlidingWindowGroup
from kvspec._check import COUNT_MAX
from kvspec.config import ManagerConfig
from proofs.code.contracts._mistakes import (
    NEVER_BEYOND,
    NO_END,
    NO_SKIP,
    NO_STEP,
    ROUNDED_DOWN,
    WINDOW_SHORT,
)
from proofs.code.contracts._runner import Contract, main
from proofs.code.contracts._shapes import Numbers, fast_shape, reference_group, spec_of


def are_counts(*numbers: int) -> bool:
    """Whether all are counts of at least 1."""
    return all(1 <= number <= COUNT_MAX for number in numbers)


class Cluster:
    """What kvfast reads of a configuration for the plan of a group."""

    hash_block_size_tokens = None
    dcp_world_size = pcp_world_size = 1

    def __init__(self, batched: int, longest: int) -> None:
        self.max_num_batched_tokens = batched
        self.max_model_len_tokens = longest


def skipped_of(kind: str, size: int, reach: int, computed: int) -> int | None:
    """kvref's skipped blocks."""
    if not are_counts(size, reach, computed):
        return None
    return reference_group(Numbers(kind, size, reach)).num_skipped_tokens(computed) // size


def skipped_of_fast(kind: str, size: int, reach: int, computed: int) -> int | None:
    """kvfast's."""
    if not are_counts(size, reach, computed):
        return None
    return fast_shape(Numbers(kind, size, reach)).skipped(0, computed)


def sliding_skips(size: int, window: int, computed: int) -> int | None:
    """Blocks before the window of the next token (KV-SW-1, KV-GRP-2)."""
    return skipped_of("sliding", size, window, computed)


def sliding_skips_fast(size: int, window: int, computed: int) -> int | None:
    """The same in kvfast."""
    return skipped_of_fast("sliding", size, window, computed)


def chunked_skips(size: int, chunk: int, computed: int) -> int | None:
    """Blocks of earlier chunks (KV-CHUNK-1, KV-GRP-2)."""
    return skipped_of("chunked", size, chunk, computed)


def chunked_skips_fast(size: int, chunk: int, computed: int) -> int | None:
    """The same in kvfast."""
    return skipped_of_fast("chunked", size, chunk, computed)


def states_skip(size: int, computed: int) -> int | None:
    """Blocks before the state that is read next (KV-MAMBA-1, KV-GRP-2)."""
    return skipped_of("mamba", size, 1, computed)


def states_skip_fast(size: int, computed: int) -> int | None:
    """The same in kvfast."""
    return skipped_of_fast("mamba", size, 1, computed)


def beyond_of(kind: str, reach: int, at: int, computed: int) -> bool | None:
    """Whether kvref skips all that is computed, and takes no blocks for external tokens."""
    if not are_counts(reach, at, computed):
        return None
    return reference_group(Numbers(kind, 1, reach)).num_skipped_tokens(at) >= computed


def beyond_of_fast(kind: str, reach: int, at: int, computed: int) -> bool | None:
    """Whether kvfast does."""
    if not are_counts(reach, at, computed):
        return None
    return fast_shape(Numbers(kind, 1, reach)).is_window_beyond(0, at, computed)


def window_is_beyond(window: int, at: int, computed: int) -> bool | None:
    """Whether a window has no external tokens (KV-GRP-6)."""
    return beyond_of("sliding", window, at, computed)


def window_is_beyond_fast(window: int, at: int, computed: int) -> bool | None:
    """The same in kvfast."""
    return beyond_of_fast("sliding", window, at, computed)


def chunk_is_beyond(chunk: int, at: int, computed: int) -> bool | None:
    """Whether a chunk has no external tokens (KV-GRP-6)."""
    return beyond_of("chunked", chunk, at, computed)


def chunk_is_beyond_fast(chunk: int, at: int, computed: int) -> bool | None:
    """The same in kvfast."""
    return beyond_of_fast("chunked", chunk, at, computed)


def state_is_beyond(at: int, computed: int) -> bool | None:
    """Whether states have no external tokens (KV-GRP-6)."""
    return beyond_of("mamba", 1, at, computed)


def state_is_beyond_fast(at: int, computed: int) -> bool | None:
    """The same in kvfast."""
    return beyond_of_fast("mamba", 1, at, computed)


def run_length(size: int, window: int, drop: bool) -> int | None:
    """Blocks that fill a window (KV-SW-2)."""
    if not are_counts(size, window):
        return None
    group = cast(SlidingWindowGroup, reference_group(Numbers("sliding", size, window)))
    return group.run_length_blocks(drop)


def run_length_fast(size: int, window: int, drop: bool) -> int | None:
    """The same in kvfast."""
    if not are_counts(size, window):
        return None
    return fast_shape(Numbers("sliding", size, window)).run_length(0, drop)


def cap_of(kind: str, size: int, reach: int, batched: int, longest: int) -> int | None:
    """The most blocks that kvref counts for a request."""
    if not are_counts(size, reach, batched, longest):
        return None
    numbers = Numbers(kind, size, reach, batched=batched, longest=longest)
    return reference_group(numbers).max_admission_blocks()


def cap_of_fast(kind: str, size: int, reach: int, batched: int, longest: int) -> int | None:
    """The most that kvfast counts."""
    if not are_counts(size, reach, batched, longest):
        return None
    config = cast(ManagerConfig, Cluster(batched, longest))
    spec = spec_of(Numbers(kind, size, reach))
    return configuration._group_plan(config, spec, configuration.kind_of(spec), False).cap_blocks


def window_cap(size: int, window: int, batched: int, longest: int) -> int | None:
    """A window and one step (KV-SW-7)."""
    return cap_of("sliding", size, window, batched, longest)


def window_cap_fast(size: int, window: int, batched: int, longest: int) -> int | None:
    """The same in kvfast."""
    return cap_of_fast("sliding", size, window, batched, longest)


def chunk_cap(size: int, chunk: int, batched: int, longest: int) -> int | None:
    """A chunk and one step (KV-CHUNK-5)."""
    return cap_of("chunked", size, chunk, batched, longest)


def chunk_cap_fast(size: int, chunk: int, batched: int, longest: int) -> int | None:
    """The same in kvfast."""
    return cap_of_fast("chunked", size, chunk, batched, longest)


CONTRACTS = (
    Contract(sliding_skips, (WINDOW_SHORT, NO_SKIP), other=sliding_skips_fast),
    Contract(chunked_skips, (NO_SKIP,), other=chunked_skips_fast),
    Contract(states_skip, (NO_SKIP,), other=states_skip_fast),
    Contract(window_is_beyond, (NEVER_BEYOND, WINDOW_SHORT), other=window_is_beyond_fast),
    Contract(chunk_is_beyond, (NEVER_BEYOND,), other=chunk_is_beyond_fast),
    Contract(state_is_beyond, (NEVER_BEYOND,), other=state_is_beyond_fast),
    Contract(
        run_length,
        (ROUNDED_DOWN,),
        other=run_length_fast,
    ),
    Contract(window_cap, (NO_STEP,), other=window_cap_fast),
    Contract(chunk_cap, (NO_END,), other=chunk_cap_fast),
)


if __name__ == "__main__":
    sys.exit(main("windows"))
