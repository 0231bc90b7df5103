"""A plan that passes the check of memory serves one request of max_model_len, for all integers.

`max_blocks` and `held_blocks` (KV-PLAN-8, KV-PLAN-9), `groups_bytes` and `num_blocks_for`
(KV-PLAN-9, KV-PLAN-12) of `kvref.planning` are run unchanged on unknown numbers, along every path.
Statements:

- They are the formulas of the rules, with and without the null block in the count.
- The most blocks that a request holds at once, by the table of KV-LIVE-3, are at most those that
  the check counts, for each type and every length up to max_model_len.
- Memory that passes the check has blocks for null, for those set aside and for one request, on
  each worker, and after all were cut to the fewest (KV-PLAN-15).
- Halving finds the longest length that fits (KV-PLAN-10): `longest_that_fits` is run for every
  one up to 32.

Each statement's assumptions are shown to be possible, and a mistake in it is refuted.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from types import FunctionType, SimpleNamespace
from typing import Any, cast

import z3

from kvref.planning import layout, memory, pages
from kvspec.specs import (
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    EncoderOnlyAttentionSpec,
    FullAttentionSpec,
    LayerSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from proofs._z3 import Ledger, Statement, Term, cdiv, larger, smaller
from proofs.code._paths import Way, merged, picking_in_one_way

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


def counted(name: str, longest: Term, code: Any = memory.held_blocks) -> Term:
    """Return `held_blocks` for a layer of this type and a length, or `max_blocks`."""

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
        return code(spec, cast(Any, config))

    with picking_in_one_way(pages):
        return merged(run)


def bound(name: str) -> Term:
    """Return the most blocks by KV-PLAN-8, and by KV-PLAN-9 for mode none."""
    block, longest, drafted = z3.Int("block_size"), z3.Int(LONGEST), z3.Int("drafted")
    step, whole = z3.Int(STEP), cdiv(longest, block)
    table: dict[str, Term] = {
        "full": cdiv(cdiv(longest, z3.Int(RANKS)), block),
        "window": cdiv(smaller(z3.Int("window") - 1 + step, longest), block) + 1,
        "chunk": cdiv(smaller(z3.Int("chunk") + step, longest), block),
        "none": whole + drafted,
        "align": 2 + drafted,
        "all": whole + drafted,
        "cross": cdiv(z3.Int(ENCODER), block),
        "encoder only": z3.IntVal(0),
    }
    return table[name]


def peak(name: str, length: Term) -> Term:
    """Return the most blocks that a request of this length holds at once (KV-LIVE-3)."""
    block, window, chunk = z3.Ints("block_size window chunk")
    step, longest, drafted = z3.Int(STEP), z3.Int(LONGEST), z3.Int("drafted")
    whole = cdiv(length, block)
    in_window = cdiv(smaller(window - 1 + step, longest), block) + 1
    table: dict[str, Term] = {
        "full": whole,
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
    """Yield the claims that the count is that of the rules, and is enough."""
    length, longest = z3.Int("length"), z3.Int(LONGEST)
    one_state = counted("none", longest, pages.max_blocks)
    yield Statement("one state", sizes(), one_state == 1 + z3.Int("drafted"), one_state == 1)
    for name in TYPES:
        most = counted(name, longest)
        any_ranks = z3.substitute(z3.IntVal(0) + most, (z3.Int(RANKS), z3.Int("several")))
        ruled = z3.substitute(bound(name), (z3.Int(RANKS), z3.Int("several")))
        yield Statement(
            f"{name}: as the rules count",
            (*sizes(), z3.Int("several") >= 1),
            any_ranks == ruled,
            any_ranks == ruled + 1,
        )
        yield Statement(
            f"{name}: what is held is counted",
            sizes(),
            peak(name, length) <= most,
            peak(name, length) <= most - 1,
        )


def renamed(method: Callable[..., Any], **names: object) -> Callable[..., Any]:
    """Return the function with these names of its module replaced."""
    code = cast(FunctionType, method)
    return FunctionType(code.__code__, {**code.__globals__, **names}, code.__name__)


HELD, ASIDE = z3.Ints("held0 held1 held2"), z3.Ints("aside0 aside1 aside2")
"""Blocks of three groups: that one request holds, and that are set aside."""


def needed(page: Term, *, counts_null: bool = True, side_by_side: bool = False) -> Term:
    """Return `groups_bytes` for pages of this size; a profile has another size."""

    def run(way: Way) -> object:
        layers = (("layer", None),) if side_by_side else ()
        num = 2 if side_by_side else 3
        groups = [SimpleNamespace(spec=Counted(group, layers)) for group in range(num)]
        policy = SimpleNamespace(capacity_counts_null_block=counts_null)
        read = renamed(
            memory.groups_bytes,
            held_blocks=lambda spec, config: way.number(HELD[spec.group]),
            max_blocks=lambda spec, config: way.number(HELD[spec.group]),
            set_aside_blocks=lambda spec: way.number(ASIDE[spec.group]),
            bytes_per_block=lambda groups: way.number(page),
            profile_bytes_per_block=lambda groups: way.number(page + 1),
        )
        return read(groups, groups, SimpleNamespace(policy=policy))

    return merged(run)


@dataclass(frozen=True)
class Counted:
    """A spec of which only its group and layers are asked for."""

    group: int
    layers: tuple[tuple[str, None], ...]


def made(page: Term, given: Term, override: Term | None = None) -> Term:
    """Return `num_blocks_for`."""

    def run(way: Way) -> object:
        read = renamed(layout.num_blocks_for, bytes_per_block=lambda groups: way.number(page))
        asked = None if override is None else way.number(override)
        return read((), SimpleNamespace(num_blocks_override=asked), way.number(given))

    return merged(run)


def passes() -> Iterator[Statement]:
    """Yield the claims on the check of memory, and on memory that passes it."""
    page, given, other_page, other_given = z3.Ints("page given other_page other_given")
    need, blocks = z3.Sum(HELD), 1 + z3.Sum(ASIDE) + z3.Sum(HELD)
    known = z3.And(page >= 1, other_page >= 1, *(each >= 0 for each in (*HELD, *ASIDE)))
    alone, mixed = needed(page, counts_null=False), needed(
        page, counts_null=False, side_by_side=True
    )  # fmt: skip
    for name, found, wanted in (
        ("the need", needed(page), blocks * page),
        ("the need without the null block", alone, need * page),
        ("the need of latents side by side", mixed, z3.Sum(HELD[:2]) * (page + 1)),
        ("the number of blocks", made(page, given), larger(given, 0) / page),
        ("the number that was asked for", made(page, given, other_given), other_given),
    ):
        yield Statement(name, (known,), found == wanted, found == wanted + 1)
    fits = z3.And(needed(page) <= given, needed(other_page) <= other_given)
    usable = smaller(made(page, given), made(other_page, other_given)) - 1 - z3.Sum(ASIDE)
    yield Statement(
        "what passes the check has room for one request",
        (known, fits),
        usable >= need,
        usable - 1 >= need,
    )


@dataclass(frozen=True)
class Length:
    """A configuration, as far as halving reads it."""

    max_model_len_tokens: int


def halves_wrongly(configured: int, fitting: int) -> bool:
    """Check whether another length than the longest that fits is found, or none in 8 tries."""
    tries = iter(range(8))

    def need(config: Any) -> int:
        return int(config.max_model_len_tokens + 0 * next(tries))

    try:
        found = memory.longest_that_fits(need, cast(Any, Length(configured)), fitting)
    except StopIteration:
        return True
    return found != min(configured, fitting)


def any_wrong(halves_wrongly: Callable[[int, int], bool]) -> bool:
    """Try every length that fits for each configured one up to 32."""
    return any(halves_wrongly(n, fits) for n in range(1, 33) for fits in range(n + 2))


def check_halving(ledger: Ledger) -> None:
    """Check that the longest length that fits is found, and that one more is not."""
    ledger.agree("halving", not any_wrong(halves_wrongly))
    mistake = any_wrong(lambda configured, fits: halves_wrongly(configured + 1, fits + 1))
    ledger.agree("mistake: halving", not mistake)


def main() -> int:
    """Prove everything; return 0 if each answer is the expected one."""
    ledger = Ledger("planning")
    for statements in (served(), passes()):
        ledger.prove_and_refute(statements)
    check_halving(ledger)
    return ledger.finish()


if __name__ == "__main__":
    sys.exit(main())
