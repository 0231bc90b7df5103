"""Adapters: managers of other projects with the contract's interface.

Each adapter is a module with factories, e.g. `kvcheck.adapters.vllm:implementation`. None of
them is registered, and none imports its project before the factory is called.
"""

from __future__ import annotations

from typing import TypeVar

from kvspec.errors import InvalidArgumentError

T = TypeVar("T")


def owned(request: object, of: type[T]) -> T:
    """Return the request if this adapter made it, else raise InvalidArgumentError."""
    if not isinstance(request, of):
        raise InvalidArgumentError("request", request, "made by this implementation's make_request")
    return request
