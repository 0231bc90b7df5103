"""Operations, tables, tiers and managers with one mistake: the contents show it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import pytest
import torch

from kvfast.device import Transfer
from kvfast.device.pages import plain as _pages_torch
from kvref.block_pool import BlockPool
from kvref.implementation import ReferenceImplementation
from kvspec.blocks import KVCacheBlocks
from kvspec.errors import KVSpecError
from kvspec.request import Request
from kvspec.specs import MambaSpec
from kvspec.tier import Copies
from tests.device.contents import WrongContentError
from tests.device.contents_cases import CASES
from tests.device.contents_player import Player
from tests.device.models import DEVICE
from tests.device.test_contents import player_of
from tests.machines.broken_pools import (
    FreesWhatOthersStillHold,
    GivesABlockTwice,
    KeepsKeysOfTakenBlocks,
    TouchLeavesTheBlockFree,
)

pytestmark = [
    pytest.mark.skipif(
        DEVICE != "cpu", reason="these tests are of the tests: only in host memory are copies late"
    ),
    pytest.mark.usefixtures("one_thread"),
]

NUM_RUNS = 8 * len(CASES)
NUM_ROUNDS = 22
Mistake: TypeAlias = Callable[[Player], bool | None]
"""Breaks something in a run; False if the run has nothing of that kind."""


def put(owner: object, **methods: Callable[..., Any]) -> None:
    """Give an object other methods."""
    for name, method in methods.items():
        setattr(owner, name, method)


def is_found(players: Iterator[Player], mistake: Mistake) -> bool:
    """Whether some run reads what is wrong. An error on the way is no proof: it goes on."""
    for player in players:
        if mistake(player) is False:
            continue
        try:
            player.play(NUM_ROUNDS)
        except WrongContentError:
            return True
        except KVSpecError:
            continue
    return False


def players() -> Iterator[Player]:
    return (player_of(seed, "torch") for seed in range(NUM_RUNS))


def slots_are_off_by_one(player: Player) -> None:
    step = player.tables.step

    def broken(*told: Any) -> Any:
        answer = step(*told)
        return replace(answer, slots=tuple(None if s is None else s + 1 for s in answer.slots))

    put(player.tables, step=broken)


def rows_are_not_recycled(player: Player) -> None:
    step, used = player.tables.step, set[int]()

    def broken(plan: Any, result: Any, rows: torch.Tensor) -> Any:
        told = rows[: result.num_deltas]
        begins = [int(row[0]) in used and int(row[2]) == 0 for row in told]
        kept = told[~torch.tensor(begins, dtype=torch.bool)]
        used.update(plan.finished)
        return step(plan, replace(result, num_deltas=len(kept)), kept)

    put(player.tables, step=broken)


def rejected_drafts_stay(player: Player) -> None:
    put(player.tables, rewind=lambda handles, num: None)


def a_layer_is_written_to_another(player: Player) -> None:
    write = player.pages.write

    def broken(layer: str, *given: Any, **scales: Any) -> None:
        write(layer.replace(".1", ".0"), *given, **scales)

    put(player.pages, write=broken)


def the_last_slot_is_not_copied(player: Player) -> bool:
    copy = player.pages.copy_slots

    def broken(group: int, sources: Sequence[int], destinations: Sequence[int]) -> None:
        copy(group, sources[:-1], destinations[:-1])

    put(player.pages, copy_slots=broken)
    return player.case.hash_block_size is not None


def a_copy_goes_the_other_way(player: Player) -> None:
    copy = player.pages.copy_blocks

    def broken(sources: Sequence[int], destinations: Sequence[int], *, group: Any = None) -> None:
        if len(set(sources)) == len(sources):
            copy(destinations, sources, group=group)

    put(player.pages, copy_blocks=broken)


def sources_are_in_reverse(player: Player) -> None:
    copy = player.pages.copy_blocks

    def broken(sources: Sequence[int], destinations: Sequence[int], *, group: Any = None) -> None:
        copy(sources[::-1], destinations, group=group)

    put(player.pages, copy_blocks=broken)


def states_are_not_carried(player: Player) -> bool:
    copy = player.pages.copy_blocks

    def broken(sources: Sequence[int], destinations: Sequence[int], *, group: Any = None) -> None:
        if group is None or not isinstance(player.case.specs[group], MambaSpec):
            copy(sources, destinations, group=group)

    put(player.pages, copy_blocks=broken)
    return player.case.has(MambaSpec)


def the_next_block_is_zeroed_too(player: Player) -> None:
    zero, last = player.pages.zero_blocks, player.pools.num_blocks - 1

    def broken(blocks: Sequence[int]) -> None:
        zero([*blocks, *(min(block + 1, last) for block in blocks)])

    put(player.pages, zero_blocks=broken)


def zeroing_comes_a_step_late(player: Player) -> None:
    zero, late = player.pages.zero_blocks, list[Any]()

    def broken(blocks: Sequence[int]) -> None:
        late.append(blocks)
        if len(late) > 1:
            zero(late.pop(0))

    put(player.pages, zero_blocks=broken)


def nobody_waits(swap: Callable[..., Transfer]) -> Callable[..., Transfer]:
    def broken(*blocks: Any) -> Transfer:
        swap(*blocks)
        return Transfer(None)

    return broken


def swaps_out_are_not_awaited(player: Player) -> None:
    put(player.swapper, swap_out=nobody_waits(player.swapper.swap_out))


def swaps_in_are_not_awaited(player: Player) -> None:
    put(player.swapper, swap_in=nobody_waits(player.swapper.swap_in))


def swaps_in_are_in_reverse(player: Player) -> None:
    swap = player.swapper.swap_in
    put(player.swapper, swap_in=lambda host, blocks: swap(list(host)[::-1], blocks))


def the_tier_answers_another_block(player: Player) -> bool:
    if player.host is None:
        return False
    tier, load = player.host.tier, player.host.tier.load

    def broken(request: Request, blocks: KVCacheBlocks) -> Copies:
        copies = load(request, blocks)
        hosts = [host for host, _ in copies]
        pairs = zip(hosts[1:] + hosts[:1], copies, strict=True)
        return tuple((host, block) for host, (_, block) in pairs)

    put(tier, load=broken)
    return True


def the_tier_copies_after_the_step(player: Player) -> bool:
    if player.host is None:
        return False
    copy_out, late = player.host._copy_out, list[Copies]()

    def broken(copies: Copies) -> None:
        late.append(copies)
        if len(late) > 1:
            copy_out(late.pop(0))

    put(player.host, _copy_out=broken)
    return True


def spare_blocks_are_not_awaited(player: Player) -> bool:
    if player.host is None or player.host.offload is None:
        return False
    out = player.host.offload._out
    put(out, swap_out=nobody_waits(out.swap_out))
    return True


def copies_to_the_host_are_not_awaited(player: Player) -> bool:
    if player.host is None:
        return False
    swapper = player.host.swapper
    put(swapper, swap_out=nobody_waits(swapper.swap_out))
    return True


def forks_are_not_told_to_the_tier(player: Player) -> bool:
    if player.host is None:
        return False
    put(player.host, take=lambda blocks: None)
    return True


MISTAKES: tuple[Mistake, ...] = (
    slots_are_off_by_one,
    rows_are_not_recycled,
    rejected_drafts_stay,
    a_layer_is_written_to_another,
    the_last_slot_is_not_copied,
    a_copy_goes_the_other_way,
    sources_are_in_reverse,
    states_are_not_carried,
    the_next_block_is_zeroed_too,
    zeroing_comes_a_step_late,
    swaps_out_are_not_awaited,
    swaps_in_are_not_awaited,
    swaps_in_are_in_reverse,
    the_tier_answers_another_block,
    the_tier_copies_after_the_step,
    spare_blocks_are_not_awaited,
    copies_to_the_host_are_not_awaited,
    forks_are_not_told_to_the_tier,
)


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: str(mistake.__name__))
def test_a_mistake_is_read(mistake: Mistake) -> None:
    assert is_found(players(), mistake)


@pytest.mark.parametrize(
    "pool",
    [
        KeepsKeysOfTakenBlocks,
        GivesABlockTwice,
        FreesWhatOthersStillHold,
        TouchLeavesTheBlockFree,
    ],
)
def test_what_a_broken_manager_hits_is_not_there(pool: type[BlockPool]) -> None:
    def broken() -> Iterator[Player]:
        for seed in range(NUM_RUNS):
            case = CASES[seed % len(CASES)]
            yield Player(case, ReferenceImplementation(pool), seed, "torch")

    assert is_found(broken(), lambda player: None)


def test_scales_that_are_not_stored_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    store = _pages_torch.store_tokens

    def broken(part: Any, scales: Any, tokens: Any, slots: Any, scale: float) -> None:
        store(part, None, tokens, slots, scale)

    monkeypatch.setattr(_pages_torch, "store_tokens", broken)
    assert is_found(players(), lambda player: None)
