"""Windows, chunks and states: what is skipped, what is needed and what is held, for all integers.

Methods of kvref's groups and of kvfast's `Shape` are run as they stand on unknown numbers, along
each way they may take. Block size, window, chunk, steps and lengths are ints without bound.
Statements:

- What a group of kvref skips is what no token to come reads, and no less (KV-SW-1, KV-CHUNK-1,
  KV-MAMBA-1, KV-MAMBA-5); entries before s // B are those wholly before s (KV-GRP-2).
- The run of a hit is the fewest blocks that hold the W - 1 tokens before its end (KV-SW-2); what is
  null in a hit is skipped behind it (KV-SW-3, KV-CHUNK-2).
- The need that kvref's group answers is the number of blocks that the rules take, which stand here
  as formulas (KV-GRP-3, KV-GRP-4 against KV-GRP-5 … KV-GRP-7; KV-MAMBA-4; KV-MAMBA-7 and
  KV-MAMBA-8 against KV-MAMBA-9). No hit is free. Of kvfast that is `allocation.py`.
- A request never holds more blocks than kvref's admission counts for it (KV-SW-7, KV-CHUNK-5,
  KV-LIVE-2): with M tokens a step and L in all, c computed tokens and n <= M more, c + n <= L, it
  holds the blocks s(c) // B … cdiv(c + n, B) - 1.
- kvfast skips, needs runs and counts caps as kvref does, and has a window beyond what is loaded in
  the same cases (KV-GRP-6).

Assumed is what the rules say of arguments; each statement's assumptions are shown to be possible,
one close to it is refuted, and a mistake in each of these methods is found.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import z3

from kvfast import configuration
from kvfast._core.shape import Shape
from kvref.groups import base
from kvref.groups.chunked_local import ChunkedLocalGroup
from kvref.groups.mamba import MambaGroup
from kvref.groups.mamba_align import AlignedMambaGroup
from kvref.groups.sliding_window import SlidingWindowGroup
from proofs._z3 import Ledger, Statement, Term, ask, cdiv, larger, run, smaller
from proofs.code._groups import (
    KINDS,
    LONGEST,
    STEP,
    cap,
    need,
    of_fast,
    run_length,
    sizes,
    skips,
)
from proofs.code._paths import Way

ASSUMES = ("arguments are as the rules allow",)
GUARANTEES = (
    "both skip the same blocks, and count the same caps and runs",
    "what is skipped is read by no token to come",
    "admission counts at least what a request ever holds",
)


def skipped() -> Iterator[Statement]:
    """What is skipped is what nobody will read."""
    window, chunk, block, extra = z3.Ints("window chunk block_size num_speculative_blocks")
    computed, reader, token, entry = z3.Ints("computed reader token entry")
    known = sizes()
    tokens = (computed >= 0, reader >= computed, token >= 0)

    def in_window(reader: Term) -> Term:
        return z3.And(token > reader - window, token <= reader)

    def in_chunk(reader: Term) -> Term:
        return z3.And(token / chunk == reader / chunk, token <= reader)

    gone = skips("window", computed)
    yield Statement(
        "no token to come reads what its window skips",
        (*known, *tokens),
        z3.Implies(token < gone, z3.Not(in_window(reader))),
        z3.Implies(token <= gone, z3.Not(in_window(reader))),
    )
    yield Statement(
        "the next token reads all that its window does not skip",
        (*known, *tokens, token <= computed),
        z3.Implies(token >= gone, in_window(computed)),
        z3.Implies(token >= gone - 1, in_window(computed)),
    )
    gone = skips("chunk", computed)
    yield Statement(
        "no token to come reads what its chunk skips",
        (*known, *tokens),
        z3.Implies(token < gone, z3.Not(in_chunk(reader))),
        z3.Implies(token <= gone, z3.Not(in_chunk(reader))),
    )
    yield Statement(
        "the next token reads all that its chunk does not skip",
        (*known, *tokens, token <= computed),
        z3.Implies(token >= gone, in_chunk(computed)),
        z3.Implies(token >= gone - chunk, in_chunk(computed)),
    )
    running = (computed - 1) / block
    yield Statement(
        "all states before the running one are skipped, and it is not",
        (*known, computed >= 1),
        skips("state", computed) / block == running,
        computed / block == running,
    )
    accepted = z3.Int("accepted")
    removed = skips("state", larger(computed - extra, 0)) / block
    yield Statement(
        "no state is removed to which rejected drafts may lead back",
        (*known, accepted >= 1, accepted <= computed, accepted >= computed - extra),
        removed <= (accepted - 1) / block,
        skips("state", computed) / block <= (accepted - 1) / block,
    )
    yield Statement(
        "entries before s // B are those wholly before s",
        (*known, computed >= 0, entry >= 0),
        (entry < computed / block) == ((entry + 1) * block <= computed),
        (entry < cdiv(computed, block)) == ((entry + 1) * block <= computed),
    )


def found() -> Iterator[Statement]:
    """What a hit leaves out is what is skipped behind it, so its nulls are never read."""
    block, window, ends = z3.Ints("block_size window hit_blocks")
    token, limit, run, chunk = z3.Ints("token limit run chunk_blocks")
    known = (*sizes(), chunk >= 1, ends >= 1)
    for drop in (False, True):
        blocks = run_length(drop) - int(drop)
        yield Statement(
            f"a run is the fewest blocks that hold W - 1 tokens{', one more with a drop' * drop}",
            known,
            z3.And(blocks * block >= window - 1, (blocks - 1) * block < window - 1),
            z3.And(blocks * block >= window, (blocks - 1) * block < window),
        )
        left = ends + int(drop) - larger(run_length(drop), 1)
        dropped = ", with a drop" if drop else ""
        yield Statement(
            f"the run of a hit has all that the window of the next token reads{dropped}",
            (*known, token >= 0, token < ends * block, token > ends * block - window),
            token / block >= left,
            token / block > left,
        )
        yield Statement(
            f"what is null before a run is skipped{dropped}",
            (*known, left >= 0),
            left <= skips("window", ends * block) / block,
            left + 1 <= skips("window", ends * block) / block,
        )
    tokens = chunk * block
    start = skips("chunk", limit, chunk=tokens) / block
    hit = (start + run) * block
    yield Statement(
        "what is null in the hit of a chunk is skipped, and no more is",
        (*known, limit >= 0, run >= 0, hit <= limit),
        start == skips("chunk", hit, chunk=tokens) / block,
        start == skips("chunk", hit + block, chunk=tokens) / block,
    )


def needed() -> Iterator[Statement]:
    """What kvref's groups say is needed is what KV-GRP-5 … KV-GRP-7 take."""
    block, extra, hits, at = z3.Ints("block_size num_speculative_blocks hits at")
    local, external, slots, held = z3.Ints("local external slots held")
    counts = (hits >= 0, at >= 0, slots >= 1, local >= 0, external >= 0, held >= 0)
    known, total = (*sizes(), *counts), local + external
    given = {"local": local, "external": external, "skip_at": at, "hits": hits}

    def taken(slots: Term, skipped: Term) -> Term:
        """KV-GRP-5, KV-GRP-6, then KV-GRP-7."""
        nulls = skipped / block
        length = nulls + larger(hits - nulls, 0)
        loads = z3.And(external > 0, total > skipped)
        loaded = z3.If(loads, larger(cdiv(total, block) - length, 0), 0)
        return loaded + larger(cdiv(slots, block) - length - loaded, 0)

    for name in ("full", "window"):
        gone = skips(name, at)
        loads = z3.And(external > 0, total > gone)
        asked = z3.If(loads, larger(slots, total), slots)
        yield Statement(
            f"{name}: a first allocation takes the need of KV-GRP-4",
            known,
            taken(slots, gone) == need(name, slots=asked, **given),
            taken(slots, gone) == need(name, slots=slots, **given),
        )
        new = larger(cdiv(slots, block) - held, 0)
        yield Statement(
            f"{name}: a request without an entry takes new blocks only",
            (*known, held * block >= at),
            new == need(name, slots=slots, held=held, skip_at=at),
            new == need(name, slots=slots, skip_at=at),
        )
        yield Statement(
            f"{name}: so does one with an entry",
            known,
            new == need(name, slots=slots, held=held, skip_at=at, has_entry=True),
            new == need(name, slots=slots, skip_at=at, has_entry=True),
        )
    gone = skips("state", at)
    yield Statement(
        "states take S blocks more",
        (*known, slots >= total),
        taken(slots + extra * block, gone) == need("state", slots=slots, **given),
        taken(slots, gone) == need("state", slots=slots, **given),
    )


