"""The options of a replay, and the manager built from them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from math import lcm
from typing import Any

from kvcheck.tools.replay.policies import REPLAYED
from kvcheck.tools.replay.trace import TraceRecord
from kvspec.config import KVCacheConfig, KVCacheGroup, ManagerConfig
from kvspec.domains import numbered
from kvspec.errors import InvalidArgumentError
from kvspec.specs import FullAttentionSpec

ARRIVALS: tuple[str, ...] = ("ignore", "timestamp")


@dataclass(frozen=True)
class ReplayOptions:
    """The options that affect the report.

    `num_blocks` includes the null block. `block_size` is in tokens. `arrival`: `ignore` queues all
    requests at once, `timestamp` when the clock, which advances `step_ms` a step, reaches their
    time. `num_host_blocks`: of a tier behind the pool (KV-TIER-1 …); 0 for none.
    `policy`: the manager's order of eviction (KV-ORD-1), as in `whatif`, so `ttl` counts seconds.
    """

    num_blocks: int
    block_size: int
    max_tokens_per_step: int = 8_192
    max_running: int = 256
    arrival: str = "ignore"
    step_ms: int = 25
    num_host_blocks: int = 0
    policy: str = "lru"

    def __post_init__(self) -> None:
        minimum = {"num_blocks": 2, "num_host_blocks": 0}
        for name, value in self._numbers().items():
            if name in ("arrival", "policy"):
                continue
            least = minimum.get(name, 1)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise InvalidArgumentError(name, value, f"an int of at least {least}")
        if self.arrival not in ARRIVALS:
            raise InvalidArgumentError("arrival", self.arrival, "one of " + ", ".join(ARRIVALS))
        numbered("--policy", self.policy, REPLAYED, error=InvalidArgumentError)
        if self.num_steps_to_live and self.arrival != "timestamp":
            raise InvalidArgumentError("--policy", self.policy, "ttl with --arrival timestamp")

    def _numbers(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in fields(ReplayOptions)}

    def to_json(self) -> dict[str, Any]:
        """Return the options as the report has them."""
        return self._numbers()

    @property
    def max_model_len_tokens(self) -> int:
        """Slots of the whole pool; a request that needs more can never run."""
        return (self.num_blocks - 1) * self.block_size

    @property
    def step_multiple(self) -> int:
        """Tokens to whose multiples a prompt's steps are cut."""
        return 1

    def too_long(self, num_tokens: int, lengths: str) -> str:
        """Return what a request needs that can never run. `lengths`: its own, in words."""
        blocks = -(-num_tokens // self.block_size)
        return (
            f"{blocks} blocks of {self.block_size} tokens ({lengths}), the pool has"
            f" {self.num_blocks - 1}; use --num-blocks {blocks + 1} or more"
        )

    @property
    def num_steps_to_live(self) -> int:
        """Steps that `ttl` lasts; 0 under other policies."""
        name, _, seconds = self.policy.partition(":")
        return max(1, 1000 * int(seconds) // self.step_ms) if name == "ttl" else 0

    def manager_config(self) -> ManagerConfig:
        """Return one full-attention group, with caching, events and statistics, hash seed "0"."""
        spec = FullAttentionSpec(self.block_size, num_kv_heads=1, head_size=1, dtype="float16")
        group = KVCacheGroup(layer_names=("layer.0",), spec=spec)
        return ManagerConfig(
            kv_cache=KVCacheConfig(num_blocks=self.num_blocks, groups=(group,)),
            max_model_len_tokens=self.max_model_len_tokens,
            scheduler_block_size_tokens=self.block_size,
            hash_block_size_tokens=self.block_size,
            max_num_batched_tokens=self.max_tokens_per_step,
            enable_caching=True,
            log_stats=True,
            enable_events=True,
            hash_function="sha256_cbor",
            hash_seed="0",
            eviction_order=f"ttl:{ttl}" if (ttl := self.num_steps_to_live) else self.policy,
        )


@dataclass(frozen=True)
class Layout:
    """The groups of a model's layers as planned for some memory, and the longest request.

    `block_size`: tokens to whose multiples hits end; `hash_block_size`: those of a hash.
    `most_tokens`: of the longest request that the model reads, and `max_model_len_tokens` in this
    memory.
    """

    model: str
    memory_gib: float
    kv_cache: KVCacheConfig
    block_size: int
    hash_block_size: int
    most_tokens: int
    max_model_len_tokens: int

    @property
    def kinds(self) -> tuple[str, ...]:
        """The groups in words, each kind once."""
        found = []
        for spec in (group.spec for group in self.kv_cache.groups):
            reach = spec.window_tokens or spec.chunk_tokens
            kind = spec.kind.replace("_", " ")
            found.append(f"{kind} of {reach:,} tokens" if reach else kind)
        return tuple(sorted(set(found)))

    @property
    def step_multiple(self) -> int:
        """Tokens at whose multiples a step must end for states to be kept (mode align)."""
        specs = [group.spec for group in self.kv_cache.groups]
        return lcm(*(spec.block_size for spec in specs if spec.is_aligned))


class Readable:
    """The requests that a model reads at all: an engine refuses the others."""

    def __init__(self, records: Iterable[TraceRecord], layout: Layout) -> None:
        self._records, self._layout = records, layout
        self._num_longer = 0

    def __iter__(self) -> Iterator[TraceRecord]:
        for record in self._records:
            if record.needed_length <= self._layout.most_tokens:
                yield record
            else:
                self._num_longer += 1

    @property
    def notes(self) -> tuple[str, ...]:
        """A note if some requests were left out; complete once all are read."""
        if not self._num_longer:
            return ()
        most = f"the {self._layout.most_tokens:,} tokens that {self._layout.model} reads"
        return (f"longer than {most}, and left out: {self._num_longer:,} requests",)


@dataclass(frozen=True, kw_only=True)
class ModelOptions(ReplayOptions):
    """A replay through all groups of a model; `num_blocks` and `block_size` are the layout's."""

    layout: Layout

    @classmethod
    def of(cls, layout: Layout, **rest: Any) -> ModelOptions:
        """Return the options of a replay through this layout's pool."""
        num_blocks = layout.kv_cache.num_blocks
        return cls(num_blocks, layout.block_size, layout=layout, **rest)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_tokens_per_step < self.step_multiple:
            allowed = f"at least {self.step_multiple}: states are kept where a block ends"
            raise InvalidArgumentError("max_tokens_per_step", self.max_tokens_per_step, allowed)

    def to_json(self) -> dict[str, Any]:
        """Return the options as the report has them."""
        return {
            **super().to_json(),
            "model": self.layout.model,
            "memory_gib": self.layout.memory_gib,
            "groups": list(self.layout.kinds),
        }

    @property
    def max_model_len_tokens(self) -> int:
        """The longest request that the model reads and the memory holds."""
        return self.layout.max_model_len_tokens

    @property
    def step_multiple(self) -> int:
        """Tokens to whose multiples a prompt's steps are cut."""
        return self.layout.step_multiple

    def too_long(self, num_tokens: int, lengths: str) -> str:
        """Return what a request needs that can never run. `lengths`: its own, in words."""
        most, memory = self.max_model_len_tokens, self.layout.memory_gib
        return (
            f"{num_tokens:,} tokens ({lengths}); {self.layout.model} reads at most {most:,}"
            f" with {memory:g} GiB"
        )

    def manager_config(self) -> ManagerConfig:
        """Return the model's groups, otherwise as for one of full attention."""
        return replace(
            super().manager_config(),
            kv_cache=replace(self.layout.kv_cache, tensors=()),
            hash_block_size_tokens=self.layout.hash_block_size,
        )
