"""What the parts of an example have in common: what is at hand, and their words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
        """The manager at hand."""

    def request(self, name: Name) -> Any:
        """Return the request of this name."""

    def argument(self, value: Any, name: str = "") -> Any:
        """Return what a word stands for in a call."""


def verbs_of(part: object) -> Mapping[str, Callable[..., Any]]:
    """Return the methods `do_…` of a part by their words."""
    names = (name for name in dir(part) if name.startswith("do_"))
    return {name.removeprefix("do_"): getattr(part, name) for name in names}
