"""The rounds of a load, stock and ours in random order in each."""

from __future__ import annotations

import gc
from random import Random
from statistics import median

from bench.engines.load import PHASES, Case, Round, Side
from bench.engines.shares import shares
from bench.tables import short, spread

NUM_STEPS = 32
MAKING, SCHEDULE, UPDATE = ((phase,) for phase in PHASES)
STEP = (*SCHEDULE, *UPDATE)


class UnequalPlansError(Exception):
    """The two planned different steps, so their times say nothing."""


class Measured:
    """The rounds of a case: stock's and ours side by side."""

    def __init__(self, case: Case, model: str, num_rounds: int) -> None:
        self.case = case
        sides = [Side(case, model, on_kvfast=on_kvfast) for on_kvfast in (False, True)]
        self.rounds: list[tuple[Round, Round]] = []
        rng = Random(3)
        gc.collect()
        gc.disable()
        try:
            for number in range(num_rounds + 1):
                order = [0, 1]
                rng.shuffle(order)
                found = {i: sides[i].round(NUM_STEPS) for i in order}
                if found[0].planned != found[1].planned:
                    raise UnequalPlansError(case.name)
                if number:  # the first one is not counted
                    self.rounds.append((found[0], found[1]))
                gc.collect()
            self.shares = [shares(side, NUM_STEPS) for side in sides]
        finally:
            gc.enable()
        first = self.rounds[0][0]
        self.come_per_step = first.requests / first.steps
        scheduler = sides[1].scheduler
        self.batched = scheduler.num_steps_batched / scheduler.num_steps_kvfast

    def microseconds(self, side: int, phases: tuple[str, ...]) -> list[float]:
        """Return each round's time per step, or per request where requests are made."""
        per = [
            max(1, each[side].requests if phases == PHASES[:1] else each[side].steps)
            for each in self.rounds
        ]
        return [
            1e6 * sum(each[side].seconds[phase] for phase in phases) / count
            for each, count in zip(self.rounds, per, strict=True)
        ]

    def ratio(self, phases: tuple[str, ...]) -> str:
        """Return stock's time over ours: median (quartiles)."""
        pairs = zip(self.microseconds(0, phases), self.microseconds(1, phases), strict=True)
        return spread([stock / ours for stock, ours in pairs])

    def both(self, phases: tuple[str, ...]) -> list[str]:
        """Return the medians of stock and ours, and the ratio, as cells."""
        medians = [short(median(self.microseconds(side, phases))) for side in (0, 1)]
        return [*medians, self.ratio(phases)]
