"""The cost of a pool by its size: time to make it, memory, and Python objects.

Each pool is made in a separate process, a fork of this one, so that none of it existed before.
Memory is the resident memory reported by the system: all that was ever touched, whatever allocated
it. Free memory of the process is used up or given back before, since a pool placed in it would look
too small.
"""

from __future__ import annotations

import ctypes
import gc
import os
import pickle
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kvcheck.tools.bench.calls import PoolCostError, calls_of, new_manager
from kvcheck.tools.bench.cases import BLOCK_SIZE_TOKENS, pool_config
from kvcheck.tools.bench.measure import Subject
from kvcheck.tools.bench.scenarios import Tokens
from kvspec.interface import Implementation

FILL_TOKENS = 1024
"""Prompts of this length fill the pool, one after another."""

STATM = Path("/proc/self/statm")

ARENA_BYTES = 1 << 20
"""Unit in which Python's allocator takes memory from the system; also above the reporting lag."""


@dataclass(frozen=True)
class PoolCost:
    """One pool. Numbers with `full_` are those after every block was cached once and released.

    `bytes_`: resident memory that was added, in pages. `objects_`: memory blocks that Python's
    allocator has in use more than before (`sys.getallocatedblocks`); a list of a million ints is a
    million and one. Both are of the whole pool. None: filling it would have taken too long.
    """

    name: str
    num_blocks: int
    create_s: float
    bytes_: int
    objects: int
    full_bytes: int | None = None
    full_objects: int | None = None
    fill_s: float = 0.0


def can_measure() -> bool:
    """Return whether this system can fork, and report a process's memory."""
    return hasattr(os, "fork") and STATM.exists()


def pool_costs(
    subjects: Sequence[Subject],
    sizes: Sequence[int],
    *,
    max_fill_s: float,
    on_pool: Callable[[str], None] = lambda label: None,
) -> list[PoolCost]:
    """Measure all pools, one after another, in ascending order of sizes. Raises PoolCostError."""
    found = []
    for subject in subjects:
        fill_s_per_block = 0.0
        for size in sorted(sizes):
            is_filled = fill_s_per_block * size <= max_fill_s
            cost = _in_a_fork(subject.name, subject.implementation, size, is_filled=is_filled)
            fill_s_per_block = cost.fill_s / size or fill_s_per_block
            found.append(cost)
            on_pool(f"{subject.name}, {size} blocks")
    return found


def _in_a_fork(
    name: str, implementation: Implementation, num_blocks: int, *, is_filled: bool
) -> PoolCost:
    readable, writable = os.pipe()
    with warnings.catch_warnings():
        # The child runs in one thread and ends without cleaning up.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        _answer(name, implementation, num_blocks, is_filled, writable)
    os.close(writable)
    with os.fdopen(readable, "rb") as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    answer = pickle.loads(text) if text else "the process ended"
    if not isinstance(answer, PoolCost):
        raise PoolCostError(name, num_blocks, str(answer))
    return answer


def _answer(
    name: str, implementation: Implementation, num_blocks: int, is_filled: bool, pipe: int
) -> None:
    """Measure a pool in the child, which never returns."""
    try:
        with _nothing_free():
            answer: object = measure_pool(name, implementation, num_blocks, is_filled=is_filled)
    except BaseException as error:
        answer = f"{type(error).__name__}: {error}"
    with os.fdopen(pipe, "wb") as file:
        pickle.dump(answer, file)
    os._exit(0)


def measure_pool(
    name: str, implementation: Implementation, num_blocks: int, *, is_filled: bool
) -> PoolCost:
    """Measure a pool in this process, with the collector off, after collecting garbage."""
    gc.collect()
    gc.freeze()
    gc.disable()
    config = pool_config(num_blocks, max_model_len_tokens=2 * FILL_TOKENS)
    bytes_before, objects_before = _resident_bytes(), sys.getallocatedblocks()
    began = time.perf_counter()
    manager = new_manager(implementation, config)
    create_s = time.perf_counter() - began
    gc.collect()
    objects = sys.getallocatedblocks() - objects_before
    used = _resident_bytes() - bytes_before
    if not is_filled:
        return PoolCost(name, num_blocks, create_s, used, objects)
    began = time.perf_counter()
    calls = calls_of(implementation, manager)
    tokens = Tokens(name)
    with calls.around():
        for number in range(-(-(num_blocks - 1) * BLOCK_SIZE_TOKENS // FILL_TOKENS)):
            request = calls.make_request(
                calls.make_input(f"fill-{number}", tokens.take(FILL_TOKENS))
            )
            calls.allocate(request, FILL_TOKENS)
            calls.free(request)
            del request
    fill_s = time.perf_counter() - began
    del tokens
    gc.collect()
    return PoolCost(
        name,
        num_blocks,
        create_s,
        used,
        objects,
        full_bytes=_resident_bytes() - bytes_before,
        full_objects=sys.getallocatedblocks() - objects_before,
        fill_s=fill_s,
    )


def _resident_bytes() -> int:
    pages = int(STATM.read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def _nothing_free() -> Iterator[None]:
    """Use up free memory, so that new objects in the block add resident pages.

    malloc gives whole free pages back. Smaller holes, and those of Python's allocator, which has
    places of 16, 32, … 512 bytes, are filled until enough was added that no old arena has room.
    """
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it
    if trim is not None:
        trim(0)
    kept: list[list[object]] = []
    for size in (4096, 2048, 1024, *range(528, 0, -16)):
        wanted = _resident_bytes() + ARENA_BYTES
        while _resident_bytes() <= wanted:
            kept.append(_objects_of(size, ARENA_BYTES // size // 8))
            wanted += sys.getsizeof(kept[-1])
    yield
    kept.clear()


def _objects_of(size_bytes: int, number: int) -> list[object]:
    rest = size_bytes - sys.getsizeof(b"")
    if rest >= 0:
        return [bytes(rest) for _ in range(number)]
    return [object() if size_bytes == 16 else 2**40 + index for index in range(number)]
