"""A small decoder-only transformer with seeded weights; it knows nothing of blocks.

How a token attends to those before it is handed in (`Attend`), so the same layers run over a paged
cache (`paged.py`) and over plain tensors (`recomputed`), which is what the former must equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

DTYPE = torch.float64  # equal results in another order of summation differ by 1e-15, not by 1e-7


@dataclass(frozen=True)
class ModelConfig:
    """Sizes. `windows`: of each layer, the tokens it attends to, itself included; None for all."""

    windows: tuple[int | None, ...] = (None, None)
    vocabulary: int = 97
    width: int = 32
    num_heads: int = 4
    num_kv_heads: int = 2
    head_size: int = 8
    seed: int = 0

    @property
    def num_layers(self) -> int:
        """Layers, each with one cache of keys and values."""
        return len(self.windows)


class Attend(Protocol):
    """Attention of one layer over all tokens of a batch."""

    def __call__(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Attend with queries [tokens, heads, size], keys and values [tokens, kv heads, size].

        Returns [tokens, heads, size].
        """


class Model:
    """Weights, and the way from tokens to logits."""

    def __init__(self, config: ModelConfig) -> None:
        self.config = config
        generator = torch.Generator().manual_seed(config.seed)

        def weights(*shape: int) -> Tensor:
            drawn = torch.randn(shape, generator=generator, dtype=DTYPE)
            return drawn / shape[0] ** 0.5

        width, size = config.width, config.head_size
        self.embedding = torch.randn((config.vocabulary, width), generator=generator, dtype=DTYPE)
        self.head = torch.randn((width, config.vocabulary), generator=generator, dtype=DTYPE)
        self.layers = [
            {
                "q": weights(width, config.num_heads * size),
                "k": weights(width, config.num_kv_heads * size),
                "v": weights(width, config.num_kv_heads * size),
                "o": weights(config.num_heads * size, width),
                "up": weights(width, 2 * width),
                "down": weights(2 * width, width),
            }
            for _ in config.windows
        ]

    def to(self, device: torch.device) -> Model:
        """Move the weights to a device."""
        self.embedding, self.head = self.embedding.to(device), self.head.to(device)
        self.layers = [{k: v.to(device) for k, v in layer.items()} for layer in self.layers]
        return self

    def logits(self, tokens: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Compute a batch's logits [tokens, vocabulary]; int64 `tokens` at `positions`."""
        size = self.config.head_size
        hidden = self.embedding[tokens]
        for number, layer in enumerate(self.layers):
            normed = _normed(hidden)
            queries = _rotated((normed @ layer["q"]).unflatten(1, (-1, size)), positions)
            keys = _rotated((normed @ layer["k"]).unflatten(1, (-1, size)), positions)
            values = (normed @ layer["v"]).unflatten(1, (-1, size))
            hidden = hidden + attend(number, queries, keys, values).flatten(1) @ layer["o"]
            hidden = hidden + torch.tanh(_normed(hidden) @ layer["up"]) @ layer["down"]
        return _normed(hidden) @ self.head


def attention(
    queries: Tensor, keys: Tensor, values: Tensor, first: int, window: int | None
) -> Tensor:
    """Attend causally from the last tokens of one request.

    `queries` [n, heads, size] belong to the last n of the tokens whose keys and values are given,
    [m, kv heads, size], m >= n. `first`: the position of the first of those m. Token p attends to
    the last `window` positions up to p.
    """
    num, total = queries.shape[0], keys.shape[0]
    repeats = queries.shape[1] // keys.shape[1]
    scores = torch.einsum("nhd,mhd->hnm", queries, keys.repeat_interleave(repeats, 1))
    at = torch.arange(first, first + total, device=queries.device)
    distance = at[total - num :, None] - at[None, :]
    hidden = distance < 0
    if window is not None:
        hidden |= distance >= window
    weights = (scores * queries.shape[2] ** -0.5).masked_fill(hidden, -torch.inf).softmax(dim=2)
    return torch.einsum("hnm,mhd->nhd", weights, values.repeat_interleave(repeats, 1))


def one_token_attention(queries: Tensor, keys: Tensor, values: Tensor, hidden: Tensor) -> Tensor:
    """Attend from the last token of each request to padded keys and values.

    `queries` [n, heads, size], `keys` and `values` [n, m, kv heads, size]; `hidden` [n, m]: what
    the request does not attend to.
    """
    repeats = queries.shape[1] // keys.shape[2]
    scores = torch.einsum("nhd,nmhd->nhm", queries, keys.repeat_interleave(repeats, 2))
    scores = (scores * queries.shape[2] ** -0.5).masked_fill(hidden[:, None], -torch.inf)
    return torch.einsum(
        "nhm,nmhd->nhd", scores.softmax(dim=2), values.repeat_interleave(repeats, 2)
    )


def recomputed(model: Model, tokens: Sequence[int]) -> Tensor:
    """Compute the logits of every token of one request, without any cache."""

    def attend(layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        return attention(queries, keys, values, 0, model.config.windows[layer])

    device = model.embedding.device
    ids = torch.tensor(list(tokens), dtype=torch.int64, device=device)
    return model.logits(ids, torch.arange(len(tokens), device=device), attend)


def generated(model: Model, prompt: Sequence[int], num_new_tokens: int) -> tuple[list[int], Tensor]:
    """Return the most likely tokens after a prompt, each computed from scratch, and their
    logits.
    """
    tokens, rows = list(prompt), []
    for _ in range(num_new_tokens):
        rows.append(recomputed(model, tokens)[-1])
        tokens.append(int(rows[-1].argmax()))
    return tokens[len(prompt) :], torch.stack(rows)


def _normed(hidden: Tensor) -> Tensor:
    return hidden * (hidden.square().mean(dim=1, keepdim=True) + 1e-6).rsqrt()


def _rotated(vectors: Tensor, positions: Tensor) -> Tensor:
    """Rotate by position, so that a key in the wrong place gives other scores."""
    half = vectors.shape[2] // 2
    rates = 100.0 ** (-torch.arange(half, dtype=DTYPE, device=vectors.device) / half)
    angles = positions[:, None, None] * rates
    first, second = vectors[..., :half], vectors[..., half:]
    turned = (
        first * angles.cos() - second * angles.sin(),
        second * angles.cos() + first * angles.sin(),
    )
    return torch.cat(turned, dim=2)
