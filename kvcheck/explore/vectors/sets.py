"""The graphs whose every edge is a static vector: as small as each part allows, so that they fit.

They are configurations like those of `kvspec explore`, bounded more: fewer blocks, prompts or
requests, and only the calls that the part is about. They are written out here, so that none of
them changes when one of those does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from kvcheck.explore.bounds import Admission, Call, Computation, Configuration
from kvcheck.explore.configurations import GATE
from kvcheck.explore.managers import aligned_mamba, cache
from kvcheck.explore.vectors.rules import RULES
from kvcheck.rules.specs import chunked, full
from kvcheck.rules.specs import sliding as window
from kvspec.config import ManagerConfig

PLAIN = frozenset({Call.PREEMPT, Call.RESET, Call.ASK})
USUAL = PLAIN | {Call.EVICT, Call.ILLEGAL}
PAIR = ((0, 0), (0, 1))
"""Two prompts that share their first token, and no more."""


@dataclass(frozen=True)
class VectorSet:
    """A graph, and the rules that its edges exercise: a mistake in any of them shows in it."""

    configuration: Configuration
    rules: tuple[str, ...]


def _set(
    name: str,
    summary: str,
    config: ManagerConfig,
    *prompts: tuple[int, ...],
    calls: frozenset[Call],
    **bounds: Any,
) -> VectorSet:
    """With statistics in any case."""
    asked = replace(config.policy, lookups_counted="asked")  # as the first vectors were written
    counted = replace(config, log_stats=True, policy=asked)
    configuration = Configuration(name, summary, counted, prompts, calls=calls, **bounds)
    return VectorSet(configuration, RULES[name])


_SINGLE = (
    _set(
        "uncached",
        "2 blocks of 2 tokens, caching off; 2 requests that come, compute, are preempted and end",
        replace(cache(3, full(2), max_tokens=4), enable_caching=False),
        *((0, 0, 0), (0, 0, 1)),
        calls=frozenset({Call.PREEMPT}),
    ),
    _set(
        "base",
        "2 blocks of 2 tokens, 2 requests that come, compute, are preempted and end; resets",
        cache(3, full(2), max_tokens=3),
        *((0, 0, 0), (0, 0, 1)),
        calls=frozenset({Call.PREEMPT, Call.RESET}),
    ),
    _set(
        "pool",
        "2 blocks of 1 token; deferred frees, unregistered blocks, eviction by id, illegal calls",
        cache(3, full(1), max_tokens=2),
        *((2,), (0, 1)),
        tokens=(),
        in_chunks=False,
        admissions=(Admission(), Admission(look_up=False, delayed=True)),
        calls=frozenset({Call.POP, Call.EVICT, Call.RESET, Call.ASK, Call.ILLEGAL}),
    ),
    _set(
        "manager",
        "2 blocks of 1 token, 2 requests of 1 to 3 tokens, every call, illegal ones too",
        cache(3, full(1), max_tokens=3),
        *PAIR,
        in_chunks=False,
        calls=USUAL,
    ),
    _set(
        "blocks-of-2",
        "2 blocks of 2 tokens, so that blocks are half full; growth to 4 tokens",
        cache(3, full(2), max_tokens=4),
        (0, 0, 0),
        calls=PLAIN,
    ),
    _set(
        "window",
        "3 blocks of 1 token, a window of 2 tokens; one request that grows to 4 tokens",
        cache(4, window(1, 2), max_tokens=4),
        *PAIR,
        num_requests=1,
        calls=PLAIN | {Call.SKIP},
    ),
    _set(
        "eagle",
        "3 blocks of 1 token, hits drop their last block; lookahead, drafts, some accepted",
        cache(4, full(1), max_tokens=4, use_eagle=True),
        *((0, 0), (0, 0, 1)),
        num_requests=1,
        admissions=(Admission(), Admission(lookahead_tokens=1)),
        computations=(
            Computation(lookahead_tokens=1),
            Computation(num_drafts=1),
            Computation(num_drafts=1, num_accepted=1),
        ),
        calls=PLAIN,
    ),
    _set(
        "external",
        "2 blocks of 1 token; tokens of another store, now or by a later load; registering later",
        cache(3, full(1), max_tokens=2),
        (0, 1),
        admissions=(
            Admission(),
            Admission(external_tokens=1),
            Admission(external_tokens=1, load_later=True),
        ),
        computations=(Computation(), Computation(delayed=True)),
        calls=frozenset({Call.PREEMPT, Call.EVICT, Call.CACHE}),
    ),
    _set(
        "admission",
        "a window of 2 tokens over 3 blocks; watermark, reserved blocks, whole sequences",
        replace(cache(4, window(1, 2), max_tokens=3), watermark=0.4, max_num_batched_tokens=1),
        (0, 0),
        in_chunks=False,
        admissions=(
            Admission(must_fit=True),
            Admission(reserved_blocks=1),
            Admission(others_scheduled=True),
        ),
        calls=frozenset({Call.PREEMPT, Call.RESET}),
    ),
)

_SEVERAL = (
    _set(
        "hybrid",
        "full attention and a window of 2 tokens over 4 blocks; one request, eviction by id",
        cache(5, full(1), window(1, 2), max_tokens=3),
        (0, 0),
        num_requests=1,
        in_chunks=False,
        calls=PLAIN | {Call.SKIP, Call.EVICT},
    ),
    _set(
        "two-requests",
        "full attention and a window of 2 tokens over 5 blocks; two requests",
        cache(6, full(1), window(1, 2), max_tokens=3),
        (0, 0),
        in_chunks=False,
        calls=PLAIN | {Call.SKIP},
    ),
    _set(
        "own-hits",
        "full attention and a window of 2 tokens over 4 blocks; each brings its own hit, and a load"
        " what the shorter one lacks; one request",
        cache(5, full(1), window(1, 2), max_tokens=3),
        (0, 0, 0),
        num_requests=1,
        in_chunks=False,
        admissions=(
            Admission(),
            Admission(external_tokens=1, own_hits=True),
            Admission(external_tokens=1, load_later=True, own_hits=True),
        ),
        calls=frozenset({Call.PREEMPT, Call.EVICT}),
    ),
    _set(
        "hybrid-eagle",
        "full attention and a window of 2 tokens over 5 blocks, both drop their last hit block",
        cache(6, full(1), window(1, 2), max_tokens=3, use_eagle=True),
        *((0, 0), (0, 0, 0)),
        num_requests=1,
        calls=PLAIN,
    ),
    _set(
        "mamba",
        "full attention and Mamba in mode align over 4 blocks of 1 token; steps; one request",
        cache(5, full(1), aligned_mamba(1), max_tokens=3),
        (0, 0),
        num_requests=1,
        calls=PLAIN | {Call.SKIP, Call.STEP},
    ),
    _set(
        "chunked",
        "full attention and chunks of 2 tokens over 5 blocks of 1 token; one request",
        cache(6, full(1), chunked(1, 2), max_tokens=3),
        *PAIR,
        num_requests=1,
        calls=PLAIN | {Call.SKIP},
    ),
    _set(
        "partial",
        "full attention in blocks of 1 and of 2 tokens, 5 blocks; entries inside a block",
        replace(cache(6, full(2), full(1), max_tokens=4), hash_block_size_tokens=1),
        (0, 0, 0),
        num_requests=1,
        calls=PLAIN | {Call.PARTIAL},
    ),
    _set(
        "retention",
        "full attention and a window of 2 tokens that keeps only tails of prompts; one request",
        replace(cache(6, full(1), window(1, 2), max_tokens=4), retention_interval_tokens=0),
        *((0, 0), (0, 0, 0)),
        num_requests=1,
        calls=PLAIN,
    ),
)

_TOGETHER = (
    _set(
        "no-events",
        "full attention in blocks of 1 and of 2 tokens, events off; entries inside a block",
        replace(
            cache(5, full(2), full(1), max_tokens=3), hash_block_size_tokens=1, enable_events=False
        ),
        *((0, 0, 0), (1,)),
        num_requests=1,
        in_chunks=False,
        calls=frozenset({Call.PARTIAL}),
    ),
    _set(
        "unequal",
        "3 groups with blocks of 4, 2 and 1 tokens, the last a window; hits drop their last block",
        replace(
            cache(19, full(4), full(2), window(1, 2), max_tokens=9, use_eagle=True),
            hash_block_size_tokens=1,
        ),
        *((0,) * 9, (0,) * 4 + (1,) * 5),
        num_requests=1,
        in_chunks=False,
        calls=frozenset(),
    ),
    _set(
        "mamba-retention",
        "full attention and Mamba that keeps only the last state of a prompt; one request",
        replace(cache(6, full(1), aligned_mamba(1), max_tokens=3), retention_interval_tokens=0),
        (0, 0),
        num_requests=1,
        calls=frozenset({Call.PREEMPT}),
    ),
    _set(
        "gate",
        "3 blocks of 1 token; a watermark, and of whole sequences that must fit, reserved blocks"
        " and lookahead each with each",
        replace(cache(4, full(1), max_tokens=3), watermark=0.25),
        (0, 0, 1),
        tokens=(),
        admissions=GATE.admissions,
        calls=frozenset(),
    ),
)

SETS: tuple[VectorSet, ...] = (*_SINGLE, *_SEVERAL, *_TOGETHER)
"""All of them, in the order in which they are played: options put together last."""
