"""Several threads at one manager or one request: a program of its own, since it may crash.

python -m tests.contract.at_once IMPLEMENTATION threads_on_a_manager|threads_on_a_request
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from kvcheck.discovery import find_implementation
from kvspec.blocks import KVCacheBlocks
from kvspec.errors import BusyError, StaleHitError
from kvspec.interface import Implementation, KVCacheManager
from kvspec.invariants import check_snapshot
from kvspec.request import Request
from tests.contract.builders import make_config, new_request

T = TypeVar("T")
SECONDS = 1.0


def threads_on_a_manager(implementation: Implementation) -> None:
    """Admit, decode and free requests in six threads; each call returns or is refused."""
    config = make_config(40, log_stats=True, enable_events=True, residency_sample_rate=1.0)
    manager = implementation.create(config, check_invariants=False)
    requests = [new_request(implementation, manager, f"r{i}", range(30)) for i in range(6)]
    run_all([partial(live, manager, request) for request in requests])
    manager.take_events()
    snapshot = manager.snapshot()
    check_snapshot(manager.config, snapshot)
    assert manager.num_free_blocks == 39, snapshot


def live(manager: KVCacheManager, request: Request) -> None:
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        patiently(lambda: manager.free(request))
        granted = patiently(lambda: admitted(manager, request))
        patiently(manager.take_residency_samples)
        if granted is not None:
            patiently(partial(manager.evict_blocks, granted.groups[0]))
    patiently(lambda: manager.free(request))


def admitted(manager: KVCacheManager, request: Request) -> KVCacheBlocks | None:
    hit = manager.get_computed_blocks(request)
    try:
        return manager.allocate_slots(
            request,
            request.num_tokens - hit.hit_length_tokens,
            num_new_computed_tokens=hit.hit_length_tokens,
            new_computed_blocks=hit.blocks,
        )
    except StaleHitError:  # another thread evicted it in between
        return None


def patiently(call: Callable[[], T]) -> T:
    while True:
        try:
            return call()
        except BusyError:
            time.sleep(0)


def threads_on_a_request(implementation: Implementation) -> None:
    manager = implementation.create(make_config(4, 16), check_invariants=False)
    num_tokens = 0
    for turn in range(5):
        request = new_request(implementation, manager, f"r{turn}", range(3))
        run_all([partial(append, request, start) for start in range(0, 40_000, 10_000)])
        tokens = list(request.token_ids)
        again = new_request(implementation, manager, "again", tokens)
        assert list(again.block_hashes) == list(request.block_hashes)
        num_tokens += request.num_tokens
    assert num_tokens == 5 * 40_003


def append(request: Any, start: int) -> None:
    tokens = list(range(start, start + 10_000))
    patiently(lambda: request.append(tokens))


def run_all(calls: list[Callable[[], None]]) -> None:
    errors: list[BaseException] = []

    def guarded(call: Callable[[], None]) -> None:
        try:
            call()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


if __name__ == "__main__":
    sys.setswitchinterval(1e-6)
    {"threads_on_a_manager": threads_on_a_manager, "threads_on_a_request": threads_on_a_request}[
        sys.argv[2]
    ](find_implementation(sys.argv[1]))