def aligned(entries: Term, held: Term, extra: Term, has_taken: bool) -> Term:
    """Blocks that KV-MAMBA-9 takes for a list that must have so many entries."""
    padded = larger(held, entries - extra - 1)
    first = held - extra
    moved = smaller(larger(entries - extra - 1 - first, 0), extra) if has_taken else 0
    return z3.If(entries <= held, 0, entries - padded - moved)


def needed_by_states() -> Iterator[Statement]:
    """The same of mode align."""
    block, extra, main, held = z3.Ints("block_size num_speculative_blocks main held")
    hits, at, local, external = z3.Ints("hits at local external")
    known = (*sizes(), main >= 1, held >= 0)
    entries = cdiv(main, block) + extra

    def wanted(*, has_taken: bool) -> Term:
        return need("aligned", slots=main, held=held, has_entry=True, has_taken=has_taken)

    yield Statement(
        "a request that has taken blocks takes one, or none",
        (*known, held >= extra + 1),
        aligned(entries, held, extra, True) == wanted(has_taken=True),
        aligned(entries, held, extra, False) == wanted(has_taken=True),
    )
    first = aligned(entries, held, extra, False)
    most = wanted(has_taken=False)
    yield Statement(
        "another one takes at most its need, and all of it if it holds nothing",
        known,
        z3.And(first <= most, z3.Implies(held == 0, first == most)),
        first == most,
    )
    start = larger(skips("aligned", at) / block, hits)
    loaded = larger(0, cdiv(local + external, block) - start)
    taken = loaded + aligned(entries, start + loaded, extra, False)
    given = {"local": local, "external": external, "skip_at": at, "hits": hits}
    yield Statement(
        "with external tokens the need of KV-MAMBA-8 is taken",
        (*known, hits >= 0, at >= 0, local >= 0, external >= 1),
        taken == need("aligned", slots=main, **given),
        taken == entries - start,
    )


