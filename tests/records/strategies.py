"""Random specs, configurations and events, of every kind that a record can hold."""

from __future__ import annotations

from hypothesis import strategies as st

from kvspec.config import HASH_FUNCTIONS, KVCacheConfig, KVCacheGroup, KVCacheTensor, ManagerConfig
from kvspec.events import AllBlocksCleared, BlockRemoved, BlockStored, Event
from kvspec.planning import AUTO_FIT, PlanningConfig
from kvspec.policy import Policy
from kvspec.specs import (
    DTYPES,
    MAMBA_CACHE_MODES,
    SPEC_TYPES,
    AttentionSpec,
    FullAttentionSpec,
    LayerSpec,
    MambaSpec,
    SinkFullAttentionSpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)

positive = st.integers(1, 2**53 - 1)
small = st.integers(1, 64)
maybe = st.none() | positive
names = st.text(max_size=8)
dtypes = st.sampled_from(DTYPES)


def specs_of(cls: type[LayerSpec]) -> st.SearchStrategy[LayerSpec]:
    if cls is UniformTypeKVCacheSpecs:
        named = st.dictionaries(names, st.deferred(_plain_specs), min_size=1, max_size=3)
        return st.builds(_uniform, small, named)
    members: dict[str, st.SearchStrategy[object]] = {"block_size": small}
    if cls is MambaSpec:
        shape = st.lists(st.integers(0, 99), max_size=3).map(tuple)
        return st.lists(st.tuples(shape, dtypes), max_size=3).flatmap(
            lambda pairs: st.builds(
                MambaSpec,
                block_size=small,
                shapes=st.just(tuple(shape for shape, _ in pairs)),
                dtypes=st.just(tuple(dtype for _, dtype in pairs)),
                page_size_padded=maybe,
                mamba_type=names,
                mamba_cache_mode=st.sampled_from(MAMBA_CACHE_MODES),
                num_speculative_blocks=st.integers(0, 9),
            )
        )
    if issubclass(cls, AttentionSpec):
        members |= {
            "num_kv_heads": positive,
            "head_size": positive,
            "dtype": dtypes,
            "kv_quant_mode": names,
            "page_size_padded": maybe,
            "indexes_kv_by_block_stride": st.booleans(),
        }
    fields = cls.__dataclass_fields__
    if issubclass(cls, FullAttentionSpec):
        members |= {"sliding_window": maybe, "attention_chunk_size": maybe}
        members |= {"head_size_v": maybe, "non_causal": st.booleans()}
    elif issubclass(cls, SlidingWindowSpec):
        members |= {"sliding_window": positive, "head_size_v": maybe}
    elif "attention_chunk_size" in fields:
        members |= {"attention_chunk_size": positive}
    if "cache_dtype_str" in fields:
        members |= {"cache_dtype_str": st.none() | names, "model_version": st.none() | names}
        members |= {"alignment": maybe, "compress_ratio": positive}
    if "rswa_window" in fields:
        members |= {"rswa_window": positive}
    if "extra_retained_tokens" in fields:
        members |= {"extra_retained_tokens": st.integers(0, 9)}
    if "tq_slot_size" in fields:
        members |= {"tq_slot_size": st.integers(0, 99)}
    if cls is SinkFullAttentionSpec:
        members |= {"block_size": st.sampled_from((1, 2, 4)), "sink_len": st.sampled_from((0, 4))}
    return st.builds(cls, **members)


def _uniform(block_size: int, named: dict[str, LayerSpec]) -> UniformTypeKVCacheSpecs:
    return UniformTypeKVCacheSpecs(block_size, tuple(named.items()))


def _plain_specs() -> st.SearchStrategy[LayerSpec]:
    return st.sampled_from(PLAIN_TYPES).flatmap(specs_of)


PLAIN_TYPES = tuple(cls for cls in SPEC_TYPES if cls is not UniformTypeKVCacheSpecs)
specs = st.sampled_from(SPEC_TYPES).flatmap(specs_of)
layers = st.dictionaries(names, specs, max_size=4).map(lambda named: tuple(named.items()))
groups = st.lists(
    st.builds(KVCacheGroup, st.lists(names, max_size=3).map(tuple), specs, st.booleans()),
    max_size=3,
).map(tuple)

