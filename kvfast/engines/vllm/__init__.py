"""vLLM's own scheduler over kvfast's block manager; docs/vllm.md says how to switch it on.

    vllm serve MODEL --scheduler-cls kvfast.engines.vllm.KvfastScheduler

With asynchronous scheduling, vLLM's default, the class is `KvfastAsyncScheduler`. Nothing of vLLM
is patched: the scheduler makes its manager as always, and then kvfast's takes its place. Where
kvfast cannot serve a configuration, vLLM's manager stays, and one line of the log says why.

`request_block_hasher` is vLLM's `get_request_block_hasher` in fast, for who makes requests itself.
"""

from __future__ import annotations

from kvfast.engines.vllm.fit import SUPPORTED_VERSIONS, UnsupportedEngineError, check_version

__all__ = ["SUPPORTED_VERSIONS", "UnsupportedEngineError"]


def __getattr__(name: str) -> object:
    # Not at import: vLLM itself names the class before it needs it, and may be another version.
    if name in ("KvfastScheduler", "KvfastAsyncScheduler"):
        check_version()
        from kvfast.engines.vllm import schedulers

        return getattr(schedulers, name)
    if name == "request_block_hasher":
        check_version()
        from kvfast.engines.vllm import hashing

        return hashing.request_block_hasher
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
