"""vLLM's modules, imported on demand, and what they keep in the process: environment, first parent.

vLLM reads the hash seed, the retention interval and the form of event hashes from environment
variables, and keeps the first parent hash in a module. Here they belong to one manager, so they are
put in place around the calls that read them, and put back.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any
from unittest.mock import patch

from kvcheck.adapters.vllm.errors import VLLMUnavailableError, describe
from kvspec.policy import Policy
from kvspec.profile import find_profile

SUPPORTED_VERSIONS = ("0.24.0", "0.33.0")

_MODULES: Mapping[str, str] = MappingProxyType(
    {
        "interface": "vllm.v1.kv_cache_interface",
        "manager": "vllm.v1.core.kv_cache_manager",
        "utils": "vllm.v1.core.kv_cache_utils",
        "groups": "vllm.v1.core.single_type_kv_cache_manager",
        "events": "vllm.distributed.kv_events",
        "hashing": "vllm.utils.hashing",
        "stats": "vllm.v1.metrics.stats",
        "request": "vllm.v1.request",
        "sampling": "vllm.sampling_params",
        "lora": "vllm.lora.request",
        "multimodal": "vllm.multimodal.inputs",
        "backends": "vllm.v1.attention.backends.registry",
        "torch": "torch",
    }
)


@dataclass(frozen=True)
class Library:
    """vLLM's modules that the adapter uses, by the names above, untyped as they are to us."""

    version: str
    modules: Mapping[str, Any]

    def __getattr__(self, name: str) -> Any:
        if name not in _MODULES:
            raise AttributeError(name)
        return self.modules.get(name)

    @property
    def release(self) -> str:
        """The version without what a local build adds."""
        return self.version.partition("+")[0]

    @property
    def is_later(self) -> bool:
        """Whether it is 0.33, whose calls and classes have other members."""
        return self.release != SUPPORTED_VERSIONS[0]

    @cached_property
    def policy(self) -> Policy:
        return find_profile(f"vllm-{self.release.rpartition('.')[0]}").policy

    def hash_function(self, name: str) -> Any:
        return self.hashing.get_hash_fn_by_name(name)

    def make_none_hash(self, function: str, seed: str | None) -> bytes:
        """Return vLLM's first parent hash for a seed; restores its module's value."""
        with environment(PYTHONHASHSEED=seed), self.parent_hash(b""):
            self.utils.init_none_hash(self.hash_function(function))
            return bytes(self.utils.NONE_HASH)

    def parent_hash(self, none_hash: bytes) -> AbstractContextManager[object]:
        return patch.object(self.utils, "NONE_HASH", none_hash, create=True)


def load_library() -> Library:
    """Import vLLM. Raises VLLMUnavailableError when it is missing or has another version."""
    # Without this, vLLM would log to standard output, which belongs to the caller.
    with environment(VLLM_LOGGING_LEVEL="ERROR"):
        try:
            version = str(importlib.import_module("vllm.version").__version__)
            if version.partition("+")[0] not in SUPPORTED_VERSIONS:
                raise VLLMUnavailableError(f"vLLM {version} is on the path", SUPPORTED_VERSIONS)
            modules = {name: importlib.import_module(path) for name, path in _MODULES.items()}
        except ImportError as error:
            if isinstance(error, VLLMUnavailableError):
                raise
            problem = f"vLLM cannot be imported ({describe(error)})"
            raise VLLMUnavailableError(problem, SUPPORTED_VERSIONS) from error
    return Library(version, modules)


@contextmanager
def environment(**variables: str | None) -> Iterator[None]:
    """Set environment variables (None: unset) for a moment."""
    before = {name: os.environ.get(name) for name in variables}
    _put(variables)
    try:
        yield
    finally:
        _put(before)


def _put(variables: dict[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
