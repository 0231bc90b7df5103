"""Common to the parts of an example: the current manager and requests, and their words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Protocol

from kvcheck.rules.bench import Bench
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
