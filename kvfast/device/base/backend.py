"""Choose between the two forms of an operation: plain torch, or a Triton kernel.

A folder with kernels has both as modules with the same functions: `plain` and `kernels`.
"""

from __future__ import annotations

import os
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Literal, TypeAlias

from kvfast.device.base.errors import MissingDependencyError
from kvspec.errors import InvalidArgumentError

if TYPE_CHECKING:
    import torch

Backend: TypeAlias = Literal["torch", "triton"]
BACKENDS: tuple[Backend, ...] = ("torch", "triton")


def chosen(backend: Backend | None, device: torch.device) -> Backend:
    """Return the form that runs for tensors on `device`.

    None: Triton on CUDA devices if it is installed, else torch. "triton" by name also accepts
    tensors in host memory, if TRITON_INTERPRET=1 was set before Triton was imported: it then
    interprets the kernels, slowly. InvalidArgumentError (`backend`) for another name or a device it
    can't serve, MissingDependencyError without Triton.
    """
    if backend is None:
        return "triton" if device.type == "cuda" and find_spec("triton") else "torch"
    if not isinstance(backend, str) or backend not in BACKENDS:
        raise InvalidArgumentError("backend", backend, "None, 'torch' or 'triton'")
    if backend == "triton":
        if find_spec("triton") is None:
            raise MissingDependencyError("triton", "triton", "backend='triton'")
        if device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
            raise InvalidArgumentError(
                "backend", backend, f"'torch' for tensors on {device} (or set TRITON_INTERPRET=1)"
            )
    return backend


def form_of(folder: str, backend: Backend) -> ModuleType:
    """Return the module of a folder in this form; kernels can't be imported without Triton."""
    return import_module(f"{folder}.{'kernels' if backend == 'triton' else 'plain'}")
