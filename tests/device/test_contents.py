"""Keys, values and states through all that happens to blocks: what is read is what was computed.

Each token's numbers are a function of all tokens up to it, so a hit on anything else shows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest

import kvfast
import kvref
from kvfast.device import Backend
from kvspec.interface import Implementation
from tests.device.contents import ARRANGED, CASES, Case
from tests.device.contents_player import Player
from tests.device.models import DEVICE

pytestmark = pytest.mark.usefixtures("one_thread")

NUM_RUNS = 2 * len(CASES)
NUM_DEEP_RUNS = {"torch": 4000, "triton": 40}
INTERPRETED = (1, 5)
"""Runs of kernels: full attention beside a window, and scales per token."""


def player_of(seed: int, backend: Backend, cases: Sequence[Case] = CASES) -> Player:
    turn, number = divmod(seed, len(cases))
    return Player(cases[number], implementation_of(turn), seed, backend)


def implementation_of(turn: int) -> Implementation:
    made: Implementation = (kvfast if turn % 2 == 0 else kvref).implementation()
    return made


def played(
    seeds: Iterable[int], backend: Backend, num_rounds: int = 22, cases: Sequence[Case] = CASES
) -> Counter[str]:
    """Count what happens in these runs; with interpreted kernels, which are slow, less does."""
    total: Counter[str] = Counter()
    for seed in seeds:
        player = player_of(seed, backend, cases)
        if backend == "triton" and player.pools.device.type == "cpu":
            player.max_alive = 2
        player.play(num_rounds)
        total += player.counts
        if player.host is not None:
            total["blocks to the host tier"] += player.host.num_copies_out
    return total


@pytest.mark.rule("KV-DEV-3", "KV-DEV-5", "KV-DEV-6", "KV-DEV-8", "KV-DEV-9", "KV-DEV-11")
@pytest.mark.rule("KV-TIER-1", "KV-TIER-2", "KV-TIER-5", "KV-TIER-6")
def test_all_that_is_read_is_what_was_computed() -> None:
    counts = played(range(NUM_RUNS), "torch")
    for what in (
        "hit tokens",
        "preempted",
        "refused",
        "popped",
        "drafts rejected",
        "forks",
        "blocks copied",
        "blocks swapped in",
        "states carried",
        "parts named",
        "parts taken over",
        "loads",
        "blocks to the host tier",
    ):
        assert counts[what] > 3, what
    assert counts["tokens read"] > 10_000


@pytest.mark.rule("KV-DEV-3", "KV-DEV-5", "KV-DEV-6", "KV-DEV-8", "KV-DEV-9", "KV-DEV-11")
@pytest.mark.rule("KV-PLAN-14", "KV-FULL-5", "KV-MAMBA-2", "KV-MAMBA-3", "KV-MAMBA-4", "KV-MAMBA-5")
def test_packed_pages_states_after_every_block_and_ranks_are_read_as_they_were_computed() -> None:
    counts = played(range(2 * len(ARRANGED)), "torch", cases=ARRANGED)
    for what in ("hit tokens", "forks", "blocks swapped in", "states carried", "states of drafts"):
        assert counts[what] > 3, what
    assert counts["tokens read"] > 3_000


@pytest.mark.rule("KV-DEV-3", "KV-DEV-5", "KV-DEV-6", "KV-DEV-8", "KV-DEV-9", "KV-DEV-11")
def test_all_that_kernels_read_is_what_was_computed() -> None:
    pytest.importorskip("triton", reason="Triton is not installed")
    on_gpu = DEVICE.startswith("cuda")
    counts = played(range(NUM_RUNS), "triton") if on_gpu else played(INTERPRETED, "triton", 3)
    if on_gpu:
        counts += played(range(len(ARRANGED)), "triton", cases=ARRANGED)
    assert counts["tokens read"] > (10_000 if on_gpu else 20)


@pytest.mark.deep
def test_all_that_is_read_is_right_in_many_runs(backend: Backend) -> None:
    first = 1000
    num_rounds = 30 if backend == "torch" else 8
    played(range(first, first + NUM_DEEP_RUNS[backend]), backend, num_rounds)
    played(range(first, first + NUM_DEEP_RUNS[backend] // 4), backend, num_rounds, ARRANGED)


@pytest.mark.parametrize("case", [*CASES, *ARRANGED], ids=lambda case: str(case.name))
def test_every_case_is_read_in_both_layouts(case: Case) -> None:
    other = replace(case, layout="HND" if case.layout == "NHD" else "NHD")
    player = Player(other, kvfast.implementation(), 7, "torch")
    player.play(10)
    assert player.counts["tokens read"] > 20
