"""vLLM's schedulers, stock and on kvfast, under the same load in one process."""
