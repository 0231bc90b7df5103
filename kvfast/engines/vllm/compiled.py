"""The loops over vLLM's requests, compiled where kvfast's core is."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from kvfast import _build

if TYPE_CHECKING:
    from kvfast.engines.vllm.loops import Chosen, Seats, Taker
else:
    name = "kvfast._compiled.vllm_loops" if _build.is_compiled() else "kvfast.engines.vllm.loops"
    loops = import_module(name)
    Chosen, Seats, Taker = loops.Chosen, loops.Seats, loops.Taker

__all__ = ["Chosen", "Seats", "Taker"]
