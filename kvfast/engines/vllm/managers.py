"""Choose the manager that replaces vLLM's by its version."""

from __future__ import annotations

from typing import Any

import kvfast
from kvfast.engines.vllm.fit import Given, config_of, given_to
from kvfast.engines.vllm.later import LaterManager, given_later
from kvfast.engines.vllm.manager import KvfastManager
from kvfast.engines.vllm.versions import is_since


def given_by(scheduler: Any) -> Given:
    """Return the arguments of a scheduler's manager; UnsupportedError if kvfast can't serve."""
    given = given_to(scheduler)
    return given_later(scheduler, given) if is_since(26) else given


def kvfast_manager(stock: Any, given: Given) -> KvfastManager:
    """Replace an unused manager of vLLM's by kvfast.

    Raises UnsupportedError or ConfigError if kvfast cannot serve its configuration.
    """
    config = config_of(stock, given)
    implementation = kvfast.implementation()
    manager = implementation.create(config, check_invariants=False)
    kind = LaterManager if is_since(26) else KvfastManager
    return kind(stock, implementation, manager)
