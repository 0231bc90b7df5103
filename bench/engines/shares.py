"""Shares of a step's time: clocks around the scheduler's calls of its manager."""

from __future__ import annotations

from collections.abc import Callable
from time import thread_time
from typing import Any

from bench.engines.load import PHASES, Side

ASKED = (
    "allocate_slots",
    "get_computed_blocks",
    "cache_blocks",
    "free",
    "get_num_common_prefix_blocks",
    "get_blocks",
    "get_block_ids",
    "take_new_block_ids",
    "take_events",
    "new_step_starts",
)


def shares(side: Side, num_steps: int) -> dict[str, float]:
    """Return the shares of one round's processor time: manager, rest of schedule and update,
    hashing.

    Clocks cost time themselves, so this is a separate round. Hashing is that of new tokens and of
    prompts.
    """
    spent = {"manager": 0.0, "update's manager": 0.0, "hashing": 0.0}
    in_update = False

    def clocked(call: Callable[..., Any], name: str) -> Callable[..., Any]:
        def asked(*given: Any, **options: Any) -> Any:
            began = thread_time()
            answer = call(*given, **options)
            spent["update's manager" if in_update and name == "manager" else name] += (
                thread_time() - began
            )
            return answer

        return asked

    def begin() -> None:
        nonlocal in_update
        plain_begin()
        scheduler = side.scheduler
        for name in ASKED:
            manager = scheduler.kv_cache_manager
            setattr(manager, name, clocked(getattr(manager, name), "manager"))
        if side.on_kvfast:
            steps = scheduler.batched_steps
            steps._granted = clocked(steps._granted, "manager")
        update = scheduler.update_from_output

        def updating(*given: Any) -> Any:
            nonlocal in_update
            in_update = True
            try:
                return update(*given)
            finally:
                in_update = False

        scheduler.update_from_output = updating
        for key in spent:
            spent[key] = 0.0

    plain_begin, side.begin = side.begin, begin  # type: ignore[method-assign]  # of this side alone
    plain_hasher = side.hasher
    side.hasher = clocked(plain_hasher, "hashing")
    side.begin()
    measured = side.round(num_steps)
    seconds = measured.seconds
    hashed_later = spent["hashing"] - seconds[PHASES[0]]
    return {
        "manager": spent["manager"] + spent["update's manager"],
        "rest of schedule": seconds[PHASES[1]] - spent["manager"],
        "rest of update": seconds[PHASES[2]] - spent["update's manager"] - max(0.0, hashed_later),
        "hashing": spent["hashing"],
    }
