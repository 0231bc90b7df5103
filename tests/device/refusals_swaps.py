"""The calls on swaps and the host tier, and what each refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvfast.device import HostTier, KVPools, Swapper
from kvspec.batched import StepPlan
from tests.device import refusals_kinds as kinds
from tests.device.models import cache, full
from tests.device.refusals import HOST_BLOCKS, Bad, Call, World
from tests.device.refusals_pages import NUM_BLOCKS
from tests.device.refusals_tables import result
from tests.device.tables import rows_of


def swaps(method: str, source: str, destination: str) -> Call:
    limits = {"blocks": NUM_BLOCKS, "host_blocks": HOST_BLOCKS}
    return Call(
        f"Swapper.{method}", lambda w: getattr(w.swapper, method),
        lambda w: {"blocks": [5, 6], "host_blocks": [2, 3]},
        (
            *kinds.ids(source, 1, limits[source]),
            *kinds.ids(destination, 1, limits[destination], writes=True),
            Bad(destination, [1], f"len({destination})"),
            Bad(source, [1, 2, 3], f"len({destination})"),
        ),
    )  # fmt: skip


STREAMS = (Bad("streams", 3, "streams"), Bad("streams", "cuda", "streams"))

SWAPS = (
    Call(
        "Swapper", lambda w: Swapper,
        lambda w: {"device_pools": w.pools, "host_pools": w.host},
        (
            *kinds.objects("device_pools"),
            *kinds.objects("host_pools"),
            *kinds.backends(),
            *STREAMS,
        ),
    ),
    swaps("swap_out", "blocks", "host_blocks"),
    swaps("swap_in", "host_blocks", "blocks"),
)  # fmt: skip


def made(world: World) -> dict[str, Any]:
    tier = world.tier()
    return {
        "implementation": world.implementation,
        "batched": tier.batched,
        "pools": tier.pages.pools,
        "num_host_blocks": HOST_BLOCKS,
    }


ROWS = tuple(
    Bad("rows", value, field, others={"result": result(1, num_deltas=1)})
    for value, field in (
        (4, "rows"),
        ([[0, 0, 0, 1]], "rows"),
        (rows_of((0, 0, 0, 1)).long(), "rows"),
        (rows_of(), "rows"),
        (rows_of((1, 0, 0, 1)), "rows[0].handle"),
        (rows_of((0, 1, 0, 1)), "rows[0].group"),
        (rows_of((0, 0, -1, 1)), "rows[0].index"),
        (rows_of((0, 0, 0, 20)), "rows[0].block"),
        (rows_of((0, 0, 0, -1)), "rows[0].block"),
    )
)
TIERS = (
    Call(
        "HostTier", lambda w: HostTier, made,
        (
            *(replace(bad, field="num_blocks") for bad in kinds.numbers("num_host_blocks", 1)),
            *kinds.objects("implementation"),
            *kinds.objects("batched"),
            *kinds.objects("pools"),
            Bad("pools", KVPools(cache(full())), "pools"),
            *kinds.numbers("num_spare_blocks", 0, optional=True),
            *kinds.backends(),
            *STREAMS,
        ),
    ),
    Call(
        "HostTier.load", lambda w: w.tier().load, lambda w: {}, kinds.objects("request"),
    ),
    Call(
        "HostTier.take", lambda w: w.tier().take, lambda w: {},
        tuple(Bad("blocks", [19, value], "blocks") for value in (1.5, True, "7", 20, 2**70)),
    ),
    Call(
        "HostTier.before_step", lambda w: w.tier().before_step,
        lambda w: {"plan": StepPlan(decoding=[0]), "result": result(1), "rows": rows_of()},
        (
            *kinds.objects("plan"),
            Bad("plan", StepPlan(decoding=[5]), "handle"),
            *kinds.objects("result"),
            Bad("result", result(1, 1), "result.num_scheduled_tokens"),
            Bad("result", result(1, num_deltas=1), "rows"),
            *ROWS,
        ),
    ),
    Call(
        "HostTier.after_step", lambda w: w.tier().after_step, lambda w: {},
        (Bad("handles", [5], "handle"), Bad("handles", [True], "handle")),
    ),
)  # fmt: skip

CALLS = (*SWAPS, *TIERS)
