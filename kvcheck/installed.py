"""The implementations that are installed, by name."""

from __future__ import annotations

from importlib.metadata import entry_points

GROUP = "kvspec.implementations"


def installed_implementations() -> tuple[str, ...]:
    """Return the sorted names of the installed implementations without importing them."""
    return tuple(sorted(entry_points(group=GROUP).names))
