"""The life of a fleet beside an index, as moves that can be drawn, played again and shrunk."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from kvcheck.fleet.engine import TEXTS, Engine, events_of, start_of
from kvcheck.fleet.shadow import Shadow, key_text, rules
from kvcheck.play import lives
from kvspec.events import EventHash
from kvspec.fleet import (
    Batch,
    EngineState,
    FleetImplementation,
    FleetKey,
    GroupPrefix,
    IndexCapabilities,
)

ONE = GroupPrefix(0, (b"a",), 4)
STATE = EngineState(0, 0.0, {("GPU", 0, b"a"): 0})
LATER = (10**6, 1e9)
"""Number and time of a batch that no engine makes."""
Act = Callable[[Any, str], object]


def _event(text: str, **members: Any) -> tuple[Any, ...]:
    return tuple(replace(each, **members) for each in events_of(text))


def _hear(events: Any) -> Act:
    return lambda index, engine: index.hear(engine, Batch(*LATER, events))


ILLEGAL: Sequence[tuple[str, str, Act]] = (
    ("hear", "number: -1", lambda i, e: i.hear(e, Batch(-1, 0.0, ()))),
    ("hear", "time_s: none", lambda i, e: i.hear(e, Batch(0, float("nan"), ()))),
    ("hear", "time_s: without end", lambda i, e: i.hear(e, Batch(0, float("inf"), ()))),
    ("hear", "group: -1", _hear(_event("+a/-1"))),
    ("restore", "number: -2", lambda i, e: i.restore(e, EngineState(-2, 0.0, {}))),
    ("restore", "keys: one without copies", lambda i, e: i.restore(e, STATE)),
    ("missing", "engine: unknown", lambda i, _: i.missing("unknown")),
    ("skip", "engine: unknown", lambda i, _: i.skip("unknown")),
    ("state", "engine: unknown", lambda i, _: i.state("unknown")),
    ("last", "engine: unknown", lambda i, _: i.last("unknown")),
    ("hits", "groups: none", lambda i, _: i.hits(())),
    ("hits", "groups: one twice", lambda i, _: i.hits((ONE, ONE))),
    ("hits", "block_size_tokens: 0", lambda i, _: i.hits((GroupPrefix(0, (), 0),))),
    ("hits", "num_last_blocks: -1", lambda i, _: i.hits((GroupPrefix(0, (), 4, -1),))),
    ("hits", "group: -1", lambda i, _: i.hits((GroupPrefix(-1, (), 4),))),
)
"""Each with the call's name, the member that is wrong, and the call, for an engine of this name."""

OF_TYPES: Sequence[tuple[str, str, Act]] = (
    ("hear", "batch: no Batch", lambda i, e: i.hear(e, (0, 0.0, ()))),
    ("hear", "events: None", _hear((None,))),
    ("hear", "events: a text as hash", _hear(_event("+a", block_hashes=("a",)))),
    ("hear", "medium: None", _hear(_event("+a", medium=None))),
    ("hear", "engine: 5", lambda i, _: i.hear(5, Batch(0, 0.0, ()))),
    ("restore", "state: a dict", lambda i, e: i.restore(e, {})),
    ("prefixes", "hashes: a text", lambda i, _: i.prefixes("abc")),
    ("prefixes", "hashes: None in them", lambda i, _: i.prefixes([None])),
    ("hits", "groups: None", lambda i, _: i.hits(None)),
    ("hits", "groups: 0 in them", lambda i, _: i.hits([0])),
    ("hits", "hashes: 7", lambda i, _: i.hits([GroupPrefix(0, 7, 4)])),  # type: ignore[arg-type]  # wrong on purpose
)
"""The same with values of wrong types, for which messages have no place."""


LATER_S = (1.0, 0.0, 2.0)


@dataclass(frozen=True)
class Move:
    """One move, by the name of its method in `Player`; what does not apply is passed over.

    `text`: events, or the prompt that is asked about. `number`: which batch, or which question.
    """

    word: str
    who: str = ""
    text: str = ""
    number: int = 0


@dataclass(frozen=True)
class Life:
    """An index with these options, and the moves of engines and of the network.

    `is_int`: hashes are ints.
    """

    removed_event_per: str
    max_waiting: int
    is_int: bool
    moves: tuple[Move, ...]

    @property
    def is_set(self) -> bool:
        return self.removed_event_per == "last_copy"


def capabilities_of(subject: FleetImplementation) -> IndexCapabilities:
    """Return what the subject declares; all by default."""
    found: IndexCapabilities = getattr(subject, "index_capabilities", IndexCapabilities())
    return found


