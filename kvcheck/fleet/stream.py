"""Lives beside an index that reads what engines publish: it must know what they have."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import Any

from kvcheck.fleet.engine import TEXTS
from kvcheck.fleet.life import Life, Move, Player, word
from kvcheck.fleet.shadow import Line, rules
from kvspec.fleet import Batch, FleetImplementation, StreamIndex

MARKS = "YZ"
"""Blocks that say that all before them was read: engines store one and remove the other."""

PATIENCE_S = 2.0
"""Seconds until an index has read what engines publish, on the same machine."""


class StreamPlayer(Player):
    """Plays a life; what engines have is compared once the index has read their last batch.

    `happened`: what was out of the ordinary with each engine, as rules.
    """

    def __init__(
        self, subject: FleetImplementation, model: FleetImplementation, life: Life
    ) -> None:
        super().__init__(subject, model, life)
        made: Any = self.index
        self.stream: StreamIndex = made
        self.happened: defaultdict[str, set[str]] = defaultdict(set)
        self.num_marks = 0

    def play(self) -> None:
        try:
            super().play()
        finally:
            self.stream.close()

    def step(self, move: Move) -> None:
        batch, num_unknown = self.kept(move)
        self.note(f"publish {self.told(move.who, batch, num_unknown)}")
        self.stream.publish(move.who, batch, num_unknown)

    def lost(self, move: Move) -> None:
        self.note(f"lost {self.told(move.who, *self.kept(move))}")
        self.happened[move.who] |= {*rules(11)}
        if not self.can.has_replays:
            self.engines[move.who].holes.update("".join(TEXTS))

    def kept(self, move: Move) -> tuple[Batch, int]:
        batch, num_unknown = self.made(move), move.text.count("?")
        self.stream.keep(move.who, batch, num_unknown)
        self.happened[move.who] |= {*(rules(13) * num_unknown), *(rules(14) * ("#" in move.who))}
        return batch, num_unknown

    def told(self, who: str, batch: Batch, num_unknown: int) -> str:
        more = f" and {num_unknown} of an unknown type" if num_unknown else ""
        return f"{word(who)} {self.shown(who, batch)}{more}"

    def hear(self, who: str, batch: Batch) -> None:
        """Deliver a batch once more, or one of an earlier start."""
        self.stream.publish(who, batch, 0)
        self.note(f"again {self.told(who, batch, 0)}")
        self.happened[who] |= {*rules(2)}

    def restart(self, move: Move) -> None:
        if self.engines[move.who].batches:
            self.engines[move.who].restart()
            self.note(f"restart {word(move.who)}")
            self.happened[move.who] |= {*rules(5)}
            self.step(Move("step", move.who))

    def prefixes(self, text: str, place: tuple[str, int]) -> None:
        """Wait until the last batches are read, and ask."""
        mark, other = MARKS[self.num_marks % 2], MARKS[1 - self.num_marks % 2]
        self.num_marks += 1
        names = [name for name, engine in self.engines.items() if engine.batches]
        for who in names:
            self.step(Move("step", who, f"-{other} +{mark}"))
        end = time.monotonic() + PATIENCE_S
        while not set(names) <= set(self.stream.prefixes(self.hashes(mark))):
            if time.monotonic() > end:
                break
            time.sleep(0.002)
        there = self.stream.prefixes(self.hashes(mark))
        for who in names:
            problem = f"{who}: its last batch is not read after {PATIENCE_S:g} s"
            named = self.reason(who)
            self.shadow.judge(named, who in there, problem)
            engine = self.engines[who]
            self.shadow.forget(who)
            self.shadow.restore(who, engine.state(len(engine.batches) - 1))
            self.shadow.lines[who] = Line(named[0], reason=named)
        super().prefixes(text, place)

    def reason(self, who: str) -> tuple[str, ...]:
        seen = self.happened[who]
        return (*(each for each in rules(5, 13, 11, 14, 2) if each in seen), *rules(4, 8))
