"""Outputs that the short update takes, and hits whose end is computed again."""

from __future__ import annotations

from typing import Any


def is_usual(scheduler: Any, plan: Any, output: Any) -> bool:
    """Return whether an output has sampled tokens and their logprobs alone, or pooled ones.

    vLLM's V1 runner leaves members without content None or empty: `num_nans_in_logits` is `{}`
    where nothing was counted.
    """
    pools = scheduler.batched_steps.pools
    return (
        not plan.num_invalid_spec_tokens
        and bool(output.pooler_output if pools else output.sampled_token_ids)
        and not output.prompt_logprobs_dict
        and (pools or not output.pooler_output)
        and output.kv_connector_output is None
        and not output.num_nans_in_logits
        and getattr(output, "routed_experts", None) is None
        and scheduler.connector is None
        and scheduler.ec_connector is None
        and not getattr(scheduler, "grammar_compile_error_reqs", None)
        and not getattr(scheduler, "encoder_cache_mismatch_reqs", None)
        and not getattr(output, "prompt_token_id_logprobs_dict", None)
        and scheduler.perf_metrics is None
        and not scheduler.defer_block_free
    )


def replayed(window: int, hit: int) -> tuple[int, int]:
    """Return the tokens of a hit that count, and how many of its last ones are computed again.

    `window`: the tokens that layers see whose blocks are not cached, 0 for none. A hit within it
    would be computed as a whole.
    """
    return (hit, window) if hit > window else (0, 0)
