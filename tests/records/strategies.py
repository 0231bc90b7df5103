"""Random specs, configurations and events, of every kind that a record can hold.

Each member is drawn by its type, or by its name if not every value of the type is legal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from hypothesis import strategies as st

from kvcheck.play.random_configs import OTHER_ORDERS
from kvspec.config import (
    HASH_FUNCTIONS,
    KVCacheConfig,
    KVCacheGroup,
    KVCacheTensor,
    ManagerConfig,
    SpecRegistry,
)
from kvspec.errors import KVSpecError
from kvspec.events import AllBlocksCleared, BlockRemoved, BlockStored, Event
from kvspec.planning import AUTO_FIT, PlanningConfig
from kvspec.policy import Policy
from kvspec.specs import (
    DTYPES,
    MAMBA_CACHE_MODES,
    SPEC_TYPES,
    LayerSpec,
    MambaSpec,
    UniformTypeKVCacheSpecs,
)
from tests.lockstep.choices import OTHERS

positive = st.integers(1, 2**53 - 1)
few = st.integers(0, 9)
small = st.integers(1, 64)
names = st.text(max_size=8)
shape = st.lists(st.integers(0, 99), max_size=3).map(tuple)
some_names = st.lists(names, max_size=3).map(tuple)
tokens = st.lists(st.integers(0, 2**31), max_size=4).map(tuple)

BY_TYPE: Mapping[str, st.SearchStrategy[Any]] = {
    **dict.fromkeys(("int", "Natural", "Positive"), positive),
    **dict.fromkeys(("int | None", "Positive | None"), st.none() | positive),
    "bool": st.booleans(),
    "bool | None": st.none() | st.booleans(),
    "str": names,
    "str | None": st.none() | names,
    "float": st.floats(0, 1),
    "bytes": st.binary(max_size=8),
    "tuple[str, ...]": some_names,
    "tuple[int, ...]": tokens,
}
BY_NAME: Mapping[str, st.SearchStrategy[Any]] = {
    **dict.fromkeys(("block_size", "dcp_world_size", "pcp_world_size", "lora_id"), small),
    **dict.fromkeys(("extra_retained_tokens", "num_speculative_blocks", "group", "sink_len"), few),
    "hash_lookahead_tokens": few,
    "source": st.none(),  # records don't hold where an engine keeps tokens
    "dtype": st.sampled_from(DTYPES),
    "mamba_cache_mode": st.sampled_from(MAMBA_CACHE_MODES),
    "hash_function": st.sampled_from(HASH_FUNCTIONS),
    "eviction_order": st.sampled_from(("lru", *OTHER_ORDERS)),
    "trusted_tenants": st.just(True),
    "default_retention": st.sampled_from(("dense", "boundaries")),
    "original_max_model_len_tokens": st.sampled_from((None, AUTO_FIT, 4096)),
    **{name: st.sampled_from((getattr(Policy(), name), other)) for name, other in OTHERS.items()},
}


def made(cls: type[Any], **given: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Draw every member as it is given, by its name or by its type; not what the class refuses."""
    known: Mapping[str, st.SearchStrategy[Any]] = {**BY_NAME, **given}
    members = {
        each.name: known[each.name] if each.name in known else BY_TYPE[str(each.type)]
        for each in fields(cls)
    }
    return st.fixed_dictionaries(members).map(lambda drawn: legal(cls, drawn)).filter(is_there)


def is_there(value: object) -> bool:
    return value is not None


def legal(cls: type[Any], members: Mapping[str, Any]) -> Any:
    try:
        return cls(**members)
    except KVSpecError:
        return None


def specs_of(cls: type[LayerSpec]) -> st.SearchStrategy[LayerSpec]:
    if cls is UniformTypeKVCacheSpecs:
        named = st.dictionaries(names, st.deferred(lambda: plain_specs), min_size=1, max_size=3)
        return made(cls, kv_cache_specs=named.map(lambda found: tuple(found.items())))
    if cls is MambaSpec:
        pairs = st.lists(st.tuples(shape, st.sampled_from(DTYPES)), max_size=3)
        plain = st.tuples(st.sampled_from(MAMBA_CACHE_MODES), st.just(0), st.none())
        inside = st.tuples(st.just("align"), st.just(1), positive)
        return st.tuples(pairs, plain | inside).flatmap(
            lambda drawn: made(
                cls,
                shapes=st.just(tuple(shape for shape, _ in drawn[0])),
                dtypes=st.just(tuple(dtype for _, dtype in drawn[0])),
                mamba_cache_mode=st.just(drawn[1][0]),
                num_prefill_checkpoint_blocks=st.just(drawn[1][1]),
                prefill_checkpoint_alignment=st.just(drawn[1][2]),
            )
        )
    return made(cls)


plain_types = [each for each in SPEC_TYPES if each is not UniformTypeKVCacheSpecs]
plain_specs = st.sampled_from(plain_types).flatmap(specs_of)
specs = st.sampled_from(SPEC_TYPES).flatmap(specs_of)
layers = st.dictionaries(names, specs, max_size=4).map(lambda named: tuple(named.items()))
groups = st.lists(made(KVCacheGroup, spec=specs), max_size=3).map(tuple)
places = ("offset_bytes", "block_stride_bytes")
tensors = st.lists(
    made(KVCacheTensor, **dict.fromkeys(places, st.none()))
    | made(KVCacheTensor, **dict.fromkeys(places, positive)),
    max_size=3,
).map(tuple)
kv_caches = made(KVCacheConfig, groups=groups, tensors=tensors)
policies = st.just(Policy.vllm_0_24()) | made(Policy)
manager_configs = made(
    ManagerConfig, kv_cache=kv_caches, policy=policies, registry=st.just(SpecRegistry())
)
planning_configs = made(PlanningConfig, policy=policies)

extra_key = names | st.binary(max_size=4) | st.tuples(names, st.integers(-99, 99))
extra_keys = st.none() | st.lists(extra_key, max_size=3).map(tuple)


def events(int_hashes: bool) -> st.SearchStrategy[Event]:
    block_hash = st.integers(0, 2**64 - 1) if int_hashes else st.binary(max_size=32)
    hashes = st.lists(block_hash, max_size=3).map(tuple)
    stored = made(
        BlockStored,
        block_hashes=hashes,
        parent_block_hash=st.none() | block_hash,
        extra_keys=st.none() | st.lists(extra_keys, max_size=3).map(tuple),
        lookahead_token_ids=st.none() | st.lists(tokens, max_size=3).map(tuple),
    )
    return stored | made(BlockRemoved, block_hashes=hashes) | st.just(AllBlocksCleared())
