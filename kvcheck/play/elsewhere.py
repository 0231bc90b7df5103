"""Subjects in another process, as their callers see them.

`kvcheck.remote` creates them. Nothing else in this package depends on where a subject runs.
"""

from __future__ import annotations

from kvspec.interface import Implementation, KVCacheManager


class ElsewhereImplementation:
    """Base of implementations whose calls have their own time limit."""


class ElsewhereManager:
    """Base of managers whose queries are faster when announced."""

    def foresee(self, *questions: str) -> None:
        """Announce that these calls follow the next one, so that they are sent along with it."""
        raise NotImplementedError


def is_elsewhere(subject: Implementation) -> bool:
    """Check whether it runs in another process: an error's words and values may differ."""
    return isinstance(subject, ElsewhereImplementation)


def foresee(manager: KVCacheManager, *questions: str) -> None:
    """Announce the calls to a manager in another process; a local one needs no notice."""
    if isinstance(manager, ElsewhereManager):
        manager.foresee(*questions)
