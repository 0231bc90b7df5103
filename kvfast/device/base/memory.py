"""The memory of a device: what is free, and how the host's tensors get there."""

from __future__ import annotations

from pathlib import Path

import torch


def free_memory_bytes(device: torch.device) -> int | None:
    """Return the bytes that can be allocated on a device now; None if it can't report them."""
    if device.type == "cuda":
        free: int = torch.cuda.mem_get_info(device)[0]
        # Memory cached by torch counts as free: it is released when there is no other.
        kept: int = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return free + kept
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    available = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return int(available[0]) * 1024 if device.type == "cpu" and available else None


def sent(host: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copy to a CUDA device without waiting for it.

    The copy is made from its own pinned memory: `host` may be overwritten at once, pinned or not.
    """
    own = torch.empty(host.shape, dtype=host.dtype, pin_memory=True)
    own.copy_(host)
    return own.to(device, non_blocking=True)


def on_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return the tensor on the device, copying from host memory without waiting."""
    if tensor.device.type == "cpu" and device.type == "cuda":
        return sent(tensor, device)
    return tensor
