"""The configurations to explore, by name: small, and each about something else."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

from kvcheck.explore.bounds import Admission, Call, Computation, Configuration, Step
from kvcheck.explore.inside import INSIDE, INSIDE_BATCHED, INSIDE_STATES
from kvcheck.explore.managers import aligned_mamba, cache, texts
from kvcheck.rules.specs import chunked, full, ring, rswa
from kvcheck.rules.specs import sliding as window

USUAL = frozenset({Call.PREEMPT, Call.EVICT, Call.RESET, Call.ASK, Call.ILLEGAL})
SHORT = ((0, 0), (0, 1))
"""Two prompts that share their first token, and no more."""


POOL = Configuration(
    "pool",
    "3 blocks of 1 token, 3 hashes, at most 2 references; deferred frees, unregistered blocks",
    cache(4, full(1), max_tokens=2),
    ((0,), (2,), (0, 1)),
    tokens=(),
    in_chunks=False,
    admissions=(Admission(), Admission(look_up=False, delayed=True)),
    calls=frozenset({Call.POP, Call.EVICT, Call.RESET, Call.ASK, Call.ILLEGAL}),
)
MANAGER = Configuration(
    "manager",
    "2 blocks of 1 token, 2 requests, all texts of 1 to 3 tokens of an alphabet of 2",
    cache(3, full(1), max_tokens=3),
    texts(1, 2, 3),
    tokens=(0, 1),
    calls=USUAL,
)
THREE = Configuration(
    "three",
    "3 requests, 3 blocks of 1 token, texts of 1 and 2 tokens",
    cache(4, full(1), max_tokens=2),
    ((0,), (0, 1)),
    num_requests=3,
    calls=USUAL,
)
BLOCKS_OF_TWO = Configuration(
    "blocks-of-2",
    "3 blocks of 2 tokens, so that blocks are half full; growth to 4 tokens of an alphabet of 2",
    cache(4, full(2), max_tokens=4),
    ((0, 0, 0), (0, 0, 1)),
    tokens=(0, 1),
    calls=USUAL,
)
WINDOW = Configuration(
    "window",
    "3 blocks of 1 token, a window of 2 tokens",
    cache(4, window(1, 2), max_tokens=3),
    SHORT,
    calls=USUAL | {Call.SKIP},
)
HYBRID = Configuration(
    "hybrid",
    "full attention and a window of 2 tokens over 5 blocks of 1 token",
    cache(6, full(1), window(1, 2), max_tokens=3),
    ((0, 0),),
    in_chunks=False,
    calls=USUAL | {Call.SKIP},
)
EAGLE = Configuration(
    "eagle",
    "3 blocks of 1 token, hits drop their last block; lookahead, drafts, some accepted",
    cache(4, full(1), max_tokens=4, use_eagle=True),
    ((0, 0), (0, 0, 1)),
    admissions=(Admission(), Admission(lookahead_tokens=1)),
    computations=(
        Computation(lookahead_tokens=1),
        Computation(num_drafts=1),
        Computation(num_drafts=1, num_accepted=1),
    ),
    calls=USUAL,
)
MAMBA = Configuration(
    "mamba",
    "full attention and Mamba in mode align over 4 blocks of 1 token; steps",
    cache(5, full(1), aligned_mamba(1), max_tokens=3),
    SHORT,
    calls=frozenset({Call.PREEMPT, Call.RESET, Call.SKIP, Call.STEP, Call.ASK}),
)
CHUNKED = Configuration(
    "chunked",
    "full attention and chunks of 2 tokens over 4 blocks of 1 token",
    cache(5, full(1), chunked(1, 2), max_tokens=3),
    ((0, 0), (0, 1)),
    in_chunks=False,
    calls=USUAL | {Call.SKIP},
)
RING = Configuration(
    "ring",
    "full attention and a circular buffer over 5 blocks of 1 token",
    cache(6, full(1), ring(1), max_tokens=3),
    ((0, 0),),
    in_chunks=False,
    admissions=(Admission(), Admission(external_tokens=1, delayed=True)),
    calls=frozenset({Call.PREEMPT, Call.SKIP, Call.CACHE, Call.ASK, Call.ILLEGAL}),
)
RSWA = Configuration(
    "rswa",
    "3 blocks of 1 token, R-SWA with a window of 1 token: a prompt of 1 token and 2 more",
    cache(4, rswa(1, 1), max_tokens=3),
    ((0,),),
    in_chunks=False,
    calls=frozenset({Call.PREEMPT, Call.SKIP, Call.ASK}),
)
EXTERNAL = Configuration(
    "external",
    "3 blocks of 1 token; tokens of another store, now or by a later load; registering later",
    cache(4, full(1), max_tokens=3),
    SHORT,
    admissions=(
        Admission(),
        Admission(external_tokens=1),
        Admission(external_tokens=1, load_later=True),
    ),
    computations=(Computation(), Computation(delayed=True)),
    calls=frozenset({Call.PREEMPT, Call.EVICT, Call.CACHE, Call.ASK, Call.ILLEGAL}),
)
OWN_HITS = Configuration(
    "own-hits",
    "full attention and a window of 2 tokens over 5 blocks of 1 token; each brings its own hit, and"
    " a load what the shorter one lacks",
    cache(6, full(1), window(1, 2), max_tokens=3),
    ((0, 0, 0),),
    num_requests=1,
    in_chunks=False,
    admissions=(
        Admission(),
        Admission(external_tokens=1, own_hits=True),
        Admission(external_tokens=1, load_later=True, own_hits=True),
    ),
    calls=frozenset({Call.PREEMPT, Call.EVICT}),
)
PARTIAL = Configuration(
    "partial",
    "2 groups of full attention over 4 blocks, of 1 and 2 tokens; entries inside a block",
    replace(cache(5, full(2), full(1), max_tokens=4), hash_block_size_tokens=1),
    ((0, 0, 0), (0, 1, 0)),
    calls=frozenset({Call.PREEMPT, Call.EVICT, Call.PARTIAL, Call.ASK}),
)
RETENTION = Configuration(
    "retention",
    "full attention and a window of 2 tokens that keeps only tails of prompts, over 5 blocks",
    replace(cache(6, full(1), window(1, 2), max_tokens=4), retention_interval_tokens=0),
    ((0, 0), (0, 0, 0)),
    calls=frozenset({Call.PREEMPT, Call.RESET, Call.ASK}),
)
ADMISSION = Configuration(
    "admission",
    "a window of 2 tokens over 4 blocks; watermark, reserved blocks, whole sequences that must fit",
    replace(cache(5, window(1, 2), max_tokens=3), watermark=0.4, max_num_batched_tokens=1),
    SHORT,
    admissions=(
        Admission(must_fit=True),
        Admission(reserved_blocks=1),
        Admission(others_scheduled=True),
    ),
    calls=frozenset({Call.PREEMPT, Call.RESET, Call.ASK}),
)
BATCHED = Configuration(
    "batched",
    "whole steps of 2 requests over 3 blocks of 1 token, every plan; a budget, lookahead",
    cache(4, full(1), max_tokens=3),
    ((0, 0), (0, 1, 1)),
    admissions=(),
    computations=(),
    steps=(Step(8), Step(1, num_lookahead_tokens=1, stops_at_refusal=True)),
    calls=frozenset({Call.EVICT, Call.RESET, Call.ILLEGAL}),
)

NO_EVENTS = Configuration(
    "no-events",
    "as partial, with events off and resets: stored and removed keys are not reported",
    replace(PARTIAL.config, enable_events=False),
    PARTIAL.prompts,
    calls=frozenset({Call.PREEMPT, Call.RESET, Call.PARTIAL}),
)
UNEQUAL = Configuration(
    "unequal",
    "3 groups with blocks of 4, 2 and 1 tokens, the last a window; hits drop their last block",
    replace(
        cache(19, full(4), full(2), window(1, 2), max_tokens=9, use_eagle=True),
        hash_block_size_tokens=1,
    ),
    ((0,) * 9, (0,) * 5, (0,) * 4 + (1,) * 5),
    num_requests=1,
    in_chunks=False,
    calls=frozenset({Call.PREEMPT, Call.RESET}),
)
MAMBA_RETENTION = Configuration(
    "mamba-retention",
    "full attention and Mamba that keeps every second state and the last of a prompt; 5 blocks",
    replace(cache(6, full(1), aligned_mamba(1), max_tokens=4), retention_interval_tokens=2),
    ((0, 0), (0, 0, 0)),
    num_requests=1,
    calls=frozenset({Call.PREEMPT, Call.RESET, Call.STEP}),
)
GATE = Configuration(
    "gate",
    "full attention and a window of 2 tokens over 6 blocks; a watermark, and of whole sequences"
    " that must fit, reserved blocks and lookahead each with each",
    replace(cache(7, full(1), window(1, 2), max_tokens=3), watermark=0.2, max_num_batched_tokens=1),
    ((0, 0), (0, 0, 1)),
    admissions=tuple(
        Admission(
            must_fit=must_fit,
            reserved_blocks=reserved,
            lookahead_tokens=lookahead,
            others_scheduled=True,
        )
        for must_fit, reserved, lookahead in itertools.product((False, True), (0, 1), (0, 1))
    ),
    computations=(Computation(), Computation(lookahead_tokens=1)),
    calls=frozenset({Call.PREEMPT}),
)
REFUSALS = Configuration(
    "refusals",
    "whole steps of 2 requests, events off: full attention and a window of 2 tokens over 6 blocks;"
    " blocks reserved from new requests, so that a long one is refused before a short one",
    replace(cache(7, full(1), window(1, 2), max_tokens=3), enable_events=False),
    ((0, 0), (0, 1, 1)),
    admissions=(),
    computations=(),
    steps=(
        Step(8, reserved_blocks=1, stops_at_refusal=True),
        Step(2, num_lookahead_tokens=1),
    ),
    calls=frozenset({Call.ILLEGAL}),
)


def _deep(like: Configuration, name: str, summary: str, **changes: Any) -> Configuration:
    """Return a larger configuration, explored only when asked for."""
    return replace(like, name=name, summary=summary, is_deep=True, **changes)


DEEP: tuple[Configuration, ...] = (
    _deep(POOL, "deep-pool", "as pool, with 6 blocks", config=cache(7, full(1), max_tokens=2)),
    _deep(
        MANAGER, "deep-manager", "as manager, with 3 blocks", config=cache(4, full(1), max_tokens=3)
    ),
    _deep(
        MANAGER,
        "deep-blocks",
        "4 blocks of 1 token, all texts of 1 and 2 tokens",
        config=cache(5, full(1), max_tokens=2),
        prompts=texts(1, 2),
    ),
    _deep(
        MANAGER,
        "deep-three",
        "3 requests, 3 blocks, all texts of 1 to 3 tokens",
        config=cache(4, full(1), max_tokens=3),
        num_requests=3,
    ),
    _deep(
        MANAGER,
        "deep-texts",
        "2 blocks of 1 token, all texts of 1 to 5 tokens: most is refused or computed in part",
        config=cache(3, full(1), max_tokens=5),
        prompts=texts(1, 2, 3, 4, 5),
    ),
    _deep(
        BLOCKS_OF_TWO,
        "deep-blocks-of-2",
        "as blocks-of-2, with all texts of 3 tokens",
        prompts=texts(3),
    ),
    _deep(
        WINDOW,
        "deep-window",
        "as window, with 4 blocks and growth to 4 tokens",
        config=cache(5, window(1, 2), max_tokens=4),
    ),
    _deep(
        HYBRID,
        "deep-hybrid",
        "as hybrid, with two prompts, computed in chunks",
        prompts=SHORT,
        in_chunks=True,
    ),
    _deep(
        EAGLE,
        "deep-eagle",
        "as eagle, with 4 blocks",
        config=cache(5, full(1), max_tokens=4, use_eagle=True),
    ),
    _deep(
        MAMBA,
        "deep-mamba",
        "as mamba, with 6 blocks",
        config=cache(7, full(1), aligned_mamba(1), max_tokens=3),
    ),
    _deep(
        EXTERNAL,
        "deep-external",
        "as external, with 4 blocks",
        config=cache(5, full(1), max_tokens=3),
    ),
    _deep(CHUNKED, "deep-chunked", "as chunked, computed in chunks", in_chunks=True),
    _deep(
        PARTIAL,
        "deep-partial",
        "as partial, with 5 blocks",
        config=replace(cache(6, full(2), full(1), max_tokens=4), hash_block_size_tokens=1),
    ),
    _deep(
        RETENTION,
        "deep-retention",
        "as retention, with 7 blocks",
        config=replace(cache(8, full(1), window(1, 2), max_tokens=4), retention_interval_tokens=0),
    ),
    _deep(
        ADMISSION,
        "deep-admission",
        "as admission, with 5 blocks",
        config=replace(
            cache(6, window(1, 2), max_tokens=3), watermark=0.4, max_num_batched_tokens=1
        ),
    ),
    _deep(
        BATCHED,
        "deep-batched",
        "whole steps of 2 requests: full attention and a window of 2 tokens over 5 blocks",
        config=cache(6, full(1), window(1, 2), max_tokens=3),
    ),
    _deep(
        BATCHED,
        "deep-batched-three",
        "whole steps of 3 requests over 3 blocks, within a budget of 3 tokens",
        config=cache(4, full(1), max_tokens=2),
        num_requests=3,
        prompts=((0,), (0, 1)),
        steps=(Step(3),),
    ),
)

CONFIGURATIONS: tuple[Configuration, ...] = (
    POOL,
    MANAGER,
    THREE,
    BLOCKS_OF_TWO,
    WINDOW,
    HYBRID,
    EAGLE,
    MAMBA,
    CHUNKED,
    EXTERNAL,
    OWN_HITS,
    PARTIAL,
    RETENTION,
    ADMISSION,
    BATCHED,
    NO_EVENTS,
    UNEQUAL,
    MAMBA_RETENTION,
    RING,
    RSWA,
    GATE,
    INSIDE,
    INSIDE_STATES,
    INSIDE_BATCHED,
    REFUSALS,
    *DEEP,
)
"""The default ones run first, with some 1,120,000 edges; the larger ones take hours."""
