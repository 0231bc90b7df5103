"""Outputs that the short update takes."""

from __future__ import annotations

from typing import Any


def is_usual(scheduler: Any, plan: Any, output: Any) -> bool:
    """Return whether an output has sampled tokens and their logprobs alone.

    vLLM's V1 runner leaves members without content None or empty: `num_nans_in_logits` is `{}`
    where nothing was counted.
    """
    return (
        not plan.num_invalid_spec_tokens
        and bool(output.sampled_token_ids)
        and not output.prompt_logprobs_dict
        and not output.pooler_output
        and output.kv_connector_output is None
        and not output.num_nans_in_logits
        and getattr(output, "routed_experts", None) is None
        and scheduler.connector is None
        and scheduler.perf_metrics is None
        and not scheduler.defer_block_free
    )
