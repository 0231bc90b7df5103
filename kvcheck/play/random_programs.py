"""Random programs, weighted so that every situation occurs many times within seconds.

A program draws a few texts that share beginnings, and then mixes single steps with short habits of
schedulers (a request returns, holes are evicted into the cache, a request is decoded). Plain
`random.Random`: drawing a program must cost less than running it, and the draws are not shrunk;
programs are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import replace
from random import Random

from kvcheck.play import steps as st
from kvcheck.play.illegal_operations import ILLEGAL_OPERATIONS
from kvcheck.play.random_configs import random_config
from kvcheck.play.steps import Program, Step
from kvspec.config import ManagerConfig
from kvspec.domains import COUNT_MAX

BATCH = 100
FEW = 20
"""Requests of a program that may all be long."""
LAST = -1
"""The last of the requests that fit: the one that just arrived."""


def random_programs(run_seed: int, batch: int, max_steps: int) -> Iterator[Program]:
    """Yield batch number `batch` of a run's random programs, the same for equal arguments."""
    random = Random(run_seed * 1_000_003 + batch)
    for _ in range(BATCH):
        yield random_program_of(random, max_steps)


def random_program_of(random: Random, max_steps: int) -> Program:
    """Draw a program that begins with a few requests; some search for a common hit."""
    about_hits = random.random() < 0.2
    config = random_config(random, hybrid=about_hits)
    draw = Draw(random, config, long_texts=about_hits)
    steps: list[Step] = []
    if about_hits:
        steps += holes(draw)
    steps += [draw.arrival() for _ in range(random.choice((1, 2, 3)))]
    length = random.randint(max_steps // 2, max_steps)
    while len(steps) < length:
        steps += draw.habit()
    return Program(config, withdrawing(random, steps[:max_steps]))


def program_of_steps(draw: Draw, num_rounds: int, num_first: int = 0) -> Program:
    """Draw whole steps with single calls between them, after some arrivals, all but a few short."""
    steps: list[Step] = []
    for number in range(num_first):
        arrival = draw.arrival()
        if number >= FEW:
            length = draw.random.choice((9, 9, 70, len(arrival.prompt)))
            arrival = st.Arrive(arrival.prompt[:length])
        steps.append(arrival)
    for _ in range(num_rounds):
        steps += draw.round()
    return Program(draw.config, tuple(steps), name="whole steps")


def withdrawing(random: Random, steps: Sequence[Step]) -> tuple[Step, ...]:
    """Take requests out of planned steps, once or twice in every other program.

    Others with the same prompt may arrive before that. Later draws of `random` are the same as
    without.
    """
    own, found = copy(random), list(steps)
    places = [place for place, step in enumerate(steps) if isinstance(step, st.Run | st.Admit)]
    count = min(own.choice((0, 0, 1, 2)), len(places))
    for place in sorted(own.sample(places, count), reverse=True):
        arrivals = [step for step in steps[:place] if isinstance(step, st.Arrive)]
        more: list[Step] = []
        for _ in range(own.choice((0, 1, 2)) if arrivals else 0):
            more += [own.choice(arrivals[-2:]), st.Admit(LAST)]
        gone = st.Withdraw(own.randrange(6) if own.random() < 0.3 else 0, own.random() < 0.3)
        found[place + 1 : place + 1] = [*more, gone]
    return tuple(shared_loads(own, found))


def shared_loads(random: Random, steps: Sequence[Step]) -> Iterator[Step]:
    """Let others with the same prompt hit a load before it fails."""
    for place, step in enumerate(steps):
        before = steps[max(place - 2, 0) : place]
        fails = isinstance(step, st.FailLoad) and step.who == LAST
        come = [each for each in before if isinstance(each, st.Arrive)]
        count = random.choice((0, 1, 1, 2)) if fails and come else 0
        more: list[Step] = [*come[-1:], st.Admit(LAST)]
        yield from more * count
        yield replace(step, who=LAST - count) if isinstance(step, st.FailLoad) and count else step


class Draw:
    """Draws the steps of one scheduler, from texts that share beginnings."""

    def __init__(self, random: Random, config: ManagerConfig, *, long_texts: bool = False) -> None:
        self.random, self.config = random, config
        most = 30 if long_texts else random.choice((9, 13, 20))
        longest = min(config.max_model_len_tokens - 1, most)
        first = [random.choice((0, 0, 0, 1)) for _ in range(longest)]
        cut = random.randrange(longest)
        self.texts = (first, first[:cut] + [2] * (longest - cut), [3] * longest)

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def habit(self) -> list[Step]:
        """Draw a few steps that schedulers make one after another."""
        return self.random.choices(HABITS, WEIGHTS)[0](self)

    def length(self) -> int:
        return self.random.randint(1, 9)

    def who(self) -> int:
        """Draw a number for a request; the first ones more often."""
        return min(self.random.randrange(6), self.random.randrange(6))

    def arrival(self) -> st.Arrive:
        text = self.random.choices(self.texts, (6, 3, 1))[0]
        length = self.length_of(text)
        items = ((("a", 0, 2),), (("a", 1, 2), ("b", 3, self.longest_item(length))))
        return st.Arrive(
            tuple(text[:length]),
            salt="s" if self.chance(0.06) else None,
            lora="adapter" if self.chance(0.06) else None,
            items=self.random.choice(items) if self.chance(0.06) else (),
            skip_reading=self.chance(0.04),
            embedded=(1, 2, 3) if self.chance(0.04) else None,
            priority=self.priority(),
        )

    def priority(self) -> int:
        """Draw a priority where it matters; later draws are the same as without."""
        if self.config.eviction_order != "priority":
            return 0
        return Random(copy(self.random).random()).choice((0, 0, 1, 2))

    def length_of(self, text: Sequence[int]) -> int:
        """Draw how much of a text a request has."""
        return max(self.random.randint(1, len(text)), self.random.randint(1, len(text)))

    def longest_item(self, num_tokens: int) -> int:
        """Return the most tokens of an item in a prompt of this length."""
        return 1

    def chunk(self) -> int | None:
        """Draw the tokens of a step; None, in most cases, for all that are left."""
        return self.random.choice((None, None, None, 1, 2, 3, 5))

    def admission(self) -> st.Admit:
        """Draw an admission, plain in most cases."""
        return st.Admit(
            self.who(),
            look_up=self.chance(0.85),
            chunk_tokens=self.chunk(),
            external_tokens=self.random.choice((1, 3, 5, 99)) if self.chance(0.15) else 0,
            load_later=self.chance(0.4),
            lookahead_tokens=2 if self.chance(0.1) else 0,
            reserved_blocks=1 if self.chance(0.08) else 0,
            must_fit=self.chance(0.25),
            others_scheduled=self.chance(0.5),
            encoder_tokens=self.random.choice((0, 1, 3, 5)),
            own_hits=self.chance(0.4),
        )

    def run(self) -> st.Run:
        drafts = (0, 1) if self.chance(0.2) else ()
        return st.Run(
            self.who(),
            chunk_tokens=self.chunk(),
            token=self.random.choice((0, 0, 0, 1, 2)),
            drafts=drafts,
            accepted=self.random.randrange(3) if drafts else 0,
            lookahead_tokens=2 if self.chance(0.05) else 0,
            external_tokens=2 if self.chance(0.04) else 0,
            delayed=self.chance(0.05),
            ahead=self.chance(0.08),
        )

    def release(self) -> Step:
        """Draw the end of a request, or its preemption."""
        return st.Release(self.who(), again=self.chance(0.7), later=self.chance(0.2))

    def eviction(self) -> st.Evict:
        index, count = self.random.randrange(8), self.random.choice((1, 1, 2, 3))
        held = self.chance(0.2)
        return st.Evict(self.who(), self.random.randrange(4), index, count, held)

    def hold(self) -> st.Hold:
        """Draw blocks by content, of a request, or anywhere in the free queue."""
        named = self.eviction()
        free = self.chance(0.4)
        index = self.random.choice((0, 0, 1, named.index)) if free else named.index
        return st.Hold(named.who, named.group, index, named.count, named.held, free)

    def retelling(self) -> st.Retell:
        """Draw other tokens for those of a request that are not computed yet."""
        new = [4] * self.random.choice((0, 0, 1, self.length()))
        fewer = self.random.choice((0, 1, self.length()))
        return st.Retell(self.who(), fewer, tuple(new), self.chance(0.4))

    def keeping(self) -> Step:
        """Draw a step of an engine that keeps blocks, copies and tokens."""
        restored, count = self.chance(0.5), self.random.choice((1, 3))
        told = replace(self.retelling(), together=self.chance(0.3))
        choices = (self.hold(), st.ReturnPopped(count), st.Copy(restored), told)
        return self.random.choice(choices)

    def batch(self) -> st.Batch:
        """Draw a whole step: most requests continue, and most waiting ones are tried."""
        random, chance = self.random, self.chance
        parts = (COUNT_MAX, COUNT_MAX, COUNT_MAX, 1, 1, 2, 5, self.length(), 0)
        ends = (st.ENDS, st.ENDS, st.PREEMPTED)
        return st.Batch(
            parts=tuple(random.choice(ends if chance(0.25) else parts) for _ in range(7)),
            new=tuple(
                random.choice((COUNT_MAX, COUNT_MAX, 3, 3, self.length(), 0)) for _ in range(5)
            ),
            turn=random.randrange(60),
            token=random.choice((0, 0, 1)),
            answer=self.length() if chance(0.15) else 0,
            drafts=random.choice(((), (), (0,), (1, 0, 0))),
            accepted=random.randrange(4),
            token_budget=random.choice((COUNT_MAX, COUNT_MAX, 30, 8, 2)),
            lookahead_tokens=random.choice((0, 0, 0, 2, 9)),
            reserved_blocks=random.choice((0, 0, 0, 2)),
            must_fit=chance(0.3),
            stops_at_refusal=chance(0.5),
            starts_step=chance(0.9),
            rows=random.choice((0, 2, 7, 400)),
            more_slots=random.choice((None, 0, 0, 3)),
            by=random.choice(("admit", "decode", "free", "preempt")) if chance(0.15) else "",
            breaks=chance(0.15),
        )

    def round(self, room: int = 3) -> list[Step]:
        """Draw what an engine does around a whole step; at most `room` requests arrive."""
        random, chance = self.random, self.chance
        count = min(random.choice((0, 0, 1, 1, 3)), room)
        has_events = self.config.enable_events
        steps: list[Step] = [
            replace(self.arrival(), reports_hits=has_events and chance(0.5)) for _ in range(count)
        ]
        while chance(0.6):
            steps.append(self.alone())
            if isinstance(steps[-1], st.Run) and chance(0.4):
                steps.append(st.Withdraw(again=chance(0.3)))
        steps.append(self.batch())
        if chance(0.3):  # behind drafts that were taken back
            steps.append(st.Withdraw(random.randrange(6), back=-1))
        if chance(0.3):
            steps.append(st.TakeDeltas(random.choice((1, 3, 1000))))
        if chance(0.2):
            steps.append(st.LookUps(random.randrange(60)))
        if chance(0.4):
            steps.append(st.Take(window=random.choice((0, 1, 3, 1000))))
        return steps

    def alone(self) -> Step:
        """Draw a single call that engines mix into whole steps."""
        random = self.random
        if self.config.given_hash_bytes and self.chance(0.5):
            return replace(self.retelling(), together=self.chance(0.7))
        choices: tuple[Callable[[], Step], ...] = (
            self.run, self.run, self.run, self.admission, self.release, self.rest, self.keeping,
            lambda: replace(
                self.hold(), count=random.choice((1, 3, 12)), held=True, free=self.chance(0.5)
            ),
            lambda: st.Skip(self.who()), self.withdrawal, self.withdrawal,
            lambda: st.Try(self.who(), random.randrange(60), random.choice((3, self.length()))),
        )  # fmt: skip
        if self.chance(0.03):
            return st.Copy(restored=True, saved=self.chance(0.3))
        return random.choice(choices)()

    def withdrawal(self) -> st.Withdraw:
        back = self.random.choice((0, -1, 1, 3, self.length()))
        return st.Withdraw(self.who(), self.chance(0.3), back, self.chance(0.3))

    def rest(self) -> Step:
        who, index = self.who(), self.random.randrange(4)
        call = self.random.randrange(len(ILLEGAL_OPERATIONS))
        choices: tuple[Step, ...] = (
            st.FinishLoad(who), st.FinishLoad(who), st.FailLoad(who, index), st.Skip(who),
            st.CachePartial(who, index, self.random.randrange(9)), st.ReturnPopped(1 + 3 * index),
            st.Reset(), st.NewStep(), st.NewStep(), st.Take(), st.Ask(who),
            st.Ask(who, self.random.randint(1, 40)), st.GiveUp(who), st.Break(who, call),
        )  # fmt: skip
        return self.random.choice(choices)


def _newcomer(draw: Draw) -> list[Step]:
    admission = draw.admission()
    return [draw.arrival(), replace(admission, who=LAST) if draw.chance(0.5) else admission]


def _return(draw: Draw) -> list[Step]:
    """Preempt a request and admit it again after evicting some of its blocks."""
    gone = [draw.eviction() for _ in range(draw.random.choice((0, 1, 1, 2)))]
    step: list[Step] = [st.NewStep()] if draw.chance(0.7) else []
    way = st.Release(draw.who(), again=True, later=draw.chance(0.1))
    return [*step, way, *gone, draw.admission()]


def holes(draw: Draw) -> list[Step]:
    """Cache a long text, make holes in every group, and look it up again."""
    text = tuple(draw.texts[0])
    steps: list[Step] = [st.Arrive(text), st.Admit(LAST, look_up=False), st.NewStep()]
    steps.append(st.Release(LAST, again=True))
    for group in range(3):
        # At equal distances windows of several lengths disagree for several rounds.
        distance = draw.random.choice((3, 4, 5, 6, 7, 99))
        last = len(text) // draw.random.choice((1, 2, 2)) - 1
        holes = range(last - draw.random.randrange(distance), -1, -distance)
        steps += [st.Evict(LAST, group, place) for place in holes[:5]]
    if draw.chance(0.7):
        return [*steps, st.Admit(LAST), st.Ask(LAST)]
    external, later = draw.random.choice((1, 3, 99)), draw.chance(0.6)
    own = st.Admit(LAST, external_tokens=external, load_later=later, own_hits=True)
    return [*steps, own, st.FinishLoad(LAST), st.Ask(LAST)]


def _load(draw: Draw) -> list[Step]:
    """Load tokens from elsewhere behind the cached ones; some may turn out void."""
    loading = st.Admit(
        LAST,
        external_tokens=draw.random.choice((1, 2, 4)),
        load_later=draw.chance(0.4),
        own_hits=draw.chance(0.4),
    )
    end: Step = st.FinishLoad(LAST)
    if draw.chance(0.4):
        end = st.FailLoad(LAST, draw.random.randrange(3))
    return [draw.arrival(), loading, end]


def _boundaries(draw: Draw) -> list[Step]:
    """Cache boundaries inside a block that is not full yet."""
    group = draw.random.randrange(3)
    steps: list[Step] = [draw.arrival(), st.Admit(LAST, chunk_tokens=draw.random.choice((3, 5, 7)))]
    for _ in range(draw.random.choice((1, 2, 3))):
        steps.append(st.CachePartial(LAST, group, draw.random.randrange(9)))
    return [*steps, st.Run(LAST)]


def _drafting(draw: Draw) -> list[Step]:
    """Draft tokens for one request, and accept few of them."""
    who, accepted = draw.who(), draw.random.randrange(2)
    return [st.Run(who, drafts=(1, 0), accepted=accepted), st.Run(who), draw.run()]


HABITS: tuple[Callable[[Draw], list[Step]], ...] = (
    _newcomer,
    lambda draw: [draw.run() for _ in range(draw.random.choice((1, 2, 2, 4)))],
    _return,
    holes,
    _load,
    _boundaries,
    _drafting,
    lambda draw: [draw.admission()],
    lambda draw: [draw.release()],
    lambda draw: [draw.eviction()],
    lambda draw: [draw.rest()],
)
WEIGHTS = (5, 5, 4, 1, 2, 1, 2, 3, 3, 1, 6)
"""Relative frequency of each habit."""
