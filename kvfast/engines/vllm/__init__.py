"""vLLM's own scheduler over kvfast's block manager; docs/vllm.md says how to switch it on.

    vllm serve MODEL --scheduler-cls kvfast.engines.vllm.KvfastScheduler

With asynchronous scheduling, vLLM's default, the class is `KvfastAsyncScheduler`. Nothing of vLLM
is patched: the scheduler makes its manager as always, and then kvfast's takes its place. If kvfast
cannot serve a configuration, vLLM's manager stays, and a line in the log says why.

`request_block_hasher` is a fast `get_request_block_hasher` of vLLM's, for callers that make
requests themselves.
"""

from __future__ import annotations

from typing import Any

from kvfast.engines.vllm.versions import UnsupportedEngineError, release

__all__ = ["UnsupportedEngineError"]


def __getattr__(name: str) -> Any:
    # Not at import: it needs vLLM, of whatever version that is.
    if name in ("KvfastScheduler", "KvfastAsyncScheduler"):
        try:
            release()
        except UnsupportedEngineError as error:
            if error.found is None:
                raise
            from kvfast.engines.vllm.untried import untried

            return untried(name, error)
        from kvfast.engines.vllm import schedulers

        return getattr(schedulers, name)
    if name == "request_block_hasher":
        release()
        from kvfast.engines.vllm import hashing

        return hashing.request_block_hasher
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
