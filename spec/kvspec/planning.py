"""Planning: from layer specs and memory to a cache layout (KV-PLAN-*).

Values and the protocol only. All functions are pure: no input is changed. Sizes are bytes, lengths
tokens. `layers` is an ordered tuple of (layer name, spec).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Protocol, TypeAlias, runtime_checkable

from kvspec.config import KVCacheConfig, KVCacheGroup
from kvspec.domains import Natural, Positive, check_members
from kvspec.policy import Policy
from kvspec.specs import MAMBA_CACHE_MODES, LayerSpec, UniformTypeKVCacheSpecs

Layers: TypeAlias = tuple[tuple[str, LayerSpec], ...]

AUTO_FIT = -1
"""`original_max_model_len_tokens` that asks for the longest length that fits."""


@dataclass(frozen=True)
class PlanningConfig:
    """The engine settings that planning reads.

    - `original_max_model_len_tokens`: what the user asked for; AUTO_FIT for "as long as fits".
    - `num_blocks_override`: this many blocks, whatever the memory.
    - `block_size`, `hash_block_size`: the configured cache block size and hash block size.
    - `use_eagle`: None without speculative decoding.
    - `packed_layout`: one packed tensor layout across groups (`enable_cross_layers_blocks`).
    """

    max_model_len_tokens: Positive
    max_num_batched_tokens: Positive
    original_max_model_len_tokens: int | None = None
    max_encoder_tokens: Natural = 0
    dcp_world_size: Positive = 1
    pcp_world_size: Positive = 1
    disable_hybrid: bool = False
    num_blocks_override: Positive | None = None
    mamba_cache_mode: Annotated[str, MAMBA_CACHE_MODES] = "none"
    block_size: Positive = 16
    hash_block_size: Positive | None = None
    enable_caching: bool = True
    has_connector: bool = False
    packed_layout: bool = False
    use_eagle: bool | None = None
    policy: Policy = field(default_factory=Policy)

    def __post_init__(self) -> None:
        check_members(self)


@dataclass(frozen=True)
class SpecProperties:
    """Values that follow from a spec: bytes per page, and most blocks or bytes of one request.

    Members that do not apply to the spec's type are None. `normalized_spec` is the spec with the
    padding that follows from its alignment filled in (KV-PLAN-1).
    """

    page_size_bytes: int
    real_page_size_bytes: int | None
    storage_block_size: int
    max_memory_usage_bytes: int
    max_admission_blocks_per_request: int | None
    kind: str
    sliding_window_tokens: int | None
    normalized_spec: LayerSpec


@dataclass(frozen=True)
class Plan:
    """One layout per worker, and the model length after automatic fitting."""

    configs: tuple[KVCacheConfig, ...]
    max_model_len_tokens: int
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Capacity:
    """Tokens that fit at full length, and how many such requests at once."""

    num_tokens: int
    max_concurrency: float


@dataclass(frozen=True)
class BlockSizes:
    """Alignment of hits, and tokens per block hash."""

    scheduler_block_size_tokens: int
    hash_block_size_tokens: int


@runtime_checkable
class Planner(Protocol):
    """The planning functions; they raise ConfigError if no plan exists."""

    def spec_properties(self, spec: LayerSpec, config: PlanningConfig) -> SpecProperties:
        """Compute what `spec` implies under `config` (KV-PLAN-1)."""

    def merge(self, specs: Sequence[LayerSpec]) -> LayerSpec:
        """Return the one spec of a group with these layers (KV-PLAN-2)."""

    def is_uniform(self, layers: Layers) -> bool:
        """Return whether all layers can be merged into one group."""

    def uniform_type(self, layers: Layers) -> UniformTypeKVCacheSpecs | None:
        """Return all layers as one group of one type with different sizes, or None."""

    def unify_hybrid(self, layers: Layers) -> Layers:
        """Turn windowed layers into full attention, for engines without hybrid support."""

    def unify_page_size(self, layers: Layers) -> Layers:
        """Return layers with equal page sizes: block sizes grown, or pages padded."""

    def groups(self, layers: Layers, config: PlanningConfig) -> tuple[KVCacheGroup, ...]:
        """Return the groups of a model (KV-PLAN-5)."""

    def max_memory_usage_bytes(self, layers: Layers, config: PlanningConfig) -> int:
        """Return the most bytes that one request of full length needs."""

    def estimate_max_model_len(
        self, layers: Layers, config: PlanningConfig, available_memory_bytes: int
    ) -> int:
        """Return the longest length that fits, at most the configured one; 0 if none."""

    def check_enough_memory(
        self, layers: Layers, config: PlanningConfig, available_memory_bytes: int
    ) -> None:
        """Raise ConfigError unless one request of full length fits (KV-PLAN-9)."""

    def config_from_groups(
        self,
        groups: tuple[KVCacheGroup, ...],
        config: PlanningConfig,
        available_memory_bytes: int,
    ) -> KVCacheConfig:
        """Return blocks and tensors for these groups."""

    def plan(
        self,
        workers: tuple[Layers, ...],
        config: PlanningConfig,
        available_memory_bytes: tuple[int, ...],
    ) -> Plan:
        """Plan from each worker's layers and memory to its layout."""

    def scheduler_config(self, configs: tuple[KVCacheConfig, ...]) -> KVCacheConfig:
        """Return the single layout that a scheduler uses."""

    def max_concurrency(self, kv_cache: KVCacheConfig, config: PlanningConfig) -> float:
        """Return how many requests of full length fit at once."""

    def capacity(self, kv_cache: KVCacheConfig, config: PlanningConfig) -> Capacity:
        """Return the tokens and requests that the layout can hold."""

    def block_sizes(self, kv_cache: KVCacheConfig, config: PlanningConfig) -> BlockSizes:
        """Return the scheduler and hash block sizes (KV-CFG-4, KV-CFG-5)."""
