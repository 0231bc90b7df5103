"""Windows, chunks and states: what is skipped, what is needed and what is held, for all integers.

About the formulas of the rules, written down here once more: no code of kvref or kvfast is run, and
a mistake there is not seen here. Block size, window, chunk, steps and lengths are ints without
bound. Statements:

- What a group skips is what no token to come reads, and no less (KV-SW-1, KV-CHUNK-1, KV-MAMBA-1,
  KV-MAMBA-5); entries before s // B are those wholly before s (KV-GRP-2).
- What is null in a hit is skipped behind it (KV-SW-2, KV-SW-3, KV-CHUNK-2).
- The need is the number of blocks that the allocation takes (KV-GRP-4 against KV-GRP-5 …
  KV-GRP-7, and with S more blocks KV-MAMBA-4; KV-MAMBA-7 and KV-MAMBA-8 against KV-MAMBA-9).
- A request never holds more blocks than admission counts for it (KV-SW-7, KV-CHUNK-5, KV-LIVE-2):
  with M tokens a step and L in all, c computed tokens and n <= M more, c + n <= L, it holds the
  blocks s(c) // B … cdiv(c + n, B) - 1.

Assumed is what the rules say of arguments; each statement's assumptions are shown to be possible,
and a mistake in it is refuted.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass

import z3

from proofs._z3 import Ledger, Term, cdiv, larger, smaller


@dataclass(frozen=True)
class Statement:
    """A claim under assumptions, and a claim close to it that does not hold."""

    name: str
    assumptions: tuple[Term, ...]
    claim: Term
    mistake: Term


def window_skips(window: Term, computed: Term) -> Term:
    """KV-SW-1."""
    return larger(computed - window + 1, 0)


def chunk_skips(chunk: Term, computed: Term) -> Term:
    """KV-CHUNK-1."""
    return computed / chunk * chunk


def state_skips(computed: Term) -> Term:
    """KV-MAMBA-1."""
    return larger(computed - 1, 0)


def skipped() -> Iterator[Statement]:
    """What is skipped is what nobody will read."""
    window, chunk, block, extra = z3.Ints("window chunk block_size num_speculative_blocks")
    computed, reader, token, entry = z3.Ints("computed reader token entry")
    sizes = (window >= 1, chunk >= 1, block >= 1, extra >= 0)
    tokens = (computed >= 0, reader >= computed, token >= 0)

    def in_window(reader: Term) -> Term:
        return z3.And(token > reader - window, token <= reader)

    def in_chunk(reader: Term) -> Term:
        return z3.And(token / chunk == reader / chunk, token <= reader)

    skips = window_skips(window, computed)
    yield Statement(
        "no token to come reads what its window skips",
        (*sizes, *tokens),
        z3.Implies(token < skips, z3.Not(in_window(reader))),
        z3.Implies(token <= skips, z3.Not(in_window(reader))),
    )
    yield Statement(
        "the next token reads all that its window does not skip",
        (*sizes, *tokens, token <= computed),
        z3.Implies(token >= skips, in_window(computed)),
        z3.Implies(token >= skips - 1, in_window(computed)),
    )
    skips = chunk_skips(chunk, computed)
    yield Statement(
        "no token to come reads what its chunk skips",
        (*sizes, *tokens),
        z3.Implies(token < skips, z3.Not(in_chunk(reader))),
        z3.Implies(token <= skips, z3.Not(in_chunk(reader))),
    )
    yield Statement(
        "the next token reads all that its chunk does not skip",
        (*sizes, *tokens, token <= computed),
        z3.Implies(token >= skips, in_chunk(computed)),
        z3.Implies(token >= skips - chunk, in_chunk(computed)),
    )
    running = (computed - 1) / block
    yield Statement(
        "all states before the running one are skipped, and it is not",
        (*sizes, computed >= 1),
        state_skips(computed) / block == running,
        computed / block == running,
    )
    accepted = z3.Int("accepted")
    removed = state_skips(larger(computed - extra, 0)) / block
    yield Statement(
        "no state is removed to which rejected drafts may lead back",
        (*sizes, accepted >= 1, accepted <= computed, accepted >= computed - extra),
        removed <= (accepted - 1) / block,
        state_skips(computed) / block <= (accepted - 1) / block,
    )
    yield Statement(
        "entries before s // B are those wholly before s",
        (*sizes, computed >= 0, entry >= 0),
        (entry < computed / block) == ((entry + 1) * block <= computed),
        (entry < cdiv(computed, block)) == ((entry + 1) * block <= computed),
    )


def found() -> Iterator[Statement]:
    """What a hit leaves out is what is skipped behind it, so its nulls are never read."""
    block, window, drop, ends = z3.Ints("block_size window drop hit_blocks")
    token, limit, run, chunk = z3.Ints("token limit run chunk_blocks")
    sizes = (block >= 1, window >= 1, chunk >= 1, drop >= 0, drop <= 1, ends >= 1)
    needs = larger(cdiv(window - 1, block) + drop, 1)
    left = ends + drop - needs
    yield Statement(
        "the run of a hit has all that the window of the next token reads",
        (*sizes, token >= 0, token < ends * block, token > ends * block - window),
        token / block >= left,
        token / block > left,
    )
    yield Statement(
        "what is null before a run is skipped",
        (*sizes, left >= 0),
        left <= window_skips(window, ends * block) / block,
        left + 1 <= window_skips(window, ends * block) / block,
    )
    start = chunk_skips(chunk * block, limit) / block
    hit = (start + run) * block
    yield Statement(
        "what is null in the hit of a chunk is skipped, and no more is",
        (*sizes, limit >= 0, run >= 0, hit <= limit),
        start == chunk_skips(chunk * block, hit) / block,
        start == chunk_skips(chunk * block, hit + block) / block,
    )


def needed() -> Iterator[Statement]:
    """What is needed is what is taken."""
    block, extra, hits, skips = z3.Ints("block_size num_speculative_blocks hits skips")
    local, external, slots = z3.Ints("local external slots")
    known = (block >= 1, extra >= 0, hits >= 0, skips >= 0, slots >= 1, local >= 0, external >= 0)
    nulls, total = skips / block, local + external
    loads = z3.And(external > 0, total > skips)
    demanded = z3.If(loads, larger(slots, total), slots)

    def taken(slots: Term, wanted: Term, length: Term) -> Term:
        """KV-GRP-6, then KV-GRP-7."""
        loaded = z3.If(loads, larger(cdiv(wanted, block) - length, 0), 0)
        return loaded + larger(cdiv(slots, block) - length - loaded, 0)

    start = z3.If(hits < nulls, nulls, nulls + (hits - nulls))  # KV-GRP-5
    need = larger(cdiv(demanded, block) - larger(nulls, hits), 0)
    yield Statement(
        "a first allocation takes the need of KV-GRP-4",
        known,
        taken(slots, total, start) == need,
        taken(slots, total, start) == larger(cdiv(slots, block) - larger(nulls, hits), 0),
    )
    more = extra * block
    most = larger(cdiv(demanded + more, block) - larger(nulls, hits), 0)
    yield Statement(
        "so does one with S blocks more",
        (*known, slots >= total),
        taken(slots + more, total, start) == most,
        taken(slots + more, total + more, start) == need,
    )
    held = z3.Int("held")
    yield Statement(
        "a request without an entry takes new blocks only",
        (*known, held * block >= skips),
        larger(cdiv(slots, block) - held, 0) == larger(cdiv(slots, block) - larger(nulls, held), 0),
        larger(cdiv(slots, block) - held, 0) == larger(cdiv(slots, block) - nulls, 0),
    )


def aligned(entries: Term, held: Term, extra: Term, has_taken: Term) -> Term:
    """Blocks that KV-MAMBA-9 takes for a list that must have so many entries."""
    padded = larger(held, entries - extra - 1)
    first = held - extra
    moved = z3.If(has_taken, smaller(larger(entries - extra - 1 - first, 0), extra), 0)
    return z3.If(entries <= held, 0, entries - padded - moved)


def needed_by_states() -> Iterator[Statement]:
    """The same of mode align."""
    block, extra, main, held = z3.Ints("block_size num_speculative_blocks main held")
    known = (block >= 1, extra >= 0, main >= 1, held >= 0)
    entries = cdiv(main, block) + extra
    yield Statement(
        "a request that has taken blocks takes one, or none",
        (*known, held >= extra + 1),
        aligned(entries, held, extra, z3.BoolVal(True)) == z3.If(held >= entries, 0, 1),
        aligned(entries, held, extra, z3.BoolVal(False)) == z3.If(held >= entries, 0, 1),
    )
    first = aligned(entries, held, extra, z3.BoolVal(False))
    yield Statement(
        "another one takes at most 1 + S, and so many if it holds nothing",
        known,
        z3.And(
            first <= z3.If(held >= entries, 0, 1 + extra), z3.Implies(held == 0, first == 1 + extra)
        ),
        first == z3.If(held >= entries, 0, 1 + extra),
    )
    hits, skips, total = z3.Ints("hits skips total")
    start = skips / block + larger(hits - skips / block, 0)
    loaded = larger(0, cdiv(total, block) - start)
    new = z3.If(entries > start + loaded, entries - larger(start + loaded, entries - extra - 1), 0)
    taken = aligned(entries, start + loaded, extra, z3.BoolVal(False))
    yield Statement(
        "with external tokens the need of KV-MAMBA-8 is taken",
        (*known, hits >= 0, skips >= 0, total >= 1),
        taken == new,
        taken == entries - start - loaded,
    )


def held_blocks() -> Iterator[Statement]:
    """Admission counts at least what is ever held."""
    block, window, chunk = z3.Ints("block_size window chunk_blocks")
    computed, new, most, longest = z3.Ints("computed new most longest")
    step = (computed >= 0, new >= 1, new <= most, computed + new <= longest)
    known = (block >= 1, window >= 1, chunk >= 1, *step)
    end = cdiv(computed + new, block)
    held = end - window_skips(window, computed) / block
    cap = cdiv(smaller(window - 1 + most, longest), block)
    yield Statement("a window holds at most its cap", known, held <= cap + 1, held <= cap)
    tokens = chunk * block
    held = end - chunk_skips(tokens, computed) / block
    cap = cdiv(smaller(tokens + most, longest), block)
    yield Statement("a chunk holds at most its cap", known, held <= cap, held <= cap - 1)


def main() -> int:
    """Ask everything; 0 if each answer is the expected one."""
    ledger = Ledger("windows")
    for statements in (skipped(), found(), needed(), needed_by_states(), held_blocks()):
        for each in statements:
            ledger.possible(f"{each.name}: is possible", *each.assumptions)
            ledger.prove(each.name, each.assumptions, each.claim)
            ledger.refute(f"mistake: {each.name}", each.assumptions, each.mistake)
    return ledger.finish()


if __name__ == "__main__":
    sys.exit(main())