class Player(lives.Player):
    """Plays a life on a new index."""

    shadow: Shadow

    def __init__(
        self, subject: FleetImplementation, model: FleetImplementation, life: Life
    ) -> None:
        super().__init__()
        self.life, self.can = life, capabilities_of(subject)
        self.hashed: Callable[[str], EventHash] = ord if life.is_int else str.encode
        options = {"removed_event_per": life.removed_event_per, "max_waiting": life.max_waiting}
        self.index, right = (made.make_prefix_index(**options) for made in (subject, model))  # type: ignore[arg-type]  # by name
        self.shadow = Shadow(self.can, right)
        self.engines: dict[str, Engine] = {}
        shown = "".join(f" {name}={json.dumps(value)}" for name, value in options.items())
        self.note(f"fleet{shown}")

    def play(self) -> None:
        """Make all moves, then ask for everything. Raises BrokenRuleError."""
        for move in self.life.moves:
            if move.who not in self.engines:
                self.engines[move.who] = Engine(is_set=self.life.is_set, hashed=self.hashed)
            getattr(self, move.word)(move)
        self.look(*self.engines)
        for text in TEXTS:
            self.prefixes(text, ("GPU", 0))

    # Engines, and the network that brings their batches.

    def step(self, move: Move) -> None:
        batch = self.made(move)
        self.hear(move.who, batch)

    def made(self, move: Move) -> Batch:
        words = [each for each in move.text.split() if self.is_kept(each)]
        return self.engines[move.who].step(" ".join(words), LATER_S[move.number % 3])

    def is_kept(self, word: str) -> bool:
        """Return whether the index keeps what the event is about."""
        no_media = not self.can.has_media and ("@" in word or (len(word) > 1 and word[0] == "*"))
        return not no_media and (self.can.has_groups or "/" not in word)

    def lost(self, move: Move) -> None:
        """Make a batch that does not arrive now; it may later."""
        batch = self.made(move)
        if not self.can.orders_batches:
            self.hear(move.who, batch)

    def again(self, move: Move) -> None:
        """Deliver any batch of this start: once more, or late."""
        made = self.engines[move.who].batches
        if made and self.can.orders_batches:
            self.hear(move.who, made[-1 - move.number % len(made)])

    def left_over(self, move: Move) -> None:
        """Deliver a batch of an earlier start."""
        old = self.engines[move.who].old
        if old and self.can.orders_batches:
            self.hear(move.who, old[-1 - move.number % len(old)])

    def replay(self, move: Move) -> None:
        """Deliver all batches from one on, as an engine replays them."""
        made = self.engines[move.who].batches
        if made and self.can.orders_batches:
            for batch in made[move.number % len(made) :]:
                self.hear(move.who, batch)

    def restart(self, move: Move) -> None:
        if self.can.orders_batches or "forget" in self.can.calls:
            self.engines[move.who].restart()
        if not self.can.orders_batches:
            self.drop(move.who)

    # Calls of the index.

    def hear(self, who: str, batch: Batch) -> None:
        wanted, named = self.shadow.hear(who, batch)
        got = self.index.hear(who, batch)
        self.note(f"hear {word(who)} {self.shown(who, batch)}", str(got))
        if self.can.orders_batches:
            self.shadow.judge(named, got == wanted, f"this batch of {who} was {got}, not {wanted}")
        self.look(who)

    def shown(self, who: str, batch: Batch) -> str:
        text = self.engines[who].texts[batch.number, batch.time_s]
        shown = f' "{text}"' if text else ""
        return f"{batch.number}{shown} time_s={batch.time_s:g}"

    def hand_over(self, move: Move) -> None:
        """Restore the state after a batch of the engine's present start, or before the first."""
        engine = self.engines[move.who]
        if "restore" not in self.can.calls:
            return
        number = len(engine.batches) - 1 - move.number % (len(engine.batches) + 1)
        state = engine.state(number)
        time_s, keys = state.time_s, state.keys
        wanted, got = self.shadow.restore(move.who, state), self.index.restore(move.who, state)
        shown = f'{number} "{_copies(keys)}" time_s={time_s:g}'
        self.note(f"hand_over {word(move.who)} {shown}", str(got).lower())
        self.shadow.judge(rules(6), got is wanted, f"the state was to be taken: {wanted}")
        self.look(move.who)

    def skip(self, move: Move) -> None:
        if "skip" in self.can.calls and move.who in self.shadow.lines:
            wanted, got = self.shadow.skip(move.who), self.index.skip(move.who)
            self.note(f"skip {word(move.who)}", str(got).lower())
            self.shadow.judge(rules(7), got is wanted, f"skip was to return {wanted}")
            self.look(move.who)

    def forget(self, move: Move) -> None:
        if self.can.orders_batches:  # else its next batch would be in the middle
            self.drop(move.who)

    def drop(self, who: str) -> None:
        if "forget" in self.can.calls and who in self.shadow.lines:
            self.shadow.forget(who)
            self.index.forget(who)
            self.note(f"forget {word(who)}")
            self.look(who)

    def ask(self, move: Move) -> None:
        """Ask for prefixes of a prompt, and for hits of several groups."""
        random = Random(move.number)
        group = random.choice([0, 0, 1]) if self.can.has_groups else 0
        medium = random.choice(["GPU", "GPU", "CPU"]) if self.can.has_media else "GPU"
        self.prefixes(move.text, (medium, group))
        if "hits" not in self.can.calls:
            return
        last = random.choice([None, None, 0, 1, 2, 3, 5])
        asked = [(0, move.text, random.choice([2, 4]), random.choice([None, last]))]
        if random.random() < 0.6 and self.can.has_groups:
            other = random.choice(TEXTS)[: random.randint(0, 6)]
            asked.append((1, random.choice([move.text, other]), random.choice([2, 3, 4]), last))
        groups = [GroupPrefix(n, self.hashes(t), size, last) for n, t, size, last in asked]
        found = self.index.hits(groups, medium=medium)
        shown = " ".join(f'[{n} "{t}" {size}{_last(last)}]' for n, t, size, last in asked)
        self.note(f"hits {shown}" + f' medium="{medium}"' * (medium != "GPU"), _pairs(found))
        self.shadow.saw_hits(groups, medium, found)

    def prefixes(self, text: str, place: tuple[str, int]) -> None:
        medium, group = place
        found = self.index.prefixes(self.hashes(text), group=group, medium=medium)
        more = f" group={group}" * (group != 0) + f' medium="{medium}"' * (medium != "GPU")
        self.note(f'prefixes "{text}"{more}', _pairs(found))
        is_less = not (self.can.is_exact and self.can.has_replays)
        holes = {who: engine.holes for who, engine in self.engines.items() if is_less}
        self.shadow.saw_prefixes(self.hashes(text), place, found, holes)

    def hashes(self, text: str) -> Sequence[EventHash]:
        return [self.hashed(letter) for letter in text]

    def wrong(self, move: Move) -> None:
        """Make an illegal call, if the subject says that it checks them: `number` says which."""
        if not self.can.checks_calls:
            return
        known = {"hear", "prefixes", *self.can.calls}
        listed = (*ILLEGAL, *(OF_TYPES if self.can.checks_types else ()))
        calls = [call for call in listed if call[0] in known]
        call, what, act = calls[move.number % len(calls)]
        self.refused("KV-FLEET-9", f"{call}, {what}", lambda: act(self.index, move.who))
        for line in self.shadow.lines.values():
            line.reason = rules(9)
        self.look(move.who)

    def look(self, *names: str) -> None:
        """Judge what the index says of these engines."""
        calls = self.can.calls
        wanted = tuple(sorted(self.shadow.lines))
        if "state" in calls:
            known = self.index.engines
            problem = f"the engines are {', '.join(wanted)}, and were said to be {', '.join(known)}"
            self.shadow.judge(rules(9), known == wanted, problem)
        for who in [name for name in names if name in self.shadow.lines]:
            line = self.shadow.lines[who]
            if "state" in calls:
                self.shadow.saw_state(who, self.index.state(who))
            if "last" in calls:
                self.shadow.saw_last(who, self.index.last(who))
            if "missing" in calls:
                self.shadow.saw_missing(who, self.index.missing(who))
            engine, (number, _) = self.engines[who], self.shadow.model.last(who)
            if line.starts_until(number) == {start_of(engine.time_s)}:
                self.shadow.is_true(who, engine.state(number).keys)


def _last(last: int | None) -> str:
    return "" if last is None else f" {last}"


def word(who: str) -> str:
    return who if who.isidentifier() else json.dumps(who)


def _pairs(found: Mapping[str, int]) -> str:
    return " ".join(f"[{json.dumps(who)} {n}]" for who, n in sorted(found.items())) or "[]"


def _copies(keys: Mapping[FleetKey, int]) -> str:
    """Return keys as events that store them: `+a +b/1 +b/1`."""
    return " ".join(f"+{key_text(key)}" for key, n in keys.items() for _ in range(n))
