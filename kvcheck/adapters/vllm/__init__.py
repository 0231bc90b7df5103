"""vLLM's own KV-cache manager behind the contract's interface.

    kvspec golden RECORDS --impl kvcheck.adapters.vllm:implementation

The factory imports whatever `vllm` is on the path, 0.24.0 or 0.33.0; a patched copy of the same
version can be put there. Everything is answered by vLLM's code: the adapter translates values and
checks nothing that vLLM leaves unchecked. Planning of 0.24.0 is offered, too: its functions need no
device.
"""

from __future__ import annotations

from kvcheck.adapters.vllm.errors import VLLMCallError, VLLMUnavailableError
from kvcheck.adapters.vllm.implementation import VLLMImplementation
from kvcheck.adapters.vllm.library import SUPPORTED_VERSIONS, load_library

__all__ = [
    "SUPPORTED_VERSIONS",
    "VLLMCallError",
    "VLLMImplementation",
    "VLLMUnavailableError",
    "implementation",
    "scheduler_view",
]


def implementation() -> VLLMImplementation:
    """vLLM's manager. Raises VLLMUnavailableError when vLLM is missing or has another version."""
    return VLLMImplementation(load_library())


def scheduler_view() -> VLLMImplementation:
    """The same, but the uncached common prefix is what vLLM's scheduler reads after any look-up.

    vLLM keeps that number in an attribute, which a look-up that reads no cache leaves as it was.
    `implementation` answers None there, as recorded traces do; this one shows the value kept.
    """
    return VLLMImplementation(load_library(), keeps_uncached_prefix=True)
