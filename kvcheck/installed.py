"""The implementations that are installed, by name."""

from __future__ import annotations

from importlib.metadata import entry_points

GROUP = "kvspec.implementations"


def installed_implementations() -> tuple[str, ...]:
    """The names of the installed implementations, sorted; none of them is imported."""
    return tuple(sorted(entry_points(group=GROUP).names))
