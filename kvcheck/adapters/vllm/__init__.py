"""vLLM's own KV-cache manager with the contract's interface.

    kvspec golden RECORDS --impl kvcheck.adapters.vllm:implementation

The factory imports the `vllm` on the path, 0.24.0 or 0.33.0; a patched copy of the same version can
be put there. All results come from vLLM's code: the adapter translates values and checks nothing
that vLLM leaves unchecked.
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
    """Return the adapter with the uncached common prefix as vLLM's scheduler reads it.

    vLLM keeps that number in an attribute, which a look-up that reads no cache leaves unchanged.
    `implementation` returns None there, as recorded traces do; this one returns the kept value.
    """
    return VLLMImplementation(load_library(), keeps_uncached_prefix=True)
