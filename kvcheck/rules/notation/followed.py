"""Words of an example about requests whose tokens and hashes the engine keeps, and hit rates."""

from __future__ import annotations

from typing import Any

from kvcheck.rules.judging import NotationError
from kvcheck.rules.notation.values import Name
from kvcheck.rules.notation.words import AtHand
from kvspec.following import FollowedInput
from kvspec.interface import Feature
from kvspec.stats import PrefixCacheStats


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
