"""The loops over vLLM's requests, compiled where kvfast's core is."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from kvfast import _build

if TYPE_CHECKING:
    from kvfast.engines.vllm.loops import Chosen, Seats
    from kvfast.engines.vllm.taking import Taker
else:
    prefix = "kvfast._compiled.vllm_" if _build.is_compiled() else "kvfast.engines.vllm."
    loops, taking = import_module(f"{prefix}loops"), import_module(f"{prefix}taking")
    Chosen, Seats, Taker = loops.Chosen, loops.Seats, taking.Taker

__all__ = ["Chosen", "Seats", "Taker"]