def held_blocks() -> Iterator[Statement]:
    """Admission counts at least what is ever held."""
    block, chunk = z3.Ints("block_size chunk_blocks")
    computed, new, most, longest = z3.Ints(f"computed new {STEP} {LONGEST}")
    step = (computed >= 0, new >= 1, new <= most, computed + new <= longest)
    end = cdiv(computed + new, block)
    tokens = {"chunk": chunk * block}
    for name, given in (("window", {}), ("chunk", tokens)):
        held = end - skips(name, computed, **given) / block
        yield Statement(
            f"a {name} holds at most its cap",
            (*sizes(), chunk >= 1, *step),
            held <= cap(name, **given),
            held <= cap(name, **given) - 1,
        )


def fast_run(shape: Any, way: Way, *, drop: bool) -> object:
    """Blocks of a run in kvfast."""
    return shape.run_length(0, drop)


def twins() -> Iterator[Statement]:
    """kvfast answers the same as kvref."""
    block, at, computed = z3.Ints("block_size at computed")
    known = (*sizes(), at >= 0, computed >= 0)
    for name in KINDS:
        gone, beyond = skips(name, computed) / block, skips(name, at) >= computed
        yield Statement(
            f"{name}: both skip the same blocks",
            known,
            of_fast(name, lambda shape, way: shape.skipped(0, way.number(computed))) == gone,
            of_fast(name, lambda shape, way: shape.skipped(0, way.number(computed + 1))) == gone,
        )

        def is_beyond(shape: Any, way: Way, more: int = 0) -> object:
            return shape.is_window_beyond(0, way.number(at), way.number(computed + more))

        yield Statement(
            f"{name}: no blocks for external tokens in the same cases",
            known,
            of_fast(name, is_beyond) == beyond,
            of_fast(name, partial(is_beyond, more=1)) == beyond,
        )
    for drop in (False, True):
        run = of_fast("window", partial(fast_run, drop=drop))
        yield Statement(
            f"both need the same run, {'with' if drop else 'without'} a drop",
            known,
            run == run_length(drop),
            run == run_length(not drop),
        )
    for name in ("window", "chunk"):

        def fast_cap(shape: Any, way: Way) -> object:
            config = SimpleNamespace(
                max_model_len_tokens=way.number(z3.Int(LONGEST)),
                max_num_batched_tokens=way.number(z3.Int(STEP)),
            )
            size, reach = shape.block_size[0], shape.reach[0]
            return configuration._cap_blocks(cast(Any, config), shape.kind[0], size, reach)

        yield Statement(
            f"{name}: both count the same cap",
            (*known, z3.Int(LONGEST) >= 1, z3.Int(STEP) >= 1),
            of_fast(name, fast_cap) == cap(name),
            of_fast(name, fast_cap) == cap(name) - 1,
        )


