"""The configuration of a manager: groups, pool size, and options (KV-CFG-2 …).

Members are checked one by one here. Conditions on several of them (block sizes that must divide one
another, retention that needs a windowed group) are checked in `Implementation.create`, separately
by each implementation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Annotated, Any

from kvspec.domains import Natural, Positive, check_members, int_at_least, is_int, numbered, text
from kvspec.errors import ConfigError
from kvspec.policy import Policy
from kvspec.specs import LayerSpec

HASH_FUNCTIONS: tuple[str, ...] = ("sha256_cbor", "sha256_cbor_64bit", "xxhash_cbor")
WEAK_HASHES: tuple[str, ...] = ("sha256_cbor_64bit", "xxhash_cbor")
"""Different prompts with equal hashes can be made on purpose (KV-HASH-11, KV-HASH-12)."""

GIVEN_HASHES: Mapping[str, int] = {"given_8": 8, "given_16": 16, "given_32": 32}
"""Functions whose hashes the engine gives, with their bytes: it keeps the tokens (KV-HASH-13)."""


class _Unnamed(Enum):
    NOT_NAMED = "what the policy says"


NOT_NAMED: Any = _Unnamed.NOT_NAMED
"""In the place of a member: it is taken from the policy. No configuration holds it once made."""

ORDERS: tuple[str, ...] = ("lru", "priority", "lfu", "pin:USES", "ttl:STEPS")
"""Orders of eviction (KV-ORD-1), and what the number behind a colon counts."""

_WEAK = "prompts with equal hashes can be made on purpose; if tenants differ, use sha256_cbor"


@dataclass(frozen=True)
class KVCacheTensor:
    """One raw allocation: its bytes, the layers that share it, and where it lies when packed.

    `offset_bytes` and `block_stride_bytes` are set only in the packed layout.
    """

    size_bytes: int
    shared_by: tuple[str, ...]
    offset_bytes: int | None = None
    block_stride_bytes: int | None = None


@dataclass(frozen=True)
class KVCacheGroup:
    """Layers that share one block table.

    `is_eagle_group`: hits of this group drop their last block, which a drafting head recomputes.
    """

    layer_names: tuple[str, ...]
    spec: LayerSpec
    is_eagle_group: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.spec, LayerSpec):
            raise ConfigError("spec", self.spec, "a LayerSpec")
        check_members(self)


@dataclass(frozen=True)
class KVCacheConfig:
    """The layout of the cache: a pool of `num_blocks` blocks (block 0 is null), and its groups.

    Planning returns 0 blocks if the memory holds none; a manager needs at least one. `tensors` may
    be empty for a manager: only planning and the device plane read them.
    """

    num_blocks: Natural
    groups: tuple[KVCacheGroup, ...]
    tensors: tuple[KVCacheTensor, ...] = ()

    def __post_init__(self) -> None:
        check_members(self)
        if not isinstance(self.groups, tuple):
            raise ConfigError("groups", self.groups, "a tuple of KVCacheGroup")
        for group in self.groups:
            if not isinstance(group, KVCacheGroup):
                raise ConfigError("groups", group, "a KVCacheGroup")


@dataclass(frozen=True)
class CustomSpec:
    """A spec class from outside the contract, and the built-in spec it is managed as.

    Example: a ring-attention layer whose blocks behave as full attention:
    `CustomSpec(RingSpec, lambda s: FullAttentionSpec(s.block_size, 1, 1, "float16"))`.
    """

    spec_type: type[LayerSpec]
    managed_as: Callable[[LayerSpec], LayerSpec]


@dataclass(frozen=True)
class SpecRegistry:
    """The custom specs of one configuration; nothing about them is global."""

    custom: tuple[CustomSpec, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.custom, tuple):
            raise ConfigError("custom", self.custom, "a tuple of CustomSpec")
        for entry in self.custom:
            if not isinstance(entry, CustomSpec):
                raise ConfigError("custom", entry, "a CustomSpec")

    def resolve(self, spec: LayerSpec) -> LayerSpec:
        """Return the built-in spec that `spec` is managed as, by default itself.

        ConfigError if the entry of its type returns no spec.
        """
        for entry in self.custom:
            if type(spec) is entry.spec_type:
                found = entry.managed_as(spec)
                if not isinstance(found, LayerSpec):
                    raise ConfigError("managed_as", found, "a function that returns a spec")
                return found
        return spec


@dataclass(frozen=True)
class ManagerConfig:
    """Everything a manager needs; frozen, comparable, writable as a record.

    - `max_model_len_tokens`: longest sequence; slots beyond it are never allocated.
    - `scheduler_block_size_tokens`: alignment of hits. None: derived (KV-CFG-4).
    - `hash_block_size_tokens`: tokens per block hash. None: derived (KV-CFG-5).
    - `max_num_batched_tokens`: most tokens computed in one step; bounds the admission size of
      windowed groups. None: `max_model_len_tokens`.
    - `enable_caching`: prefix caching. Off: requests have no hashes, no look-up ever hits.
    - `use_eagle`: drafting by a head that needs the last block recomputed. When no group is
      flagged, all are. Flags count even when this is off.
    - `int_event_hashes`: events show hashes as their low 64 bits instead of bytes.
    - `dcp_world_size`, `pcp_world_size`: context parallelism; a block then covers
      `block_size * dcp * pcp` tokens.
    - `watermark`: fraction of the pool kept free when requests are admitted while others run.
    - `retention_interval_tokens`: None keeps every reusable block of windowed and Mamba groups;
      0 only the tail before the replay boundary; k also one tail per k tokens. Not named: that
      of the policy (KV-POL-26). The configuration holds None or an int from then on, so
      `dataclasses.replace(config, policy=…)` keeps it, unless NOT_NAMED is given beside it.
    - `hash_function`: `sha256_cbor`, or one of the weaker `sha256_cbor_64bit` and `xxhash_cbor`; or
      `given_8`, `given_16`, `given_32`, if the engine keeps tokens and hashes (KV-HASH-13). Under
      those a client can make two prompts with equal hashes, whatever the seed; the second then uses
      the keys and values of the first (KV-HASH-11, KV-HASH-12).
    - `trusted_tenants`: True declares that no client would do that. Without it the
      weaker functions are refused.
    - `hash_seed`: text that makes the first parent hash reproducible. None: random per manager.
    - `hash_lookahead_tokens`: tokens after a block that its hash also covers. Above 0 no group
      drops a block, whatever is flagged (KV-HASH-14).
    - `residency_sample_rate`: share of allocations whose block is timed, 0 … 1 (KV-STAT-6).
    - `eviction_order`: which cached blocks are evicted first: `lru`, `pin:3` (KV-ORD-1).
    """

    kv_cache: KVCacheConfig
    max_model_len_tokens: Positive
    scheduler_block_size_tokens: Positive | None = None
    hash_block_size_tokens: Positive | None = None
    max_num_batched_tokens: Positive | None = None
    enable_caching: bool = True
    use_eagle: bool = False
    log_stats: bool = False
    enable_events: bool = False
    int_event_hashes: bool = False
    dcp_world_size: Positive = 1
    pcp_world_size: Positive = 1
    watermark: float = 0.0
    retention_interval_tokens: int | None = NOT_NAMED
    hash_function: Annotated[str, (*HASH_FUNCTIONS, *GIVEN_HASHES)] = "sha256_cbor"
    hash_seed: str | None = None
    residency_sample_rate: float = 0.0
    policy: Policy = field(default_factory=Policy)
    registry: SpecRegistry = field(default_factory=SpecRegistry)
    trusted_tenants: bool = False
    hash_lookahead_tokens: Natural = 0
    eviction_order: str = "lru"

    def __post_init__(self) -> None:
        if not isinstance(self.kv_cache, KVCacheConfig):
            raise ConfigError("kv_cache", self.kv_cache, "a KVCacheConfig")
        int_at_least("num_blocks", self.kv_cache.num_blocks, 1)
        check_members(self)
        _fraction("watermark", self.watermark)
        _fraction("residency_sample_rate", self.residency_sample_rate)
        if not isinstance(self.policy, Policy):
            raise ConfigError("policy", self.policy, "a Policy")
        interval: object = self.retention_interval_tokens
        if interval is NOT_NAMED:
            interval = self.policy.default_interval_tokens
            object.__setattr__(self, "retention_interval_tokens", interval)
        if interval is not None and not is_int(interval):
            raise ConfigError("retention_interval_tokens", interval, "an int or None")
        if self.hash_function in WEAK_HASHES and not self.trusted_tenants:
            raise ConfigError("trusted_tenants", False, f"True with {self.hash_function}: {_WEAK}")
        if self.hash_seed is not None:
            text("hash_seed", self.hash_seed)
        if not isinstance(self.registry, SpecRegistry):
            raise ConfigError("registry", self.registry, "a SpecRegistry")
        numbered("eviction_order", self.eviction_order, ORDERS)

    @property
    def order(self) -> tuple[str, int]:
        """Name of the order of eviction, and its number; 0 for one without."""
        form, number = numbered("eviction_order", self.eviction_order, ORDERS)
        return form.partition(":")[0], number

    @property
    def given_hash_bytes(self) -> int:
        """Bytes of the hashes that the engine gives; 0 where they are computed (KV-HASH-13)."""
        return GIVEN_HASHES.get(self.hash_function, 0)

    @cached_property
    def managed_specs(self) -> tuple[LayerSpec, ...]:
        """Built-in spec that each group is managed as, resolved once (KV-CFG-9)."""
        return tuple(self.registry.resolve(group.spec) for group in self.kv_cache.groups)


def span_tokens(config: ManagerConfig, group: int) -> int:
    """Return the number of tokens that a block of the group covers (KV-FULL-5)."""
    size = config.managed_specs[group].block_size
    return size * config.dcp_world_size * config.pcp_world_size


def _fraction(name: str, value: object) -> None:
    """Raise ConfigError unless `value` is a number in 0 … 1."""
    if type(value) not in (int, float) or not 0 <= value <= 1:  # type: ignore[operator]  # a number
        raise ConfigError(name, value, "a number in 0 … 1")
