"""Parts of kvref, each with the module that must have the same graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from proofs.models._formal._cache import CacheBounds
from proofs.models._formal._groups import GroupsSide
from proofs.models._formal._manager import ManagerBounds, ManagerSide
from proofs.models._formal._pool import PoolBounds
from proofs.models._formal._search import Bounds

Constants = Mapping[str, object]

SMALL_POOL = PoolBounds(num_blocks=3, num_keys=2)
SMALL_GROUPS = CacheBounds(
    num_blocks=4, num_requests=1, windows=(0, 2), block_sizes=(1, 1), num_tokens=1, max_tokens=2
)
SMALL_MANAGER = ManagerBounds(num_blocks=3, num_tokens=1)
TWO_TEXTS = ManagerBounds(num_blocks=3, num_requests=1, min_prompt=2)
ADMISSION = ManagerBounds(num_blocks=3, num_tokens=1, watermark=1, must_fit=True)
TWO_BLOCKS = ManagerBounds(
    num_blocks=4,
    num_requests=1,
    windows=(4,),
    block_sizes=(2,),
    num_tokens=1,
    min_prompt=5,
    max_prompt=5,
    max_tokens=6,
)


def scheduler(
    bounds: ManagerBounds, *, endless: bool = False, any_order: bool = False
) -> Constants:
    """Return the constants of Scheduler."""
    return {**bounds.constants, "Endless": endless, "AnyOrder": any_order}


ONE_TEXT = ManagerBounds(num_blocks=3, num_tokens=1, must_fit=True)


def schedulers() -> dict[str, Constants]:
    """Return what is checked by name.

    Three requests of three tokens over three blocks: each fits, two at once do not. Three seats
    over two blocks, with a new request in a seat that is free. Two requests over four blocks that
    load two tokens each and then need one block more, for a drafter.
    """
    seats = replace(ONE_TEXT, num_requests=3, max_prompt=1)
    loads = replace(ONE_TEXT, num_blocks=5, min_prompt=2, lookahead=1, max_loaded=2)
    return {
        "scheduler": scheduler(replace(ONE_TEXT, num_blocks=4, num_requests=3, max_tokens=3)),
        "any order": scheduler(seats, any_order=True),
        "endless arrivals": scheduler(seats, endless=True),
        "parked loads": scheduler(replace(loads, max_tokens=3), any_order=True),
    }


def unfair_schedulers() -> dict[str, Constants]:
    """Return where the mistakes are looked for; "scheduler": two requests over two blocks."""
    return {**schedulers(), "scheduler": scheduler(replace(ONE_TEXT, max_prompt=1))}


def compared() -> dict[str, Bounds]:
    """Return the bounds by name; each seeded mistake is found in one of the small ones."""
    return {
        "pool": PoolBounds(),
        "groups": GroupsSide(
            CacheBounds(
                num_blocks=4, windows=(0, 2), block_sizes=(1, 1), num_tokens=1, max_tokens=2
            )
        ),
        "manager": ManagerSide(SMALL_MANAGER),
        "two texts": ManagerSide(TWO_TEXTS),
        "deferred frees": ManagerSide(ManagerBounds(num_blocks=3, num_tokens=1, max_popped=1)),
        "window": ManagerSide(replace(TWO_BLOCKS, windows=(3,))),
        "run of two blocks": ManagerSide(TWO_BLOCKS),
        "admission": ManagerSide(ADMISSION),
    }


def larger() -> dict[str, Bounds]:
    """Return bounds for the night: slower than all of `compared`, and no mistake needs them."""
    bounds = {
        "blocks of 2 tokens": ManagerBounds(
            num_blocks=3, block_sizes=(2,), num_tokens=1, min_prompt=2, max_prompt=3, max_tokens=4
        ),
        "two windows": ManagerBounds(num_blocks=3, windows=(2,), num_tokens=1, max_tokens=3),
        "two requests of two texts": ManagerBounds(num_blocks=3),
    }
    return {name: ManagerSide(each) for name, each in bounds.items()}


def grown() -> dict[str, ManagerSide]:
    """Return bounds for the night, with several block sizes and options."""
    bounds = {
        "two block sizes": ManagerBounds(
            num_blocks=5,
            num_requests=1,
            num_tokens=1,
            windows=(0, 2),
            block_sizes=(2, 1),
            min_prompt=3,
            max_prompt=3,
            max_tokens=3,
        ),
        "eagle": ManagerBounds(
            num_blocks=3, num_tokens=1, eagle_groups=frozenset({0}), max_prompt=3, max_tokens=3
        ),
        "loads": ManagerBounds(num_blocks=3, num_tokens=1, windows=(2,), max_loaded=2),
        "look-ahead": ManagerBounds(num_blocks=3, num_tokens=1, lookahead=1, max_tokens=3),
        "retention": ManagerBounds(
            num_blocks=4,
            num_requests=1,
            num_tokens=1,
            windows=(2,),
            retention=0,
            max_prompt=3,
            max_tokens=4,
        ),
    }
    return {name: ManagerSide(each) for name, each in bounds.items()}
