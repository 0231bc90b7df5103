"""Errors of the adapter: vLLM is not there, or vLLM refused a call with a bare exception."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kvspec.errors import ConfigError, KVSpecError, UnsupportedError

NAME = "vllm"


class VLLMUnavailableError(KVSpecError, ImportError):
    """vLLM cannot be imported, or is not the version that this adapter speaks to."""

    def __init__(self, problem: str, version: str) -> None:
        super().__init__(
            f"{problem}; this adapter needs vLLM {version}: pip install vllm=={version}"
            " (its Python part is enough, no GPU)"
        )
        self.problem = problem


class VLLMCallError(KVSpecError, ValueError):
    """A call that vLLM ended with an exception of its own, which is the cause of this one.

    `call` is the contract's name of the call, `original` the exception.
    """

    def __init__(self, call: str, original: Exception) -> None:
        super().__init__(f"{call}: vLLM raised {describe(original)}")
        self.call = call
        self.original = original


def describe(error: Exception) -> str:
    """The class of an exception and what it says, if anything."""
    said = str(error)
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


@contextmanager
def typed_errors(call: str) -> Iterator[None]:
    """Turn what vLLM raises on purpose into an error of the contract.

    Anything else (an IndexError, a TypeError) is a crash and stays one.
    """
    try:
        yield
    except KVSpecError:
        raise
    except (ValueError, AssertionError) as error:
        raise VLLMCallError(call, error) from error
    except NotImplementedError as error:
        raise UnsupportedError(f"{call} ({describe(error)})", NAME) from error


@contextmanager
def config_errors() -> Iterator[None]:
    """The same while a manager is built: a configuration that vLLM refuses is a ConfigError."""
    try:
        yield
    except KVSpecError:
        raise
    except (ValueError, AssertionError, NotImplementedError) as error:
        raise ConfigError("config", describe(error), "one that vLLM accepts") from error