unpacked_tensors = st.builds(
    KVCacheTensor, st.integers(0, 2**50), st.lists(names, max_size=3).map(tuple)
)
packed_tensors = st.builds(
    KVCacheTensor,
    st.integers(0, 2**50),
    st.lists(names, max_size=3).map(tuple),
    st.integers(0, 2**50),
    positive,
)
tensors = st.lists(unpacked_tensors | packed_tensors, max_size=3).map(tuple)
kv_caches = st.builds(KVCacheConfig, st.integers(0, 2**40), groups, tensors)

policies = st.builds(
    Policy,
    unhashed_freed_to=st.sampled_from(("front", "back")),
    removed_event_per=st.sampled_from(("copy", "last_copy")),
    chunked_null_prefix_is_hit=st.booleans(),
    capacity_counts_null_block=st.booleans(),
    chunk_must_align=st.booleans(),
    exact_block_ids=st.booleans(),
    extra_keys=st.sampled_from(("tagged", "plain")),
)
manager_configs = st.builds(
    ManagerConfig,
    kv_cache=st.builds(KVCacheConfig, positive, groups, tensors),
    max_model_len_tokens=positive,
    scheduler_block_size_tokens=maybe,
    hash_block_size_tokens=maybe,
    max_num_batched_tokens=maybe,
    enable_caching=st.booleans(),
    use_eagle=st.booleans(),
    log_stats=st.booleans(),
    enable_events=st.booleans(),
    int_event_hashes=st.booleans(),
    dcp_world_size=small,
    pcp_world_size=small,
    watermark=st.floats(0, 1),
    retention_interval_tokens=st.none() | st.integers(-5, 2**40),
    hash_function=st.sampled_from(HASH_FUNCTIONS),
    trusted_tenants=st.just(True),
    hash_seed=st.none() | names,
    residency_sample_rate=st.floats(0, 1),
    policy=st.just(Policy.vllm_0_24()) | policies,
)
planning_configs = st.builds(
    PlanningConfig,
    max_model_len_tokens=positive,
    max_num_batched_tokens=positive,
    original_max_model_len_tokens=st.sampled_from((None, AUTO_FIT, 4096)),
    max_encoder_tokens=st.integers(0, 2**40),
    dcp_world_size=small,
    pcp_world_size=small,
    disable_hybrid=st.booleans(),
    num_blocks_override=maybe,
    mamba_cache_mode=st.sampled_from(MAMBA_CACHE_MODES),
    block_size=small,
    hash_block_size=maybe,
    enable_caching=st.booleans(),
    has_connector=st.booleans(),
    packed_layout=st.booleans(),
    use_eagle=st.none() | st.booleans(),
    policy=st.just(Policy.vllm_0_24()) | policies,
)

extra_key = names | st.binary(max_size=4) | st.tuples(names, st.integers(-99, 99))
extra_keys = st.none() | st.lists(extra_key, max_size=3).map(tuple)


def events(int_hashes: bool) -> st.SearchStrategy[Event]:
    block_hash = st.integers(0, 2**64 - 1) if int_hashes else st.binary(max_size=32)
    hashes = st.lists(block_hash, max_size=3).map(tuple)
    stored = st.builds(
        BlockStored,
        block_hashes=hashes,
        parent_block_hash=st.none() | block_hash,
        token_ids=st.lists(st.integers(0, 2**31), max_size=4).map(tuple),
        block_size_tokens=small,
        lora_id=st.none() | small,
        lora_name=st.none() | names,
        medium=names,
        extra_keys=st.none() | st.lists(extra_keys, max_size=3).map(tuple),
        group=st.integers(0, 9),
        spec_kind=names,
        sliding_window_tokens=st.none() | small,
    )
    removed = st.builds(BlockRemoved, hashes, names, st.integers(0, 9))
    return stored | removed | st.just(AllBlocksCleared())
