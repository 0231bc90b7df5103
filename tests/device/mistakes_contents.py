"""Mistakes that show as other content: in operations, tables, swaps, the tier, and in managers.

Those of an object that others have, too, are made in each player, by `prepare`, which answers False
where a player has nothing of the kind.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from kvfast.device import DeviceTables, HostTier, PageOperations
from kvfast.device.pages import plain, pools
from kvfast.device.tables import geometry
from kvspec.errors import KVSpecError
from kvspec.specs import MambaSpec
from tests.device import contents_states, test_contents
from tests.device.contents import WrongContentError
from tests.device.contents_cases import ARRANGED, CASES, Case
from tests.device.contents_player import Player
from tests.device.mistakes import Check, Mistake, mistake, unawaited

NUM_ROUNDS = 22


def read(is_meant: Callable[[Case], bool], cases: Sequence[Case], num_runs: int) -> None:
    """Play until something wrong is read. An error on the way is no proof: it goes on."""
    meant = [case for case in cases if is_meant(case)]
    for seed in range(num_runs):
        player = test_contents.player_of(seed, "torch", meant)
        if player.prepare() is False:
            continue
        try:
            player.play(NUM_ROUNDS)
        except WrongContentError:
            raise
        except KVSpecError:
            continue


def keeps_all_states(case: Case) -> bool:
    return any(
        isinstance(spec, MambaSpec) and spec.mamba_cache_mode == "all" for spec in case.specs
    )


anything: Check = partial(read, lambda case: True, CASES, 8 * len(CASES))
parts: Check = partial(read, lambda case: case.hash_block_size is not None, CASES, 16)
carried: Check = partial(read, lambda case: case.has(MambaSpec), CASES, 48)
packed: Check = partial(read, lambda case: case.packed, ARRANGED, 24)
ranks: Check = partial(read, lambda case: case.world_size > 1, ARRANGED, 24)
states: Check = partial(read, keeps_all_states, ARRANGED, 24)
drafts: Check = partial(read, lambda case: case.has(MambaSpec) and case.can_draft, ARRANGED, 24)


@mistake(anything, DeviceTables, "step", "KV-DEV-11")
def slots_are_off_by_one(right: Any, *told: Any) -> Any:
    """Each token has the slot behind its own."""
    step = right(*told)
    return replace(step, slots=tuple(None if s is None else s + 1 for s in step.slots))


@mistake(anything, Player, "prepare", "KV-DEV-9", "KV-DEV-10")
def rows_are_not_recycled(right: Any, player: Player) -> None:
    """What is told of a row that had another request before is left out."""
    step, used = player.tables.step, set[int]()

    def broken(plan: Any, result: Any, rows: torch.Tensor) -> Any:
        told = rows[: result.num_deltas]
        begins = [int(row[0]) in used and int(row[2]) == 0 for row in told]
        kept = told[~torch.tensor(begins, dtype=torch.bool)]
        used.update(plan.finished)
        return step(plan, replace(result, num_deltas=len(kept)), kept)

    put(player.tables, step=broken)


@mistake(anything, DeviceTables, "rewind", "KV-DEV-11")
def rejected_drafts_stay(right: Any, *given: Any) -> None:
    """Lengths are not taken back."""


@mistake(anything, PageOperations, "write", "KV-DEV-3")
def a_layer_is_written_to_another(
    right: Any, self: Any, layer: str, *given: Any, **more: Any
) -> None:
    """Layers of a group share one memory."""
    right(self, layer.replace(".1", ".0"), *given, **more)


@mistake(parts, PageOperations, "copy_slots", "KV-DEV-5")
def the_last_slot_is_not_copied(right: Any, self: Any, group: int, *slots: Any) -> None:
    """One slot less."""
    right(self, group, *(one[:-1] for one in slots))


@mistake(anything, PageOperations, "copy_blocks", "KV-DEV-5")
def a_copy_goes_the_other_way(right: Any, self: Any, *blocks: Any, **more: Any) -> None:
    """From destinations to sources."""
    if len(set(blocks[0])) == len(blocks[0]):
        right(self, *blocks[::-1], **more)


@mistake(anything, PageOperations, "copy_blocks", "KV-DEV-5")
def sources_are_in_reverse(right: Any, self: Any, sources: Any, *given: Any, **more: Any) -> None:
    """The last source goes to the first destination."""
    right(self, sources[::-1], *given, **more)


@mistake(carried, Player, "carry", "KV-DEV-5")
def states_are_not_carried(right: Any, *given: Any) -> None:
    """A block begins with whatever it had."""


@mistake(anything, PageOperations, "zero_blocks", "KV-DEV-6")
def the_next_block_is_zeroed_too(right: Any, self: Any, blocks: Any) -> None:
    """One block too many."""
    last = self.pools.num_blocks - 1
    right(self, [*blocks, *(min(block + 1, last) for block in blocks)])


@mistake(anything, Player, "prepare", "KV-DEV-6")
def zeroing_comes_a_step_late(right: Any, player: Player) -> None:
    """What the step wrote is gone."""
    zero, late = player.pages.zero_blocks, list[Any]()

    def broken(blocks: Any, **more: Any) -> None:
        late.append(blocks)
        if len(late) > 1:
            zero(late.pop(0), **more)

    put(player.pages, zero_blocks=broken)


@mistake(anything, Player, "prepare", "KV-DEV-8")
def swaps_out_are_not_awaited(right: Any, player: Player) -> None:
    """Blocks are overwritten before they are copied."""
    put(player.swapper, swap_out=unawaited(player.swapper.swap_out))


@mistake(anything, Player, "prepare", "KV-DEV-8")
def swaps_in_are_not_awaited(right: Any, player: Player) -> None:
    """Blocks are read before they are copied."""
    put(player.swapper, swap_in=unawaited(player.swapper.swap_in))


@mistake(anything, Player, "prepare", "KV-DEV-8")
def swaps_in_are_in_reverse(right: Any, player: Player) -> None:
    """The last host block comes to the first block."""
    swap = player.swapper.swap_in
    put(player.swapper, swap_in=lambda host, blocks: swap(list(host)[::-1], blocks))


@mistake(anything, Player, "prepare", "KV-TIER-6")
def the_tier_answers_another_block(right: Any, player: Player) -> bool:
    """Copies come from the host block of their neighbour."""
    if player.host is None:
        return False
    load = player.host.tier.load

    def broken(*given: Any) -> Any:
        copies = load(*given)
        hosts = [host for host, _ in copies]
        pairs = zip(hosts[1:] + hosts[:1], copies, strict=True)
        return tuple((host, block) for host, (_, block) in pairs)

    put(player.host.tier, load=broken)
    return True


@mistake(anything, Player, "prepare", "KV-TIER-2")
def the_tier_copies_after_the_step(right: Any, player: Player) -> bool:
    """What the step wrote is copied, not what was there."""
    if player.host is None:
        return False
    copy_out, late = player.host._copy_out, list[Any]()

    def broken(copies: Any) -> None:
        late.append(copies)
        if len(late) > 1:
            copy_out(late.pop(0))

    put(player.host, _copy_out=broken)
    return True


@mistake(anything, Player, "prepare", "KV-DEV-8", "KV-TIER-2")
def the_tiers_spare_blocks_are_not_awaited(right: Any, player: Player) -> bool:
    """They are used again before their copy was made."""
    if player.host is None or player.host.offload is None:
        return False
    out = player.host.offload._out
    put(out, swap_out=unawaited(out.swap_out))
    return True


@mistake(anything, Player, "prepare", "KV-DEV-8", "KV-TIER-2")
def the_tiers_copies_are_not_awaited(right: Any, player: Player) -> bool:
    """Blocks are overwritten before they are copied to the host."""
    if player.host is None:
        return False
    put(player.host.swapper, swap_out=unawaited(player.host.swapper.swap_out))
    return True


@mistake(anything, HostTier, "take", "KV-TIER-2")
def forks_are_not_told_to_the_tier(right: Any, *given: Any) -> None:
    """Blocks that no step took are overwritten and still known."""


@mistake(anything, plain, "store_tokens", "KV-DEV-4")
def scales_are_not_stored(right: Any, part: Any, scales: Any, *given: Any) -> None:
    """Vectors are stored as if they had no scale of their own."""
    right(part, None, *given)


# Where pages lie, which states are kept, which tokens a rank has.


@mistake(packed, pools, "_pitch", "KV-DEV-1", "KV-PLAN-14")
def offsets_are_ignored(right: Any, *given: Any) -> tuple[int, int]:
    """All pages of a packed block lie at its beginning."""
    return 0, right(*given)[1]


@mistake(packed, pools, "_view", "KV-DEV-1", "KV-PLAN-14")
def pages_lie_without_the_gap(right: Any, raw: Any, place: Any, part: Any) -> Any:
    """Blocks follow one another at once."""
    return right(raw, replace(place, stride_bytes=place.stride_bytes // 16 * 16), part)


@mistake(ranks, geometry, "_group_table", "KV-DEV-11", "KV-FULL-5")
def blocks_cover_what_one_rank_has(right: Any, config: Any, spec: Any, *given: Any) -> Any:
    """Spans are block sizes."""
    return replace(right(config, spec, *given), span_tokens=spec.block_size)


@mistake(states, contents_states, "states_of", "KV-MAMBA-3")
def states_that_a_step_passed_are_not_kept(
    right: Any, spec: MambaSpec, start: int, main: int, end: int
) -> list[tuple[int, int]]:
    """Only the last one is."""
    first = contents_states.entry(spec, main)
    return [kept for kept in right(spec, start, main, end) if kept[0] >= first]


@mistake(drafts, Player, "settle", "KV-MAMBA-4")
def states_of_accepted_drafts_stay_where_they_are(right: Any, *given: Any) -> None:
    """Nobody copies them."""


def put(owner: object, **methods: Callable[..., Any]) -> None:
    """Give an object other methods."""
    for name, method in methods.items():
        setattr(owner, name, method)


MISTAKES = tuple(one for one in list(globals().values()) if isinstance(one, Mistake))
