"""Findings: a broken rule, its cause, what shows it, and whether a file knows it."""

from __future__ import annotations

from dataclasses import dataclass

DIRECTED, RANDOM = "directed", "random"
"""Kinds of checks that show a finding; `RANDOM` only if no example does."""


@dataclass(frozen=True)
class Finding:
    """A finding. `rule`: blamed when it was written. `shown_by`: part of the run, and its name.

    `like`: the known mistake that behaves so.
    """

    rule: str
    cause: str
    shown_by: tuple[str, ...]
    reason: str = ""
    like: str = ""


@dataclass(frozen=True)
class Compared:
    """A run compared with a file. `gone`: looked for and not found; `not_seen`: not looked for."""

    file: str
    known: tuple[Finding, ...]
    new: tuple[Finding, ...]
    gone: tuple[Finding, ...]
    not_seen: tuple[Finding, ...]

    @property
    def agrees(self) -> bool:
        return not self.new and not self.gone

    def known_as(self, cause: str) -> Finding | None:
        """Return the known finding of this cause if everything that shows it is known."""
        return next((each for each in self.known if each.cause == cause), None)
