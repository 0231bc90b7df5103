"""Many requests at once, hashed by threads (KV-REQ-1)."""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from kvspec.errors import InvalidArgumentError
from kvspec.request import RequestInput

from .hashing import Hasher
from .request import FastRequest, make_request


def hash_many(
    inputs: Iterable[RequestInput],
    hasher: Hasher,
    hash_block_size_tokens: int,
    *,
    num_threads: int | None = None,
) -> list[FastRequest]:
    """Make the requests, in order, by threads that hash at the same time.

    None: as many threads as there are processors. The first illegal input in order raises.
    """
    if num_threads is not None and (type(num_threads) is not int or num_threads < 1):
        raise InvalidArgumentError("num_threads", num_threads, "an int of at least 1 or None")
    wanted = _up_to_the_first_wrong_one(inputs)
    workers = min(num_threads or os.cpu_count() or 1, len(wanted))
    if workers <= 1:
        return [make_request(one, hasher, hash_block_size_tokens) for one in wanted]
    # A few parts a thread: long prompts spread, and a part is worth its hand-over.
    length = max(1, len(wanted) // (4 * workers))
    parts = [wanted[i : i + length] for i in range(0, len(wanted), length)]

    def make(part: list[RequestInput]) -> list[FastRequest]:
        return [make_request(one, hasher, hash_block_size_tokens) for one in part]

    with ThreadPoolExecutor(workers) as pool:
        return [request for made in pool.map(make, parts) for request in made]


def _up_to_the_first_wrong_one(inputs: Iterable[RequestInput]) -> list[RequestInput]:
    """Collect the inputs, which may exceed memory, up to the first that `make_request` refuses."""
    if not isinstance(inputs, Iterable):
        raise InvalidArgumentError("inputs", inputs, "RequestInputs one after another")
    found: list[RequestInput] = []
    for one in inputs:
        found.append(one)
        if not isinstance(one, RequestInput):
            break
    return found
