"""Mistakes that only packed pools, states after every block or several ranks show."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

import kvfast
from kvfast.device.pages import pools
from kvfast.device.tables import geometry as _tables_geometry
from kvref.groups.base import Demand
from kvref.groups.mamba import MambaGroup
from kvref.implementation import ReferenceImplementation
from kvspec.specs import MambaSpec
from tests.device import contents_states
from tests.device.contents_cases import ARRANGED, Case
from tests.device.contents_player import Player
from tests.device.models import DEVICE
from tests.device.test_contents_twins import is_found, put

pytestmark = [
    pytest.mark.skipif(DEVICE != "cpu", reason="these tests are of the tests"),
    pytest.mark.usefixtures("one_thread"),
]

NUM_RUNS = 24
AllMistakes = Callable[[pytest.MonkeyPatch], None]


def players(is_meant: Callable[[Case], bool], implementation: Any = None) -> Iterator[Player]:
    """Runs of the cases that are meant, with kvfast unless told otherwise."""
    cases = [case for case in ARRANGED if is_meant(case)]
    made = kvfast.implementation() if implementation is None else implementation
    return (Player(cases[seed % len(cases)], made, seed, "torch") for seed in range(NUM_RUNS))


def drafts_states(case: Case) -> bool:
    return case.has(MambaSpec) and case.can_draft


def keeps_all_states(case: Case) -> bool:
    return any(
        isinstance(spec, MambaSpec) and spec.mamba_cache_mode == "all" for spec in case.specs
    )


def offsets_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    pitch = pools._pitch
    monkeypatch.setattr(pools, "_pitch", lambda num, tensor: (0, pitch(num, tensor)[1]))


def pages_lie_without_the_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    view = pools._view

    def broken(raw: Any, place: Any, part: Any) -> Any:
        return view(raw, replace(place, stride_bytes=place.stride_bytes // 16 * 16), part)

    monkeypatch.setattr(pools, "_view", broken)


@pytest.mark.parametrize("mistake", [offsets_are_ignored, pages_lie_without_the_gap])
def test_pages_that_lie_elsewhere_in_a_packed_block_are_read(
    mistake: AllMistakes, monkeypatch: pytest.MonkeyPatch
) -> None:
    mistake(monkeypatch)
    assert is_found(players(lambda case: case.packed), lambda player: None)


def blocks_cover_what_one_rank_has(monkeypatch: pytest.MonkeyPatch) -> None:
    table = _tables_geometry._group_table

    def broken(config: Any, spec: Any, width: Any, field: str) -> Any:
        return replace(table(config, spec, width, field), span_tokens=spec.block_size)

    monkeypatch.setattr(_tables_geometry, "_group_table", broken)


def test_slots_of_one_rank_alone_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks_cover_what_one_rank_has(monkeypatch)
    assert is_found(players(lambda case: case.world_size > 1), lambda player: None)


def test_states_that_a_step_passed_and_nobody_kept_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    states_of = contents_states.states_of

    def broken(spec: MambaSpec, start: int, main: int, end: int) -> list[tuple[int, int]]:
        return [
            (index, tokens)
            for index, tokens in states_of(spec, start, main, end)
            if index >= contents_states.entry(spec, main)
        ]

    monkeypatch.setattr(contents_states, "states_of", broken)
    assert is_found(players(keeps_all_states), lambda player: None)


def test_states_of_accepted_drafts_that_stay_where_they_are_are_read() -> None:
    assert is_found(players(drafts_states), lambda player: put(player, settle=lambda *_: None))


class StartsFromStatesOfThisStep(MambaGroup):
    """Not KV-MAMBA-2."""

    def is_hit_too_new(self, hits: Sequence[int]) -> bool:
        return False


class HasNoBlocksForDrafts(MambaGroup):
    """Not KV-MAMBA-4."""

    def with_speculative_blocks(self, demand: Demand) -> Demand:
        return demand


class RemovesWhatDraftsPassed(MambaGroup):
    """Not KV-MAMBA-5."""

    def remove_skipped_blocks(self, request_id: str, num_computed_tokens: int) -> None:
        ahead = num_computed_tokens + self.num_speculative_blocks
        super().remove_skipped_blocks(request_id, ahead)


@pytest.mark.parametrize(
    ("mistake", "is_meant"),
    [
        (StartsFromStatesOfThisStep, keeps_all_states),
        (HasNoBlocksForDrafts, drafts_states),
        (RemovesWhatDraftsPassed, drafts_states),
    ],
)
def test_what_a_manager_does_wrong_with_states_is_read(
    mistake: type[MambaGroup], is_meant: Callable[[Case], bool]
) -> None:
    broken = ReferenceImplementation(group_classes=[(MambaGroup, mistake)])
    assert is_found(players(is_meant, broken), lambda player: None)