STATEMENTS = (skipped, found, needed, needed_by_states, held_blocks, twins)


def window_without_a_step(self: SlidingWindowGroup) -> int:
    """The blocks of a window that begins at a block."""
    return base.cdiv(self.window, self.block_size)


def chunk_beyond_the_end(self: ChunkedLocalGroup) -> int:
    """A chunk and a step, even if no sequence is that long."""
    return base.cdiv(self.chunk + self.context.max_num_batched_tokens, self.block_size)


MISTAKES: tuple[tuple[str, Callable[[], Iterator[Statement]], type, str, object], ...] = (
    (
        "KV-SW-1",
        skipped,
        SlidingWindowGroup,
        "num_skipped_tokens",
        lambda self, n: max(0, n - self.window + 2),
    ),
    ("KV-CHUNK-1", skipped, ChunkedLocalGroup, "num_skipped_tokens", lambda self, n: n),
    ("KV-MAMBA-1", skipped, MambaGroup, "num_skipped_tokens", lambda self, n: n),
    (
        "KV-SW-2",
        found,
        SlidingWindowGroup,
        "run_length_blocks",
        lambda self, drop: base.cdiv(self.window, self.block_size) + int(drop),
    ),
    ("KV-SW-7", held_blocks, SlidingWindowGroup, "max_admission_blocks", window_without_a_step),
    ("KV-CHUNK-5", twins, ChunkedLocalGroup, "max_admission_blocks", chunk_beyond_the_end),
    ("KV-MAMBA-4", needed, MambaGroup, "with_speculative_blocks", lambda self, demand: demand),
    ("KV-MAMBA-7", needed_by_states, AlignedMambaGroup, "num_required_blocks", lambda self, a: 1),
    ("KV-GRP-2", twins, Shape, "skipped", lambda self, group, computed: 0),
    ("KV-GRP-6", twins, Shape, "is_window_beyond", lambda self, group, at, computed: False),
    ("KV-SW-2", twins, Shape, "cdiv", lambda self, a, b: a // b),
)
"""The rule that is broken, where that shows, and the wrong method."""


def check_mistakes(ledger: Ledger) -> None:
    """A method of kvref or kvfast that is wrong makes some statement wrong."""
    for rule, statements, owner, name, wrong in MISTAKES:
        with patch.object(owner, name, wrong):
            shown = any(
                ask([*each.assumptions, z3.Not(each.claim)]) == "sat" for each in statements()
            )
        ledger.agree(f"mistake: {rule}, {owner.__name__}.{name}", shown)


def main() -> int:
    """Ask everything; 0 if each answer is the expected one."""
    ledger = Ledger("windows")
    for statements in STATEMENTS:
        ledger.prove_and_refute(statements())
    check_mistakes(ledger)
    return ledger.finish()


if __name__ == "__main__":
    sys.exit(run(main))
