"""Words of an example about what is beside a manager: fleet, tier, copies, followed requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kvcheck.fleet import engine
from kvcheck.hazards.checker import HazardChecker
from kvcheck.hazards.lines import line_of
from kvcheck.play.left_out import LeftOut
from kvcheck.rules.judging import NotationError
from kvcheck.rules.notation.setting import ROOMY
from kvcheck.rules.notation.values import Name
from kvcheck.rules.notation.words import AtHand, call_named
from kvspec.blocks import KVCacheBlocks
from kvspec.errors import UnsupportedError
from kvspec.events import MEDIUM_GPU, BlockStored, Event
from kvspec.fleet import (
    Batch,
    EngineState,
    FleetImplementation,
    FleetKey,
    GroupPrefix,
    MediumCleared,
)
from kvspec.following import FollowedInput
from kvspec.interface import Feature
from kvspec.stats import PrefixCacheStats
from kvspec.tier import TieredImplementation


def events_of(text: str) -> tuple[Event | MediumCleared, ...]:
    """Return the events of a batch, `"+a +b/1 -a@CPU *"`; each letter is a hash."""
    try:
        return tuple(engine.events_of(text))
    except ValueError as error:
        raise NotationError(str(error)) from None


class Beside:
    """An index of engines, `fleet`, and a tier of the current manager, `tier 4`."""

    def __init__(self, hand: AtHand) -> None:
        self.hand = hand
        self.index: Any = None
        self.tier: Any = None
        self.hazards: HazardChecker | None = None

    def do_hazards(self, **sizes_tokens: int) -> None:
        """Begin a record of copies between pools with blocks of this size, 4 tokens by default."""
        self.hazards = HazardChecker()
        self.issue("pools", **{"gpu": 4, "host": 4, **sizes_tokens})

    def issue(self, op: str, **members: Any) -> list[str]:
        """Take in a line of that record; return the rules it breaks, each with the block."""
        if self.hazards is None:
            raise NotationError("no record of copies: it is begun by `hazards`")
        given = {name: _word(value) for name, value in members.items()}
        line = line_of({"op": op, **given}, self.hazards.sizes_tokens)
        return [str(hazard) for hazard in self.hazards.take(line)]

    def do_work(self, name: Any, stream: Any, **members: Any) -> list[str]:
        after = [_word(each) for each in members.pop("after", ())]
        owner = members.pop("for", None)
        return self.issue("run", id=name, stream=stream, after=after, request=owner, **members)

    def do_fleet(self, **options: Any) -> None:
        if not isinstance(self.hand.bench.subject, FleetImplementation):
            raise LeftOut("an index of engines")
        try:
            self.index = self.hand.bench.subject.make_prefix_index(**options)
        except UnsupportedError as error:
            raise LeftOut("an index of engines") from error

    def the_index(self) -> Any:
        if self.index is None:
            raise NotationError("no index: it is made by `fleet`")
        return self.index

    def do_hear(
        self, engine: Any, number: int, events: str = "", time_s: float | None = None
    ) -> Any:
        """Take in a batch; its time is its number, in seconds, unless given."""
        batch = Batch(number, _time_of(number, time_s), events_of(events))
        return self.the_index().hear(_word(engine), batch)

    def do_hand_over(
        self, engine: Any, number: int, keys: str = "", time_s: float | None = None
    ) -> Any:
        """Restore an engine's state after a batch; keys as events that stored them."""
        found: dict[FleetKey, int] = {}
        for event in events_of(keys):
            if isinstance(event, BlockStored):
                for each in event.block_hashes:
                    key = (event.medium, event.group, each)
                    found[key] = found.get(key, 0) + 1
        state = EngineState(number, _time_of(number, time_s), found)
        return self.the_index().restore(_word(engine), state)

    def do_prefixes(self, hashes: str, **options: Any) -> list[list[Any]]:
        """Return [engine leading hashes] of each engine that has the first."""
        found = self.the_index().prefixes([each.encode() for each in hashes], **options)
        return [[engine, number] for engine, number in found.items()]

    def do_hits(self, *groups: Sequence[Any], **options: Any) -> list[list[Any]]:
        """Return [engine tokens] for groups `[number "abc" block_size]`, and blocks of the last."""
        asked = [
            GroupPrefix(group, [each.encode() for each in hashes], *rest)
            for group, hashes, *rest in groups
        ]
        return [[engine, n] for engine, n in self.the_index().hits(asked, **options).items()]

    def do_tier(self, num_blocks: int = ROOMY) -> None:
        """Make a tier with this many host blocks for the current manager."""
        if not isinstance(self.hand.bench.subject, TieredImplementation):
            raise LeftOut("a host tier")
        self.tier = self.hand.bench.subject.make_tier(self.hand.on.real, num_blocks)

    def do_host(self, call: Name, *values: Any, **members: Any) -> Any:
        """Make a call of the tier by its own name; `host keys` lists keys, the oldest first."""
        if self.tier is None:
            raise NotationError("no tier: it is made by `tier`")
        if call.word == "keys":
            return [key.hex() for (_, key), _ in self.tier.snapshot().host]
        given = [self.hand.argument(value) for value in values]
        if call.word == "load":
            given[1:] = [KVCacheBlocks(tuple(given[1:]))]
        return call_named(self.tier, call.word, *given, **members)


