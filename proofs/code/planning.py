"""A plan that passes the check of memory serves one request of max_model_len, for all integers.

`max_blocks` and `held_blocks` (KV-PLAN-8, KV-PLAN-9), `groups_bytes` and `num_blocks_for`
(KV-PLAN-9, KV-PLAN-12) of `kvref.planning` are run unchanged on unknown numbers, along every path.
Statements:

- The most blocks that a request holds at once, by the table of KV-LIVE-3, are at most those that
  the check counts, for each type and every length up to max_model_len.
- Memory that passes the check has blocks for null, for those set aside and for one request, on
  each worker, and after all were cut to the fewest (KV-PLAN-15).
- The count never falls when the length grows, and halving then finds the longest length that
  fits (KV-PLAN-10).
- Tensors that shrink keep one page a block (KV-PLAN-15); longer blocks reach the largest page if
  theirs divides it, and no padding makes a page smaller (KV-PLAN-1, KV-PLAN-4); no group
  gets more layers than the group size (KV-PLAN-6).

Each statement's assumptions are shown to be possible, and a mistake in it is refuted.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import fields
from types import FunctionType, SimpleNamespace
from typing import Any, cast

import z3

from kvref.planning import layout, memory
from kvspec.specs import (
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    EncoderOnlyAttentionSpec,
    FullAttentionSpec,
    LayerSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from proofs._z3 import Ledger, Range, Statement, Term, cdiv, forall, function, larger, smaller
from proofs.code._paths import Way, merged

LONGEST, STEP, ENCODER, RANKS = "max_model_len", "most", "encoder", "ranks"
TYPES: dict[str, type[LayerSpec]] = {
    "full": FullAttentionSpec,
    "window": SlidingWindowSpec,
    "chunk": ChunkedLocalAttentionSpec,
    "none": MambaSpec,
    "align": MambaSpec,
    "all": MambaSpec,
    "cross": CrossAttentionSpec,
    "encoder only": EncoderOnlyAttentionSpec,
}
"""Types of layers; of Mamba by the cache mode."""


def counted(name: str, longest: Term) -> Term:
    """Return `held_blocks` for a layer of this type and a length."""

    def run(way: Way) -> object:
        for number in ("window", "chunk"):  # of `sizes`: where there is one, it is not 0
            way.assume(z3.Int(number) != 0)
        spec: Any = object.__new__(TYPES[name])
        members = {
            "block_size": "block_size",
            "sliding_window": "window",
            "attention_chunk_size": "chunk",
            "num_speculative_blocks": "drafted",
        }
        for member in members.keys() & {field.name for field in fields(spec)}:
            object.__setattr__(spec, member, way.number(z3.Int(members[member])))
        config = SimpleNamespace(
            max_model_len_tokens=way.number(longest),
            max_num_batched_tokens=way.number(z3.Int(STEP)),
            max_encoder_tokens=way.number(z3.Int(ENCODER)),
            mamba_cache_mode=name,
            dcp_world_size=way.number(z3.Int(RANKS)),
            pcp_world_size=1,
        )
        return memory.held_blocks(spec, cast(Any, config))

    return merged(run)


def peak(name: str, length: Term) -> Term:
    """Return the most blocks that a request of this length holds at once (KV-LIVE-3)."""
    block, window, chunk = z3.Ints("block_size window chunk")
    step, longest, drafted = z3.Int(STEP), z3.Int(LONGEST), z3.Int("drafted")
    whole = cdiv(length, block)
    in_window = cdiv(smaller(window - 1 + step, longest), block) + 1
    table: dict[str, Term] = {
        "full": cdiv(length, block * z3.Int(RANKS)),
        "window": smaller(whole, in_window),
        "chunk": smaller(whole, cdiv(smaller(chunk + step, longest), block)),
        "none": whole + drafted,
        "align": 2 + drafted,
        "all": whole + drafted,
        "cross": cdiv(z3.Int("encoder tokens"), block),
        "encoder only": z3.IntVal(0),
    }
    return table[name]


def sizes() -> tuple[Term, ...]:
    """Return the assumptions on sizes of layers and configurations."""
    block, window, chunk, length = z3.Ints("block_size window chunk length")
    tokens, longest = z3.Int("encoder tokens"), z3.Int(LONGEST)
    return (
        z3.And(block >= 1, window >= 1, chunk >= 1, z3.Int("drafted") >= 0),
        z3.And(z3.Int(STEP) >= 1, z3.Int(RANKS) == 1, length >= 1, length <= longest),
        z3.And(tokens >= 0, tokens <= z3.Int(ENCODER)),
    )


def served() -> Iterator[Statement]:
    """Yield the claims that the count is enough and never falls with length."""
    length, longest, longer = z3.Int("length"), z3.Int(LONGEST), z3.Int("longer")
    for name in TYPES:
        most = counted(name, longest)
        yield Statement(
            f"{name}: what is held is counted",
            sizes(),
            peak(name, length) <= most,
            peak(name, length) <= most - 1,
        )
        yield Statement(
            f"{name}: a longer request counts no less",
            (*sizes(), longer >= longest),
            most <= counted(name, longer),
            most + 1 <= counted(name, longer),
        )
    block, ranks, rows = z3.Int("block_size"), z3.Int(RANKS), z3.Int("rows")
    known = (block >= 1, ranks >= 1, rows >= 0, length >= 1)
    yield Statement(
        "what fits a rank fits all: first step",
        (*known, rows == cdiv(length, ranks)),
        length <= rows * ranks,
        length <= (rows - 1) * ranks,
    )
    yield Statement(
        "what fits a rank fits all: second step",
        (*known, length <= rows * (block * ranks)),
        cdiv(length, block * ranks) <= rows,
        cdiv(length, block * ranks) <= rows - 1,
    )


def renamed(method: Callable[..., Any], **names: object) -> Callable[..., Any]:
    """Return the function with these names of its module replaced."""
    code = cast(FunctionType, method)
    return FunctionType(code.__code__, {**code.__globals__, **names}, code.__name__)


def passes() -> Iterator[Statement]:
    """Yield the claims on memory that passes the check, for three groups."""
    page, given, other_page, other_given = z3.Ints("page given other_page other_given")
    held, aside = z3.Ints("held0 held1 held2"), z3.Ints("aside0 aside1 aside2")

    def needed(page: Term) -> Term:
        def run(way: Way) -> object:
            numbers = {group: way.number(held[group]) for group in range(3)}
            set_aside = {group: way.number(aside[group]) for group in range(3)}
            groups = [SimpleNamespace(spec=group) for group in range(3)]
            policy = SimpleNamespace(capacity_counts_null_block=True)
            read = renamed(
                memory.groups_bytes,
                held_blocks=lambda spec, config: numbers[spec],
                set_aside_blocks=lambda spec: set_aside[spec],
                bytes_per_block=lambda groups: way.number(page),
            )
            return read(groups, groups, SimpleNamespace(policy=policy))

        return merged(run)

    def made(page: Term, given: Term) -> Term:
        def run(way: Way) -> object:
            read = renamed(layout.num_blocks_for, bytes_per_block=lambda groups: way.number(page))
            return read((), SimpleNamespace(num_blocks_override=None), way.number(given))

        return merged(run)

    known = z3.And(page >= 1, other_page >= 1, *(each >= 0 for each in (*held, *aside)))
    fits = z3.And(needed(page) <= given, needed(other_page) <= other_given)
    usable = smaller(made(page, given), made(other_page, other_given)) - 1 - z3.Sum(aside)
    need = z3.Sum(held)
    yield Statement(
        "what passes the check has room for one request",
        (known, fits),
        usable >= need,
        usable - 1 >= need,
    )


def halving() -> Iterator[Statement]:
    """Claim for `longest_that_fits` that `low` fits, or is 0, and `high` is too long."""
    need = function("need")
    low, high, n, longest, given = z3.Ints("low high n longest given")
    lengths = Range(0, None)
    rises = forall([lengths, lengths], lambda a, b: z3.Implies(a <= b, need(a) <= need(b)))

    def between(low: Term, high: Term) -> Term:
        fits = z3.Or(low == 0, need(low) <= given)
        too_long = z3.Or(high == longest + 1, need(high) > given)
        return z3.And(low >= 0, low < high, high <= longest + 1, fits, too_long)

    middle = (low + high) / 2
    round_ = z3.If(need(middle) <= given, between(middle, high), between(low, middle))
    yield Statement(
        "a round of halving keeps what it knows, and comes nearer",
        (between(low, high), high - low > 1),
        z3.And(round_, middle > low, middle < high),
        z3.And(round_, middle > low + 1),
    )
    last = (between(low, high), high - low == 1, n >= 0, n <= longest)
    yield Statement(
        "in the end nothing longer fits",
        (*last, rises),
        z3.Implies(need(n) <= given, n <= low),
        z3.Implies(need(n) <= given, n < low),
    )


def laid_out() -> Iterator[Statement]:
    """Yield the claims on pages, tensors and groups."""
    page, blocks, fewer = z3.Ints("page blocks fewer")
    yield Statement(
        "a tensor that shrinks keeps one page a block",
        (page >= 1, blocks >= 1, fewer >= 0),
        page * blocks / blocks * fewer == page * fewer,
        page * blocks * fewer / blocks == page * blocks,
    )
    token, block, ratio = z3.Ints("token block ratio")
    yield Statement(
        "longer blocks reach the largest page",
        (token >= 1, block >= 1, ratio >= 1, page == block * token),
        block * ratio * token == page * ratio,
        block * (ratio + 1) * token == page * ratio,
    )
    used, alignment = z3.Ints("used alignment")
    padded = cdiv(used, alignment) * alignment
    yield Statement(
        "padding makes no page smaller, and adds less than an alignment",
        (used >= 1, alignment >= 1),
        z3.And(padded >= used, padded < used + alignment, padded % alignment == 0),
        padded > used,
    )
    layers, size, group, groups = z3.Ints("layers size group groups")
    dealt = (layers >= 1, size >= 1, groups == cdiv(layers, size), group >= 0, group < groups)
    yield Statement(
        "no group is dealt more layers than its size: first step",
        dealt,
        layers <= groups * size,
        layers <= (groups - 1) * size,
    )
    yield Statement(
        "no group is dealt more layers than its size: second step",
        (*dealt, layers <= groups * size),
        cdiv(larger(layers - group, 0), groups) <= size,
        cdiv(larger(layers - group, 0), groups) <= size - 1,
    )


def main() -> int:
    """Prove everything; return 0 if each answer is the expected one."""
    ledger = Ledger("planning")
    for statements in (served(), passes(), halving(), laid_out()):
        ledger.prove_and_refute(statements)
    return ledger.finish()


if __name__ == "__main__":
    sys.exit(main())
