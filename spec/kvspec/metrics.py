"""Prometheus metrics of a cache, with vLLM's names."""

from __future__ import annotations

from dataclasses import dataclass

LABELS = ("model_name", "engine")
"""Labels of every sample, as vLLM's."""


@dataclass(frozen=True)
class Family:
    """One metric. `is_counter`: it only grows, and its samples end with `_total`; else a gauge."""

    name: str
    meaning: str
    is_counter: bool = True

    @property
    def sample(self) -> str:
        """The name of its samples."""
        return self.name + "_total" if self.is_counter else self.name


USAGE = Family("vllm:kv_cache_usage_perc", "Blocks of the pool in use, 0 to 1.", is_counter=False)
QUERIES = Family(
    "vllm:prefix_cache_queries", "Tokens looked up, of requests that were never preempted."
)
HITS = Family("vllm:prefix_cache_hits", "Tokens of these that were hit.")
