"""Which manager takes the place of vLLM's, and how it batches: each version of vLLM has its own."""

from __future__ import annotations

from typing import Any

import kvfast
from kvfast.engines.vllm.fit import Given, config_of, given_to
from kvfast.engines.vllm.later import LaterManager, given_later
from kvfast.engines.vllm.later_steps import LaterSteps
from kvfast.engines.vllm.manager import KvfastManager
from kvfast.engines.vllm.steps import BatchedSteps
from kvfast.engines.vllm.versions import WHOLE_STEPS, is_since, release
from kvspec.errors import UnsupportedError


def given_by(scheduler: Any) -> Given:
    """What a scheduler of vLLM's told its manager; UnsupportedError where kvfast does not serve."""
    given = given_to(scheduler)
    return given_later(scheduler, given) if is_since(26) else given


def kvfast_manager(stock: Any, given: Given) -> KvfastManager:
    """kvfast in place of a manager of vLLM's that was not used yet.

    Raises UnsupportedError or ConfigError where kvfast cannot serve its configuration.
    """
    config = config_of(stock, given)
    implementation = kvfast.implementation()
    manager = implementation.create(config, check_invariants=False)
    kind = LaterManager if is_since(26) else KvfastManager
    return kind(stock, implementation, manager)


def batched_steps(scheduler: Any, manager: KvfastManager) -> BatchedSteps | SingleSteps:
    """The batched path of a scheduler on kvfast."""
    if release() not in WHOLE_STEPS:
        return SingleSteps()
    return (LaterSteps if is_since(31) else BatchedSteps)(scheduler, manager)


class SingleSteps:
    """No batched path: each step is left to vLLM's scheduler."""

    def __init__(self) -> None:
        self.unusual: set[str] = set()
        self.reason = f"steps of vLLM 0.{release()}"

    def schedule(self) -> Any:
        """Why vLLM's scheduler has to make the step."""
        return self.reason

    def may_update(self, plan: Any, output: Any) -> bool:
        """Return False: vLLM's scheduler takes what the model made."""
        return False

    def updated(self, plan: Any, output: Any) -> dict[int, Any]:
        """Raise: no update is taken here."""
        raise UnsupportedError("an update of a step in one call", "kvfast")
