"""The cost of a pool by its size: time to make it, memory, and Python objects.

Each pool is made in a separate process, a fork of this one, so that none of it existed before.
Memory is the resident memory reported by the system: all that was ever touched, whatever allocated
it. Free memory of the process is used up or given back before, since a pool placed in it would look
too small.
"""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from kvcheck.tools.bench.calls import PoolCostError, calls_of, new_manager
from kvcheck.tools.bench.cases import BLOCK_SIZE_TOKENS, pool_config
from kvcheck.tools.bench.measure import Subject
from kvcheck.tools.bench.scenarios import Tokens

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
            on_pool(f"{subject.name}, {size} blocks")
            cost = _in_a_fork(subject, size, is_filled=fill_s_per_block * size <= max_fill_s)
            fill_s_per_block = cost.fill_s / size or fill_s_per_block
            found.append(cost)
    return found


def _in_a_fork(subject: Subject, num_blocks: int, *, is_filled: bool) -> PoolCost:
    fork = multiprocessing.get_context("fork")
    readable, writable = fork.Pipe(duplex=False)

    def answer() -> None:
        try:
            with _nothing_free():
                writable.send(measure_pool(subject, num_blocks, is_filled=is_filled))
        except BaseException as error:
            writable.send(f"{type(error).__name__}: {error}")

    child = fork.Process(target=answer)
    with warnings.catch_warnings():
        # The child runs in one thread.
        warnings.simplefilter("ignore", DeprecationWarning)
        child.start()
    writable.close()
    try:
        cost = readable.recv()
    except EOFError:
        cost = "the process ended"
    child.join()
    if not isinstance(cost, PoolCost):
        raise PoolCostError(subject.name, num_blocks, str(cost))
    return cost


def measure_pool(subject: Subject, num_blocks: int, *, is_filled: bool) -> PoolCost:
    """Measure a pool in this process, with the collector off, after collecting garbage."""
    gc.collect()
    gc.freeze()
    gc.disable()
    config = pool_config(num_blocks, max_model_len_tokens=2 * FILL_TOKENS)
    bytes_before, objects_before = _resident_bytes(), sys.getallocatedblocks()
    began = time.perf_counter()
    manager = new_manager(subject.implementation, config)
    create_s = time.perf_counter() - began
    gc.collect()
    objects = sys.getallocatedblocks() - objects_before
    made = PoolCost(subject.name, num_blocks, create_s, _resident_bytes() - bytes_before, objects)
    if not is_filled:
        return made
    began = time.perf_counter()
    calls = calls_of(subject.implementation, manager)
    tokens = Tokens(subject.name)
    with calls.around():
        for number in range(-(-(num_blocks - 1) * BLOCK_SIZE_TOKENS // FILL_TOKENS)):
            given = calls.make_input(f"fill-{number}", tokens.take(FILL_TOKENS))
            request = calls.make_request(given)
            calls.allocate(request, FILL_TOKENS)
            calls.free(request)
            del request, given
    fill_s = time.perf_counter() - began
    del tokens
    gc.collect()
    return replace(
        made,
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
