"""Batched steps for the schedulers of vLLM 0.26 to 0.30."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvfast.engines.vllm.admissions import Admitted
from kvfast.engines.vllm.compiled import Chosen
from kvfast.engines.vllm.manager import KvfastManager
from kvfast.engines.vllm.steps import BatchedSteps
from kvfast.engines.vllm.updates import LaterUpdate, updated


class MiddleSteps(BatchedSteps):
    """The batched path of a scheduler of 0.26 to 0.30."""

    in_flight = True

    def __init__(self, scheduler: Any, manager: KvfastManager) -> None:
        super().__init__(scheduler, manager)
        self.budget = min(self.budget, scheduler.scheduler_config.max_num_batched_tokens)
        if hasattr(scheduler, "model_uses_mrope"):  # since 0.29
            self.new_options = {"uses_mrope": scheduler.model_uses_mrope}

    def _never(self) -> str | None:
        s, spec = self.scheduler, self.scheduler.vllm_config.speculative_config
        if spec is not None and spec.max_num_new_slots_for_drafting > 0:
            return "drafts that take slots of the step"
        if s.observability_config.enable_logging_iteration_details:
            return "details of each step in the log"
        if getattr(s, "is_mm_encoder_only", False) or getattr(s, "return_sampling_mask", False):
            return "an encoder alone, or masks of samples"
        if getattr(s, "spec_decode_metrics_level", "none") != "none":  # since 0.29
            return "figures of drafts for each request"
        return super()._never()

    def told_besides(
        self, scheduled: Mapping[str, int], new: list[Any], chosen: Chosen, admitted: Admitted
    ) -> dict[str, Any]:
        """Return the further members of the plan."""
        told = super().told_besides(scheduled, new, chosen, admitted)
        if self.release >= 27:
            told["ec_manager_metadata"] = (
                self.scheduler.encoder_cache_manager.get_manager_metadata()
            )
        return told

    def _is_usual(self, plan: Any, output: Any) -> bool:
        s = self.scheduler
        return (
            super()._is_usual(plan, output)
            and s.ec_connector is None
            and not s.grammar_compile_error_reqs
        )

    def updated(self, plan: Any, output: Any) -> dict[int, Any]:
        """Apply the model's output by the short way."""
        return updated(LaterUpdate(self.scheduler), plan, output)
