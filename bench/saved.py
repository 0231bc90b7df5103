"""`python -m bench.saved`: a manager of kvfast with every block cached, saved to a file and loaded.

    python -m bench.saved --into bench/RESULTS.md

Each round loads the file in a new process, as an engine that starts does, and then once more in the
same one. Beside it: no more than reading the file and taking its SHA-256, without which no load can
be. Then prompts are looked up in the manager that was saved and in one that was loaded.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from time import perf_counter_ns

import kvfast
from bench.tables import options, put_run, short, spread
from kvspec.config import KVCacheConfig, KVCacheGroup, ManagerConfig
from kvspec.interface import KVCacheManager
from kvspec.request import Request, RequestInput
from kvspec.saved import load, save
from kvspec.specs import FullAttentionSpec

BLOCK = 16
PROMPT_BLOCKS = 1_000
NUM_BLOCKS = (100_000, 1_000_000)
MOST_LOOKED_UP = 100
"""Prompts whose look-up is timed, in random order; the same for both managers."""


def prompt(number: int) -> RequestInput:
    """Return a prompt that shares no beginning with others."""
    start = number * PROMPT_BLOCKS * BLOCK
    return RequestInput(f"r{number}", range(start, start + PROMPT_BLOCKS * BLOCK))


def filled(num_blocks: int) -> KVCacheManager:
    """Make a manager whose blocks, except the null block, are all free and cached."""
    implementation = kvfast.implementation()
    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=8, head_size=128, dtype="bfloat16")
    cache = KVCacheConfig(num_blocks + 1, (KVCacheGroup(("layer.0",), spec),))
    config = ManagerConfig(cache, max_model_len_tokens=PROMPT_BLOCKS * BLOCK, hash_seed="0")
    manager = implementation.create(config, check_invariants=False)
    for number in range(num_blocks // PROMPT_BLOCKS):
        request = implementation.make_request(manager, prompt(number))
        if manager.allocate_slots(request, PROMPT_BLOCKS * BLOCK) is None:
            raise MemoryError("the pool is smaller than its prompts")
        manager.free(request)
    manager.take_new_block_ids()
    return manager


def loaded(path: Path) -> KVCacheManager:
    """Load as an engine does that trusts the checksum."""
    return load(kvfast.implementation(), path, check_invariants=False)


def timed(act: Callable[[], object]) -> int:
    """Measure nanoseconds of wall time, which include waits for files."""
    began = perf_counter_ns()
    act()
    return perf_counter_ns() - began


def once(path: Path) -> dict[str, int]:
    """Time loading twice in this process, which has just started and imported kvfast."""
    kvfast.implementation()

    def read() -> None:
        seen = hashlib.sha256()
        with path.open("rb", buffering=0) as file:
            while piece := file.read(2**20):
                seen.update(piece)

    return {
        "read": timed(read),
        "load": timed(lambda: loaded(path)),
        "again": timed(lambda: loaded(path)),
    }


def looked_up(manager: KVCacheManager, requests: Sequence[Request]) -> float:
    """Measure nanoseconds per block hit."""
    blocks = 0

    def act() -> None:
        nonlocal blocks
        for request in requests:
            blocks += manager.get_computed_blocks(request).hit_length_tokens // BLOCK

    ns = timed(act)
    if blocks != len(requests) * (PROMPT_BLOCKS - 1):  # the last token is always computed
        raise AssertionError(f"{blocks} blocks of {len(requests)} prompts are found")
    return ns / blocks


def measure(num_blocks: int, num_rounds: int, path: Path) -> dict[str, list[float]]:
    """Measure milliseconds of each, and nanoseconds of a look-up, round by round."""
    manager = filled(num_blocks)
    found: dict[str, list[float]] = {}
    rng = Random(num_blocks)
    implementation = kvfast.implementation()
    numbers = range(min(MOST_LOOKED_UP, num_blocks // PROMPT_BLOCKS))
    requests = [implementation.make_request(manager, prompt(number)) for number in numbers]
    for _ in range(num_rounds):
        found.setdefault("save", []).append(timed(lambda: save(manager, path)) / 1e6)
        command = [sys.executable, "-m", "bench.saved", "--once", str(path)]
        printed = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
        for name, ns in json.loads(printed).items():
            found.setdefault(name, []).append(ns / 1e6)
        both = [("made", manager), ("loaded", loaded(path))]
        rng.shuffle(both)
        for name, each in both:
            rng.shuffle(requests)
            found.setdefault(name, []).append(looked_up(each, requests))
    return found


def rows(num_rounds: int) -> Iterator[str]:
    """Yield both tables, line by line."""
    found = {}
    sizes = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cache.state"
        for num_blocks in NUM_BLOCKS:
            found[num_blocks] = measure(num_blocks, num_rounds, path)
            sizes[num_blocks] = path.stat().st_size
    yield "| cached blocks | MB | save, ms | read and SHA-256, ms | load, ms | load again, ms |"
    yield "|---|---:|---:|---:|---:|---:|"
    for num_blocks, each in found.items():
        cells = [spread(each[name]) for name in ("save", "read", "load", "again")]
        yield f"| {num_blocks:,} | {short(sizes[num_blocks] / 1e6)} | {' | '.join(cells)} |"
    yield ""
    yield "| look-up, ns a block | in the manager that was saved | in one that was loaded | ratio |"
    yield "|---|---:|---:|---:|"
    for num_blocks, each in found.items():
        ratio = [b / a for a, b in zip(each["made"], each["loaded"], strict=True)]
        cells = [spread(each["made"]), spread(each["loaded"]), spread(ratio)]
        yield f"| {num_blocks:,} | {' | '.join(cells)} |"


def main() -> None:
    """See the top of this file."""
    parser = options(__doc__, "saved", 11)
    parser.add_argument("--once", type=Path, metavar="FILE", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.once is not None:
        print(json.dumps(once(given.once)))
        return
    facts = (
        f"One group, blocks of {BLOCK} tokens in prompts of {PROMPT_BLOCKS:,} blocks, SHA-256;"
        f" medians of {given.rounds} rounds (quartiles). `save` waits for the disk."
    )
    command = f"python -m bench.saved --rounds {given.rounds}"
    put_run(command, facts, rows(given.rounds), "saved", given.into)


if __name__ == "__main__":
    main()
