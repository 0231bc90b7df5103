"""The results of vLLM's scheduler as plain values, and the first difference of two of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

UNCOMPARED = frozenset(
    {"timestamp", "sampling_params", "ts", "lora_request", "events", "kv_connector_stats"}
)
"""Members that hold times, or the caller's own objects."""
SPECS = ("CPULoadStoreSpec", "GPULoadStoreSpec")
PLAIN = frozenset({*SPECS, "MooncakeConnectorMetadata", "NixlConnectorMetadata"})
"""Objects of vLLM's connectors that compare by identity."""
CLOCKS = frozenset({"scheduler_clock", "reqs_to_send", "heartbeat_by_engine"})
"""Their members that hold times."""


def shown(value: Any) -> Any:
    """Return a value of vLLM's as plain dicts and lists."""
    if type(value).__name__ == "KVCacheEvictionEvent":  # a block's life, which has times alone
        return {"gaps": len(value.reuse_gaps_seconds)}
    if is_dataclass(value) and not isinstance(value, type):
        names = [each.name for each in fields(value) if each.name not in UNCOMPARED]
        return {name: shown(getattr(value, name)) for name in names}
    if hasattr(value, "__struct_fields__"):
        names = [name for name in value.__struct_fields__ if name not in ("timestamp", "ts")]
        return {name: shown(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        return {key: shown(each) for key, each in value.items()}
    if type(value).__name__ in PLAIN:  # neither is a dataclass
        return {key: shown(each) for key, each in vars(value).items() if key not in CLOCKS}
    if isinstance(value, set):
        return sorted(value)
    if type(value).__name__ in ("ndarray", "Tensor"):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [shown(each) for each in value]
    return value


def first_difference(stock: Any, ours: Any, where: str = "") -> str:
    if isinstance(stock, dict) and isinstance(ours, dict) and stock.keys() == ours.keys():
        for key in stock:
            if stock[key] != ours[key]:
                return first_difference(stock[key], ours[key], f"{where}.{key}")
    if isinstance(stock, list) and isinstance(ours, list) and len(stock) == len(ours):
        for place, (one, other) in enumerate(zip(stock, ours, strict=True)):
            if one != other:
                return first_difference(one, other, f"{where}[{place}]")
    return f"{where}: stock {stock!r}, kvfast {ours!r}"
