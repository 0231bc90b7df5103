"""Common to the parts of an example: the current manager and requests, and their words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from inspect import signature
from types import MappingProxyType
from typing import Any, Protocol

from kvcheck.rules.bench import Bench
from kvcheck.rules.judging import NotationError
from kvcheck.rules.managed import Managed
from kvcheck.rules.notation.values import Name


class AtHand(Protocol):
    """The manager and the requests that the lines of an example are about."""

    bench: Bench
    requests: dict[str, Any]

    @property
    def on(self) -> Managed:
        """Return the current manager."""

    def request(self, name: Name) -> Any:
        """Return the request of this name."""

    def argument(self, value: Any, name: str = "") -> Any:
        """Return the argument that a word means in a call."""


def verbs_of(
    part: object, more: Mapping[str, Callable[..., Any]] = MappingProxyType({})
) -> dict[str, Callable[..., Any]]:
    """Return the methods `do_…` of a part by their words, and `more`, which are given the part."""
    names = (name for name in dir(part) if name.startswith("do_"))
    found = {name.removeprefix("do_"): getattr(part, name) for name in names}
    return {**found, **{word: partial(call, part) for word, call in more.items()}}


def call_named(owner: object, word: str, *given: Any, **named: Any) -> Any:
    """Make a call of `owner` by its own name. Raises NotationError if it has none, or another."""
    call = None if word.startswith("_") else getattr(owner, word, None)
    if not callable(call):
        raise NotationError(f"no call: {word}")
    check_words(word, call, *given, **named)
    return call(*given, **named)


def check_words(word: str, call: Callable[..., Any], *given: Any, **named: Any) -> None:
    """Raise NotationError for words that the call does not take: no implementation's fault."""
    try:
        signature(call).bind(*given, **named)
    except TypeError as error:
        raise NotationError(f"{word}: {error}") from error
