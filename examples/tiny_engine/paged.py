"""The model's caches in pools of kvfast: what the engine decides is done to memory here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from examples.tiny_engine.model import DTYPE, Model, ModelConfig, attention, one_token_attention
from kvfast.device import PADDING_SLOT, Backend, DeviceStep, DeviceTables, KVPools, PageOperations
from kvspec.config import KVCacheConfig, KVCacheGroup, ManagerConfig
from kvspec.specs import AttentionSpec, FullAttentionSpec, SlidingWindowSpec


def cache_config(model: ModelConfig, num_blocks: int, block_size: int) -> KVCacheConfig:
    """Return a group for each window of the model, full attention being one of them."""
    layers: dict[int | None, list[str]] = {}
    for number, window in enumerate(model.windows):
        layers.setdefault(window, []).append(layer_name(number))
    return KVCacheConfig(
        num_blocks,
        tuple(
            KVCacheGroup(tuple(names), _spec(model, window, block_size))
            for window, names in layers.items()
        ),
    )


def layer_name(number: int) -> str:
    """Return the name of a layer in the configuration of the cache."""
    return f"layer.{number}"


def _spec(model: ModelConfig, window: int | None, block_size: int) -> AttentionSpec:
    heads, size, dtype = model.num_kv_heads, model.head_size, str(DTYPE).removeprefix("torch.")
    if window is None:
        return FullAttentionSpec(block_size, heads, size, dtype)
    return SlidingWindowSpec(block_size, heads, size, dtype, sliding_window=window)


@dataclass(frozen=True)
class Span:
    """A request in a batch: its row in the tables, its tokens of this step, its whole length."""

    row: int
    num_new: int
    num_tokens: int


class PagedModel:
    """A model whose keys and values lie in pools, addressed by tables on the device."""

    def __init__(
        self,
        model: Model,
        config: ManagerConfig,
        *,
        max_requests: int,
        max_tokens: int,
        device: torch.device | str = "cpu",
        backend: Backend | None = None,
    ) -> None:
        self.pools = KVPools(config.kv_cache, device=device)
        self.model = model.to(self.pools.device)
        self.pages = PageOperations(self.pools, backend=backend)
        self.tables = DeviceTables(
            config,
            max_requests=max_requests,
            max_tokens=max_tokens,
            device=self.pools.device,
            backend=backend,
        )
        self._groups = [
            self.pools.layers[layer_name(number)].group for number in range(model.config.num_layers)
        ]

    def logits(self, tokens: Sequence[int], spans: Sequence[Span], step: DeviceStep) -> Tensor:
        """Compute a step: [tokens, vocabulary]. `spans` in the order of the batch."""

        def attend(layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            # The whole batch is written first: one of its requests may hit what another computes.
            slots = step.slots[self._groups[layer]]
            if slots is None:
                raise TypeError(f"layer {layer} has no slots")
            self.pages.write(layer_name(layer), keys, values, slots)
            parts = queries.split([span.num_new for span in spans])
            pairs = zip(parts, spans, strict=True)
            return torch.cat([self._attended(layer, part, span) for part, span in pairs])

        ids = torch.tensor(list(tokens), dtype=torch.int64).to(self.pools.device)
        return self.model.logits(ids, step.positions, attend)

    def next_logits(self, tokens: Tensor, step: DeviceStep) -> Tensor:
        """Compute a step of one token for each place: [places, vocabulary].

        All that is asked lies on the device, and every shape is the same in each step of a run.
        """

        def attend(layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            group = self._groups[layer]
            slots = step.slots[group]
            if slots is None:
                raise TypeError(f"layer {layer} has no slots")
            self.pages.write(layer_name(layer), keys, values, slots)
            return self._attended_by_one(layer, queries, step)

        return self.model.logits(tokens, step.positions, attend)

    def _attended_by_one(self, layer: int, queries: Tensor, step: DeviceStep) -> Tensor:
        """Attend from one token per place to its whole row, with others' slots hidden."""
        group = self._groups[layer]
        size = self.pools.cache.groups[group].spec.block_size
        table = self.tables.table(group)[step.rows.clamp(min=0).long()]
        num, width = table.shape
        at = torch.arange(width * size, device=self.pools.device)
        blocks = table[:, at // size].long()
        has_ended = step.rows[:, None] < 0  # its output is not used: it attends to a 0
        length = step.seq_lens[:, None].clamp(min=1)
        hidden = at >= length
        window = self.model.config.windows[layer]
        if window is not None:
            hidden |= at < length - window
        slots = torch.where(hidden | has_ended, PADDING_SLOT, blocks * size + at % size)
        keys, values = self.pages.gather(layer_name(layer), slots.flatten())
        if values is None:
            raise TypeError(f"layer {layer} has no values")
        shape = (num, width * size, *keys.shape[1:])
        return one_token_attention(queries, keys.view(shape), values.view(shape), hidden)

    def _attended(self, layer: int, queries: Tensor, span: Span) -> Tensor:
        """Attend within one request, to what its window reaches."""
        window = self.model.config.windows[layer]
        first = 0
        if window is not None:
            first = max(0, span.num_tokens - span.num_new - window + 1)
        group = self._groups[layer]
        at = torch.arange(first, span.num_tokens, device=self.pools.device)
        size = self.pools.cache.groups[group].spec.block_size
        blocks = self.tables.table(group)[span.row][at // size]
        keys, values = self.pages.gather(layer_name(layer), blocks * size + at % size)
        return attention(queries, keys, values, first, window)
