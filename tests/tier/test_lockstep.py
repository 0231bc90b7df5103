"""The host tier of kvfast is the reference's, call by call; and mistakes in it are found."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

import kvfast
import kvref
from kvfast._core.turn import Turn
from kvfast.tier import FastTier
from kvspec.blocks import KVCacheBlocks
from kvspec.request import Request
from kvspec.tier import Copies, Tier
from tests.tier.machine import GROUPS, DisagreementError, Player, config_of, tier_of

EVERY_OUTCOME = {
    f"{name} {outcome}"
    for name, outcomes in {
        "computed": ("answered", "refused something"),
        "taken": ("answered", "answered something", "refused something"),
        "lookup": ("answered", "answered something", "refused something"),
        "hold": ("answered", "refused something"),
        "load": ("answered something", "refused something"),
        "drop": ("answered",),
        "forget": ("answered", "refused something"),
        "reset": ("answered", "refused something"),
    }.items()
    for outcome in outcomes
}


def played(num_runs: int, broken: type[FastTier] | None = None) -> Counter[str]:
    counts: Counter[str] = Counter()
    for seed in range(num_runs):
        random = Random(seed)
        config = config_of(GROUPS[seed % len(GROUPS)])
        num_blocks = random.choice([1, 3, 5, 9])
        reference = tier_of(kvref.implementation(), config, num_blocks)
        other: Tier = tier_of(kvfast.implementation(), config, num_blocks)
        if broken is not None:
            resolved = kvref.implementation().create(config).config
            other = broken(resolved, num_blocks, Turn())
        player = Player(config, [reference, other], random)
        player.play(120)
        counts += player.counts
    return counts


@pytest.mark.rule("KV-TIER-1", "KV-TIER-2", "KV-TIER-3", "KV-TIER-4", "KV-TIER-5")
@pytest.mark.rule("KV-TIER-6", "KV-TIER-7", "KV-TIER-8")
def test_both_tiers_answer_alike_and_every_kind_of_outcome_occurs() -> None:
    counts = played(80)
    assert set(counts) == EVERY_OUTCOME


@pytest.mark.deep
def test_both_tiers_answer_alike_for_long() -> None:
    played(5000)


class TakesTheYoungest(FastTier):
    def _place(self) -> int:
        place = super()._place()
        if place and len(self._host) == self._num_blocks - 2:
            self._host.move_to_end(next(iter(self._host)))
        return place


class EvictsWhatIsHeld(FastTier):
    def _place(self) -> int:
        self._num_holds.clear()
        return super()._place()


class ForgetsNothing(FastTier):
    def taken(self, blocks: list[int]) -> Copies:  # type: ignore[override] # lists only
        known = dict(self._device)
        copies = super().taken(blocks)
        self._device = known
        return copies


class LooksOneBlockFurther(FastTier):
    def lookup(self, request: Request, num_local_tokens: int) -> int:
        found = super().lookup(request, num_local_tokens)
        return found + self._alignment if found else 0


class DoesNotUse(FastTier):
    def hold(self, request: Request, num_local_tokens: int, num_external_tokens: int) -> None:
        before = list(self._host)
        super().hold(request, num_local_tokens, num_external_tokens)
        for key in before:
            self._host.move_to_end(key)


class LoadsToOneBlock(FastTier):
    def load(self, request: Request, blocks: KVCacheBlocks) -> Copies:
        copies = super().load(request, blocks)
        return tuple((host, copies[0][1]) for host, _ in copies)


class KeepsTheCopy(FastTier):
    def forget(self, blocks: list[int]) -> None:  # type: ignore[override] # lists only
        host = self._host.copy()
        freed = list(self._freed)
        super().forget(blocks)
        self._host, self._freed = host, freed


@pytest.mark.parametrize(
    "broken",
    [
        TakesTheYoungest,
        EvictsWhatIsHeld,
        ForgetsNothing,
        LooksOneBlockFurther,
        DoesNotUse,
        LoadsToOneBlock,
        KeepsTheCopy,
    ],
)
def test_a_mistake_in_a_tier_is_found(broken: type[FastTier]) -> None:
    with pytest.raises(DisagreementError):
        played(40, broken)
