"""Errors of the adapter: vLLM is not installed, or refused a call with an untyped exception."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

from kvspec.errors import ConfigError, KVSpecError, UnsupportedError

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
