"""SGLang's modules, imported on demand, and the configuration that they read from the process."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvspec.errors import KVSpecError

_MODULES: Mapping[str, str] = {
    "allocation": "sglang.srt.mem_cache.allocation",
    "allocator": "sglang.srt.mem_cache.allocator",
    "common": "sglang.srt.mem_cache.common",
    "components": "sglang.srt.mem_cache.unified_cache.component_type",
    "context": "sglang.srt.runtime_context",
    "environ": "sglang.srt.environ",
    "init_params": "sglang.srt.mem_cache.cache_init_params",
    "pools": "sglang.srt.mem_cache.memory_pool",
    "radix_cache": "sglang.srt.mem_cache.radix_cache",
    "sampling": "sglang.srt.sampling.sampling_params",
    "schedule_batch": "sglang.srt.managers.schedule_batch",
    "server_args": "sglang.srt.server_args",
    "torch": "torch",
    "unified_cache": "sglang.srt.mem_cache.unified_radix_cache",
    "utils": "sglang.srt.utils.common",
}


class SGLangUnavailableError(KVSpecError, ImportError):
    """SGLang, or something that it imports, cannot be imported."""

    def __init__(self, problem: str) -> None:
        super().__init__(
            f"SGLang cannot be imported ({problem}); this adapter was written for SGLang 0.5.23:"
            " pip install sglang==0.5.23 (no GPU is needed)"
        )
        self.problem = problem


@dataclass(frozen=True)
class Library:
    """The modules of SGLang that the adapter uses, untyped as they are to us.

    `config`: a runtime context of a server without a model, on the CPU.
    """

    version: str
    config: Any
    allocation: Any
    allocator: Any
    common: Any
    components: Any
    context: Any
    environ: Any
    init_params: Any
    pools: Any
    radix_cache: Any
    sampling: Any
    schedule_batch: Any
    server_args: Any
    torch: Any
    unified_cache: Any
    utils: Any


def load_library() -> Library:
    """Import SGLang. Raises SGLangUnavailableError."""
    try:
        version = str(importlib.import_module("sglang.version").__version__)
        modules = {name: importlib.import_module(path) for name, path in _MODULES.items()}
    except ImportError as error:
        raise SGLangUnavailableError(f"{type(error).__name__}: {error}") from error
    arguments = modules["server_args"].ServerArgs(
        model_path="dummy", device="cpu", attention_backend="torch_native"
    )
    config = modules["context"].create_context(arguments, role="scheduler")
    return Library(version=version, config=config, **modules)
