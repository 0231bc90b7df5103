"""What proofs/models/lists.py says of lists holds of kvref's states, and not of bad ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import z3

from kvspec.invariants import group_of_key
from proofs.models._lists.state import INVARIANTS, Lists
from tests.invariants.cases import (
    CASES,
    State,
    sinks,
    story,
    two_copies,
    two_groups,
    two_sizes,
    window,
)
from tests.proofs.tabled import tabled

Term = Any


def seen(state: State) -> Lists:
    """A state of a manager as the proof has it: one list per request and group."""
    snapshot, specs = state.snapshot, state.config.managed_specs
    names = [(name, group) for name in sorted(snapshot.requests) for group in range(len(specs))]
    lists = [snapshot.requests[name].block_ids[group] for name, group in names]
    counts = [snapshot.requests[name].num_cached_blocks[group] or 0 for name, group in names]
    requests = sorted(snapshot.requests)
    groups = [group_of_key(keys[0]) if keys else 0 for keys in snapshot.block_keys]
    spans = [specs[group].block_size for group in groups]
    covered = list(zip(snapshot.covered_tokens, spans, strict=True))
    return Lists(
        is_few=True,
        num_lists=z3.IntVal(len(lists)),
        num_blocks=z3.IntVal(snapshot.num_blocks),
        request=tabled([requests.index(name) for name, _ in names]),
        group=tabled([group for _, group in names]),
        skips=held([type(specs[group]).__name__ == "SlidingWindowSpec" for _, group in names]),
        aside=held([block in snapshot.reserved_blocks for block in range(snapshot.num_blocks)]),
        length=tabled([len(blocks) for blocks in lists]),
        nulls=tabled([blocks.count(0) for blocks in lists]),
        count=tabled(counts),
        at=of_two(lists),
        pos=of_two(
            [
                [blocks.index(b) if b in blocks else 0 for b in range(snapshot.num_blocks)]
                for blocks in lists
            ]
        ),
        keyed=held([bool(keys) for keys in snapshot.block_keys]),
        full=held([tokens > 0 and tokens % span == 0 for tokens, span in covered]),
        key_group=tabled(groups),
        key_index=tabled([(tokens - 1) // span if tokens else 0 for tokens, span in covered]),
    )


def held(values: Sequence[bool]) -> Callable[[Term], Term]:
    """A list of truths as a function of an index."""
    return lambda index: z3.Or(*(index == i for i, value in enumerate(values) if value))


def of_two(rows: Sequence[Sequence[int]]) -> Callable[[Term, Term], Term]:
    """Rows of numbers as a function of a row and an index."""
    tables = [tabled(row) for row in rows]

    def look_up(row: Term, index: Term) -> Term:
        term: Term = z3.IntVal(0)
        for number, table in enumerate(tables):
            term = z3.If(row == number, table(index), term)
        return term

    return look_up


def broken(state: State, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The sentences that do not hold of a state, written out for as many entries as it has."""
    monkeypatch.setattr("proofs.models._lists.state.FEW_LISTS", 2)
    monkeypatch.setattr("proofs.models._lists.state.FEW_BLOCKS", 9)
    monkeypatch.setattr("proofs.models._lists.state.FEW_ENTRIES", 5)
    lists = seen(state)
    return {name for name, holds in INVARIANTS.items() if not z3.is_true(z3.simplify(holds(lists)))}


@pytest.mark.rule("KV-GRP-1", "KV-GRP-2", "KV-POOL-17", "KV-POOL-18", "KV-FULL-8")
@pytest.mark.parametrize("good", [story, two_groups, two_copies, two_sizes, window, sinks])
def test_every_sentence_holds_of_states_of_the_reference(
    good: Callable[[], State], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of shared blocks, copies, partial entries, windows and blocks set aside."""
    assert not broken(good(), monkeypatch)


@pytest.mark.parametrize(
    ("case", "sentence"),
    [
        ("nulls_come_first-behind_a_block", "nulls_come_first"),
        ("nulls_come_first-in_full_attention", "nothing_skipped_for_nothing"),
        ("a_block_has_one_place-at_two_indices", "one_place"),
        ("a_block_has_one_place-twice_in_a_list", "once_in_a_list"),
        ("keys_of_one_place-listed_elsewhere", "keys_of_place"),
        ("cached_counts_fit_the_lists-more_than_the_list", "counts_fit"),
        ("blocks_set_aside_are_alone-listed", "aside_is_apart"),
        ("null_block_is_apart-cached", "null_has_no_key"),
    ],
)
def test_a_bad_state_breaks_the_sentence_that_is_about_it(
    case: str, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The states that only one invariant of kvspec rejects."""
    (found,) = (each for each in CASES if str(each) == case)
    assert sentence in broken(found.spoil(found.good()), monkeypatch)
