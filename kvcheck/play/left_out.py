"""What is left out for a subject, because it says that it lacks what is needed."""

from __future__ import annotations

from typing import Any

from kvspec.config import ManagerConfig
from kvspec.errors import UnsupportedError
from kvspec.interface import Implementation, KVCacheManager


class LeftOut(Exception):  # noqa: N818 (nobody erred)
    """A check or a program needs what the subject says it lacks."""


def created(subject: Implementation, config: ManagerConfig, **options: Any) -> KVCacheManager:
    """A manager. Raises LeftOut if the subject does not support the configuration: that is said,
    and no rule is broken by it."""
    try:
        return subject.create(config, **options)
    except UnsupportedError as error:
        raise LeftOut(str(getattr(error, "capability", "") or error)) from None