class _State:
    """The state of an engine: keys as `[letter copies]`, group and medium if not the default."""

    def __init__(self, state: EngineState) -> None:
        self.number, self.time_s, self.is_whole = state.number, state.time_s, state.is_whole
        self.keys = [
            [bytes(each).decode(), count, *([group, medium] if (group, medium) != USUAL else [])]
            for (medium, group, each), count in sorted(state.keys.items(), key=str)
            if isinstance(each, bytes)
        ]


USUAL = (0, MEDIUM_GPU)


OF_COPIES: Mapping[str, Callable[..., Any]] = {
    "give": lambda b, places, to: b.issue("give", request=to, places=places),
    "share": lambda b, places, to: b.issue("hit", request=to, places=places),
    "back": lambda b, places, of: b.issue("back", request=of, places=places),
    "zero": lambda b, name, stream, places: b.issue("zero", id=name, stream=stream, writes=places),
    "ended": lambda b, name, **members: b.issue("ended", id=name, **members),
    "skip": lambda b, engine: b.the_index().skip(_word(engine)),
    "forget": lambda b, engine: b.the_index().forget(_word(engine)),
    "missing": lambda b, engine: b.the_index().missing(_word(engine)),
    "engines": lambda b: b.the_index().engines,
    "state": lambda b, engine: _State(b.the_index().state(_word(engine))),
}
"""Words that are one line of a record of copies, or one call of an index."""


def _time_of(number: int, time_s: float | None) -> float:
    return float(number if time_s is None else time_s)


def _word(value: Any) -> Any:
    return value.word if isinstance(value, Name) else value


def hashes_of(value: Any, size_bytes: int) -> Any:
    """Return the hashes of `"ab"`, one for each letter; of a list, hex texts as bytes.

    A letter's hash begins with its byte and counts on from 1: `a` is 61 01 02 03 … .
    """
    if isinstance(value, str):
        return [letter.encode() + bytes(range(1, size_bytes)) for letter in value]
    if isinstance(value, list):
        return [bytes.fromhex(each) if isinstance(each, str) else each for each in value]
    return value


class Followed:
    """Followed requests of the current manager, and a hit-rate window."""

    def __init__(self, hand: AtHand) -> None:
        self.hand = hand
        self.rate_window: Any = None

    def _given(self, value: Any) -> Any:
        """Return the hashes that the words mean, as long as the manager's."""
        return hashes_of(value, self.hand.on.config.given_hash_bytes or 8)

    def do_followed(self, name: Any, num_tokens: Any, hashes: Any = "", **members: Any) -> None:
        """Make a request of counts and hashes; all of it is the prompt by default."""
        self.hand.bench.need(Feature.GIVEN_HASHES)
        called = name.word if isinstance(name, Name) else name
        given = {"num_prompt_tokens": num_tokens, "hashes": self._given(hashes), **members}
        subject: Any = self.hand.bench.subject
        made = subject.make_followed(self.hand.on.real, FollowedInput(called, num_tokens, **given))
        self.hand.requests[called] = made

    def do_follow(self, name: Name, num_tokens: Any, hashes: Any = "", **members: Any) -> None:
        """Set the request's number of tokens, and pass the hashes of its new full blocks."""
        subject: Any = self.hand.bench.subject
        given = self._given(hashes)
        subject.follow(self.hand.on.real, self.hand.request(name), num_tokens, given, **members)

    def do_rate_window(self, *max_requests: Any) -> None:
        self.hand.bench.need(Feature.STATISTICS)
        self.rate_window = self.hand.bench.subject.make_hit_rate_window(*max_requests)

    def _window(self) -> Any:
        if self.rate_window is None:
            raise NotationError("no window: it is made by `rate_window`")
        return self.rate_window

    def do_observe(self, *stats: Any, **members: Any) -> None:
        """Take in an update of these counts; anything else is passed on unchanged."""
        self._window().observe(stats[0] if stats else PrefixCacheStats(**members))

    def do_hit_rate(self) -> float:
        return float(self._window().hit_rate)

    def do_num_requests(self) -> int:
        return int(self._window().num_requests)
