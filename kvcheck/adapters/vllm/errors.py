"""Errors of the adapter: vLLM is not installed, or refused a call with an untyped exception."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

from kvspec.errors import (
    CacheMemoryError,
    ConfigError,
    KVSpecError,
    PageSizeError,
    UnsupportedError,
)

NAME = "vllm"


class VLLMUnavailableError(KVSpecError, ImportError):
    """vLLM cannot be imported, or this adapter does not support its version."""

    def __init__(self, problem: str, versions: Sequence[str]) -> None:
        super().__init__(
            f"{problem}; this adapter needs vLLM {' or '.join(versions)}: pip install"
            f" vllm=={versions[-1]}"
            " (its Python part is enough, no GPU)"
        )
        self.problem = problem


class VLLMCallError(KVSpecError, ValueError):
    """vLLM ended a call with an exception of its own, which is the cause of this one.

    `call` is the contract's name of the call, `original` the exception.
    """

    def __init__(self, call: str, original: Exception) -> None:
        super().__init__(f"{call}: vLLM raised {describe(original)}")
        self.call = call
        self.original = original


def describe(error: Exception) -> str:
    """Return the class of an exception, with its message if it has one."""
    said = str(error)
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


@contextmanager
def _translated(made: Callable[[Exception], KVSpecError]) -> Iterator[None]:
    """Turn what vLLM raises on purpose into an error of the contract.

    Anything else (an IndexError, a TypeError) is a crash and stays one.
    """
    try:
        yield
    except KVSpecError:
        raise
    except (ValueError, AssertionError, NotImplementedError) as error:
        raise made(error) from error


def typed_errors(call: str) -> AbstractContextManager[None]:
    """Raise VLLMCallError in a call, UnsupportedError for what vLLM has not implemented."""

    def made(error: Exception) -> KVSpecError:
        if isinstance(error, NotImplementedError):
            return UnsupportedError(f"{call} ({describe(error)})", NAME)
        return VLLMCallError(call, error)

    return _translated(made)


def config_errors() -> AbstractContextManager[None]:
    """Raise ConfigError for a configuration that vLLM refuses while a manager is built."""
    return _translated(
        lambda error: ConfigError("config", describe(error), "one that vLLM accepts")
    )


@contextmanager
def planning_errors(call: str) -> Iterator[None]:
    """Raise the contract's errors in planning, with the numbers vLLM had when it refused."""
    with _translated(partial(_refusal, call)):
        yield


class VLLMAnswerError(KVSpecError):
    """vLLM returned a value that the contract does not allow; `problem` says why."""

    def __init__(self, problem: Exception) -> None:
        super().__init__(f"vLLM's answer is no value of the contract: {problem}")
        self.problem = problem


def _refusal(call: str, error: Exception) -> KVSpecError:
    """Return the contract's error for vLLM's, with the members and values it is about."""
    within = _locals_of(error)
    memory, page = within.get("_check_enough_kv_cache_memory", {}), within.get(_UNIFY_PAGES, {})
    sizes = within.get("resolve_kv_cache_block_sizes", {})
    said = describe(error)
    if "Unsupported KV cache spec type" in said:
        return UnsupportedError(said, NAME)
    if memory.get("available_memory", 1) <= 0:
        return ConfigError("available_memory_bytes", memory["available_memory"], "more than 0")
    if "estimated_max_len" in memory:
        needed, available = memory["needed_memory"], memory["available_memory"]
        longest = memory["estimated_max_len"]
        return CacheMemoryError(memory["max_model_len"], needed, available, longest)
    if "layer_page_size" in page:
        size, largest = page["layer_page_size"], page["max_page_size"]
        return PageSizeError(page["layer_name"], size, largest, said)
    if "hash_block_size" in sizes:
        return ConfigError("hash_block_size", sizes["hash_block_size"], said)
    if sizes:
        name = "dcp" if sizes["dcp"] != 1 else "pcp"
        return ConfigError(f"{name}_world_size", sizes[name], said)
    if "unify_hybrid_kv_cache_specs" in within:
        return ConfigError("disable_hybrid", True, said)
    return ConfigError(call, said, "what vLLM plans for")


_UNIFY_PAGES = "unify_kv_cache_spec_page_size"


def _locals_of(error: Exception) -> dict[str, dict[str, Any]]:
    """Return the variables of each function that the error passed through, by function name."""
    found, trace = {}, error.__traceback__
    while trace is not None:
        found[trace.tb_frame.f_code.co_name] = dict(trace.tb_frame.f_locals)
        trace = trace.tb_next
    return found
