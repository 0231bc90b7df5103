"""Indexes side by side: engines that publish random events, and a network that doubles, delays,
loses and reorders; engines restart, states are handed over, gaps are given up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from random import Random

from kvspec.errors import InvalidArgumentError
from kvspec.events import AllBlocksCleared, Event, EventHash
from kvspec.fleet import (
    Batch,
    EngineState,
    FleetKey,
    GroupPrefix,
    Heard,
    MediumCleared,
    PrefixIndex,
)
from tests.fleet.traffic import removed, stored

MEDIA = ("GPU", "GPU", "GPU", "CPU")
HASHES: tuple[EventHash, ...] = (*(bytes([letter]) * 4 for letter in b"abcde"), 7)
NAMES = ("e", "f", "g")


class DisagreementError(AssertionError):
    """Two indexes that differ, or one that differs from the truth or changed in an illegal call."""


class Engine:
    """An engine that stores and evicts; `truth` is what it has after each batch.

    `is_set`: it reports only the removal of the last copy (KV-POL-3).
    """

    def __init__(self, random: Random, *, is_set: bool) -> None:
        self.random, self.is_set = random, is_set
        self.time_s = random.uniform(0, 1)
        self.batches: list[Batch] = []
        self.restart()

    def restart(self) -> None:
        """Restart empty, with batch number 0 next; some old batches are still under way."""
        self.late = [] if not self.batches else self.random.choices(self.batches, k=2)
        self.time_s += self.random.uniform(0.5, 1)
        self.keys: Counter[FleetKey] = Counter()
        self.batches = []
        self.truth: list[dict[FleetKey, int]] = []
        self.unsent: list[Batch] = []

    def tell(self) -> None:
        """Produce one more batch, now and then at the time of the previous one."""
        events = tuple(self.event() for _ in range(self.random.randrange(4)))
        self.time_s += self.random.choice([0.0, 0.1, 0.3])
        batch = Batch(len(self.batches), self.time_s, events)
        self.batches.append(batch)
        self.truth.append(dict.fromkeys(self.keys, 1) if self.is_set else dict(self.keys))
        self.unsent.append(batch)

    def event(self) -> Event | MediumCleared:
        """Draw an event that is possible now."""
        random = self.random
        draw = random.random()
        if draw < 0.03:
            self.keys.clear()
            return AllBlocksCleared()
        if draw < 0.06:
            medium = random.choice(MEDIA)
            self.keys = Counter({key: n for key, n in self.keys.items() if key[0] != medium})
            return MediumCleared(medium)
        if draw < 0.45 and self.keys:
            key = random.choice(sorted(self.keys, key=repr))
            self.keys[key] -= 1
            self.keys += Counter()  # drops what is 0
            if self.is_set and key in self.keys:
                return stored()
            return removed(key[2], group=key[1], medium=key[0])
        if draw < 0.55 and self.keys:
            key = random.choice(sorted(self.keys, key=repr))
            return stored(key[2], group=key[1], medium=key[0], is_report=True)
        medium, group = random.choice(MEDIA), random.choice([0, 0, 1])
        hashes = random.choices(HASHES, k=random.randint(0, 3))
        for one in hashes:
            self.keys[medium, group, one] += 1
        return stored(*hashes, group=group, medium=medium)

    @property
    def state(self) -> EngineState:
        """State that it would hand over now, or a little earlier."""
        if not self.batches:
            return EngineState(-1, float("-inf"), {})
        number = max(0, len(self.batches) - self.random.choice([1, 1, 2, 5]))
        return EngineState(number, self.batches[number].time_s, self.truth[number])


class Player:
    """Random calls; `counts` says how often each kind of call had which outcome."""

    def __init__(
        self, indexes: Sequence[PrefixIndex], random: Random, *, is_set: bool = False
    ) -> None:
        self.indexes, self.random = indexes, random
        self.fleet = {name: Engine(random, is_set=is_set) for name in NAMES}
        # The first batch of the run that an index knows; None: of several, for a restart was not
        # seen (nothing below the due number arrived), or an old batch arrived before all new ones.
        self.known: dict[str, Batch | None] = {}
        self.counts: Counter[str] = Counter()

    def play(self, num_calls: int) -> None:
        """Make random calls."""
        for _ in range(num_calls):
            self.call()

    def call(self) -> None:
        """Make one call, and check what must hold after it."""
        random = self.random
        name = random.choice(NAMES)
        engine = self.fleet[name]
        match random.randrange(40):
            case 0:
                engine.restart()
            case 1 | 2:
                self.same("skip", lambda index: index.skip(name))
            case 3 | 4:
                state = engine.state
                if self.same("restore", lambda index: index.restore(name, state)) == "True":
                    self.known[name] = next(iter(engine.batches), None)
            case 5:
                if random.random() < 0.2:
                    self.same("forget", lambda index: index.forget(name))
                    self.known.pop(name, None)
            case 7 if engine.late:
                self.hear(name, engine.late.pop(), is_late=True)
            case 6:
                self.same("hear", lambda index: index.hear(name, Batch(-1, 0.0, ())))
            case 8 | 9 | 10:
                for batch in engine.batches:  # a replay
                    self.hear(name, batch)
            case _:
                engine.tell()
                for batch in self.arriving(engine):
                    self.hear(name, batch)
        self.look()

    def arriving(self, engine: Engine) -> Iterator[Batch]:
        """Yield the batches that arrive now: some lost, some twice, some out of order."""
        random = self.random
        if random.random() < 0.5:
            random.shuffle(engine.unsent)
        for _ in range(random.randint(0, len(engine.unsent))):
            batch = engine.unsent.pop(0)
            if random.random() < 0.9:  # else it is lost
                yield batch
            if random.random() < 0.1:
                yield random.choice(engine.batches)

    def hear(self, name: str, batch: Batch, *, is_late: bool = False) -> None:
        """Pass a batch to all indexes."""
        begins = None if is_late else self.fleet[name].batches[0]
        heard = self.same("hear", lambda index: index.hear(name, batch))
        if heard == "RESTARTED" or name not in self.known:
            self.known[name] = begins
        elif heard in ("APPLIED", "WAITING") and self.known[name] is not begins:
            self.known[name] = None

    def same(self, call: str, act: Callable[[PrefixIndex], object]) -> str:
        """Return the outcome, which must be the same for all."""
        outcomes = [self.outcome(index, act) for index in self.indexes]
        if any(one != outcomes[0] for one in outcomes):
            raise DisagreementError(f"{call}: {outcomes}")
        self.counts[f"{call} {outcomes[0]}"] += 1
        return outcomes[0]

    def outcome(self, index: PrefixIndex, act: Callable[[PrefixIndex], object]) -> str:
        """Return the result, or the field of a refusal, which must change nothing."""
        before = {name: index.state(name) for name in index.engines}
        try:
            answer = act(index)
        except InvalidArgumentError as error:
            if before != {name: index.state(name) for name in index.engines}:
                raise DisagreementError(f"{error}, and something changed") from error
            return f"refuses {error.field}"
        return answer.name if isinstance(answer, Heard) else str(answer)

    def look(self) -> None:
        """Compare states, gaps and prefixes, and check that the states are true."""
        first, *others = self.indexes
        prompt = tuple(self.random.choices(HASHES, k=self.random.randint(0, 4)))
        group, medium = self.random.choice([0, 0, 1]), self.random.choice(MEDIA)
        groups = self.question()
        answers = [
            (
                index.engines,
                [
                    (index.state(name), index.missing(name), index.last(name))
                    for name in index.engines
                ],
                index.prefixes(prompt, group=group, medium=medium),
                index.hits(groups, medium=medium),
            )
            for index in (first, *others)
        ]
        if any(one != answers[0] for one in answers):
            raise DisagreementError(f"{prompt}, {group}, {medium}, {groups}: {answers}")
        self.counts["hits"] += any(answers[0][3].values())
        for name in first.engines:
            engine = self.fleet[name]
            if engine.batches and self.known.get(name) is engine.batches[0]:
                self.expect_true(first.state(name), engine)

    def question(self) -> list[GroupPrefix]:
        """Draw a prompt of one group or two, with different numbers of blocks."""
        random = self.random
        prompt = random.choices(HASHES[:3], k=random.randint(0, 6))
        last = random.choice([None, None, 0, 1, 2, 3, 5])
        groups = [GroupPrefix(0, prompt, random.choice([2, 4]), random.choice([None, last]))]
        if random.random() < 0.6:
            other = random.choices(HASHES[:3], k=random.randint(0, 6))
            groups.append(GroupPrefix(1, other, random.choice([2, 3, 4]), last))
        return groups

    def expect_true(self, state: EngineState, engine: Engine) -> None:
        """Check that the state claims no more than was true after that batch."""
        truth = engine.truth[state.number] if state.number >= 0 else {}
        if state.is_whole and state.keys != truth:
            raise DisagreementError(f"{state}, and the truth is {truth}")
        if any(copies > truth.get(key, 0) for key, copies in state.keys.items()):
            raise DisagreementError(f"{state} claims more than {truth}")
        self.counts["whole" if state.is_whole else "less"] += 1
