"""Subjects in another process, as whoever drives one knows them.

`kvcheck.remote` makes them. Nothing else here asks where a subject lives.
"""

from __future__ import annotations

from kvspec.interface import Implementation, KVCacheManager


class ElsewhereImplementation:
    """Base of implementations whose calls have a time limit of their own."""


class ElsewhereManager:
    """Base of managers that a question reaches sooner if it is foreseen."""

    def foresee(self, *questions: str) -> None:
        """These calls come right after the next one, so that they go out along with it."""
        raise NotImplementedError


def is_elsewhere(subject: Implementation) -> bool:
    """Whether it lives in another process: an error's words and values may be others."""
    return isinstance(subject, ElsewhereImplementation)


def foresee(manager: KVCacheManager, *questions: str) -> None:
    """See `ElsewhereManager.foresee`; nothing happens if the manager lives in this process."""
    if isinstance(manager, ElsewhereManager):
        manager.foresee(*questions)
