"""The options of a replay, and the manager built from them."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from kvspec.config import KVCacheConfig, KVCacheGroup, ManagerConfig
from kvspec.errors import InvalidArgumentError
from kvspec.specs import FullAttentionSpec

ARRIVALS: tuple[str, ...] = ("ignore", "timestamp")


@dataclass(frozen=True)
class ReplayOptions:
    """The options that affect the report.

    `num_blocks` includes the null block. `block_size` is in tokens. `arrival`: `ignore` queues all
    requests at once, `timestamp` when the clock, which advances `step_ms` a step, reaches their
    time.
    """

    num_blocks: int
    block_size: int
    max_tokens_per_step: int = 8_192
    max_running: int = 256
    arrival: str = "ignore"
    step_ms: int = 25

    def __post_init__(self) -> None:
        minimum = {"num_blocks": 2}
        for name, value in asdict(self).items():
            if name == "arrival":
                continue
            least = minimum.get(name, 1)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise InvalidArgumentError(name, value, f"an int of at least {least}")
        if self.arrival not in ARRIVALS:
            raise InvalidArgumentError("arrival", self.arrival, "one of " + ", ".join(ARRIVALS))

    @property
    def max_model_len_tokens(self) -> int:
        """Slots of the whole pool; a request that needs more can never run."""
        return (self.num_blocks - 1) * self.block_size

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
        )
