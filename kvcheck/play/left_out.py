"""Checks left out for a subject that does not declare what they need."""

from __future__ import annotations

from typing import Any

from kvspec.config import ManagerConfig
from kvspec.errors import UnsupportedError
from kvspec.interface import Implementation, KVCacheManager


class LeftOut(Exception):  # noqa: N818 (it is no error)
    """A check or a program needs what the subject does not declare."""


def created(subject: Implementation, config: ManagerConfig, **options: Any) -> KVCacheManager:
    """Create a manager. Raises LeftOut if the subject says that it does not support the
    configuration, which breaks no rule."""
    try:
        return subject.create(config, **options)
    except UnsupportedError as error:
        raise LeftOut(str(getattr(error, "capability", "") or error)) from None
