"""What is compared: parts of kvref, each with the module that shall have the same graph."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from proofs.models._formal._cache import CacheBounds
from proofs.models._formal._groups import GroupsSide
from proofs.models._formal._manager import ManagerBounds, ManagerSide
from proofs.models._formal._pool import PoolBounds
from proofs.models._formal._search import Bounds

SMALL_POOL = PoolBounds(num_blocks=3, num_keys=2)
SMALL_GROUPS = CacheBounds(
    num_blocks=4, num_requests=1, windows=(0, 2), block_sizes=(1, 1), num_tokens=1, max_tokens=2
)
SMALL_MANAGER = ManagerBounds(num_blocks=3, num_tokens=1)
TWO_TEXTS = ManagerBounds(num_blocks=3, num_requests=1, min_prompt=2)
ADMISSION = ManagerBounds(num_blocks=3, num_tokens=1, watermark=1, must_fit=True)

SCHEDULER: Mapping[str, object] = MappingProxyType(
    {
        **ManagerBounds(num_blocks=4, num_requests=3, num_tokens=1, max_tokens=3).constants,
        "MustFit": True,
        "Endless": False,
    }
)
"""Three requests of three tokens over three blocks: each fits, two at once do not."""

SMALL_SCHEDULER: Mapping[str, object] = MappingProxyType(
    {
        **ManagerBounds(num_blocks=3, num_tokens=1, max_prompt=1).constants,
        "MustFit": True,
        "Endless": False,
    }
)
"""Two requests of two tokens over two blocks, for seeded mistakes."""

ENDLESS: Mapping[str, object] = MappingProxyType(
    {
        **ManagerBounds(num_blocks=3, num_requests=3, num_tokens=1, max_prompt=1).constants,
        "MustFit": True,
        "Endless": True,
    }
)
"""Three seats over two blocks: a request holds one or both, and whoever ends may come again."""

SCHEDULERS = MappingProxyType({"scheduler": SCHEDULER, "endless arrivals": ENDLESS})
UNFAIR_SCHEDULERS = MappingProxyType({"scheduler": SMALL_SCHEDULER, "endless arrivals": ENDLESS})
"""What is checked, and where the mistakes are looked for."""


def compared() -> dict[str, Bounds]:
    """By name. The mistakes are looked for in the small ones, and each is found in one of these."""
    return {
        "pool": PoolBounds(),
        "groups": GroupsSide(
            CacheBounds(
                num_blocks=4, windows=(0, 2), block_sizes=(1, 1), num_tokens=1, max_tokens=2
            ),
        ),
        "manager": ManagerSide(SMALL_MANAGER),
        "two texts": ManagerSide(TWO_TEXTS),
        "deferred frees": ManagerSide(ManagerBounds(num_blocks=3, num_tokens=1, max_popped=1)),
        "blocks of 2 tokens": ManagerSide(
            ManagerBounds(
                num_blocks=3,
                block_sizes=(2,),
                num_tokens=1,
                min_prompt=2,
                max_prompt=3,
                max_tokens=4,
            )
        ),
        "window": ManagerSide(
            ManagerBounds(num_blocks=3, windows=(2,), num_tokens=1, max_tokens=3)
        ),
        "admission": ManagerSide(ADMISSION),
    }


def larger() -> dict[str, Bounds]:
    """No mistake needs it, and it takes as long as all of `compared` together; for the night."""
    return {"two requests of two texts": ManagerSide(ManagerBounds(num_blocks=3))}


def grown() -> dict[str, ManagerSide]:
    """What the model has beyond groups of one block size without options; for the night."""
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


def deep() -> dict[str, Bounds]:
    """Larger ones, for hours of one core."""
    return {
        "deep pool": PoolBounds(num_blocks=5),
        "deep groups": GroupsSide(
            CacheBounds(
                num_blocks=5, windows=(0, 2), block_sizes=(1, 1), num_tokens=1, max_tokens=2
            ),
        ),
        "deep manager": ManagerSide(ManagerBounds(num_blocks=3, max_prompt=3, max_tokens=3)),
        "deep hybrid": ManagerSide(
            ManagerBounds(
                num_blocks=5,
                num_requests=1,
                windows=(0, 2),
                block_sizes=(1, 1),
                num_tokens=1,
                max_tokens=3,
            )
        ),
        "deep window": ManagerSide(
            ManagerBounds(num_blocks=4, windows=(2,), num_tokens=1, max_tokens=3, max_popped=1)
        ),
    }
