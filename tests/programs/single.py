"""Stories of one full-attention group: pool, hits, admission, release."""

from __future__ import annotations

from typing import Any

from kvcheck.play.illegal_operations import ILLEGAL_OPERATIONS
from kvcheck.play.steps import (
    Admit,
    Arrive,
    Ask,
    Break,
    Evict,
    FinishLoad,
    NewStep,
    Program,
    Release,
    Reset,
    ReturnPopped,
    Run,
    Step,
    Take,
)
from kvspec.config import KVCacheConfig, KVCacheGroup, ManagerConfig
from kvspec.interface import Feature
from kvspec.specs import FullAttentionSpec, LayerSpec


def configure(num_blocks: int, *specs: LayerSpec, **options: Any) -> ManagerConfig:
    """A pool of `num_blocks` blocks for groups of these specs, everything watched."""
    groups = tuple(KVCacheGroup((f"layer.{i}",), spec) for i, spec in enumerate(specs))
    usual: dict[str, Any] = {
        "max_model_len_tokens": 64,
        "enable_events": True,
        "log_stats": True,
        "hash_seed": "0",
    }
    return ManagerConfig(KVCacheConfig(num_blocks, groups), **{**usual, **options})


def full(block_size: int = 2) -> FullAttentionSpec:
    """A small full-attention layer."""
    return FullAttentionSpec(block_size, 1, 8, "float16")


def story(name: str, rules: tuple[str, ...], config: ManagerConfig, *steps: Step) -> Program:
    """A directed program."""
    return Program(config, steps, name=name, rules=rules)


A = (1, 2, 3, 4, 5)
B = (1, 2, 3, 4, 9)
C = (7, 7, 7, 7, 7)
LONG = tuple(range(1, 14))
CFG = configure(8, full())


SINGLE_SCENARIOS: tuple[Program, ...] = (
    story("blocks come from the front of the queue", ("KV-POOL-2", "KV-POOL-3"), CFG,
          Arrive(A), Admit(), Ask(), Arrive(C), Admit(), Ask()),
    story("equal blocks after unequal prefixes are not equal", ("KV-HASH-1",), CFG,
          Arrive((1, 1, 5)), Arrive((2, 2, 3, 3, 5)), Arrive((1, 1, 3, 3, 5)),
          Admit(), Admit(), Admit()),
    story("who computed what another had cached keeps what it reads", ("KV-HASH-1",), CFG,
          Arrive(A), Arrive(A), Arrive(C), Admit(), Admit(look_up=False), Run(who=1), Admit(),
          Run(who=1), Run(who=1)),
    story("decoding takes a block when one is full", ("KV-GRP-3", "KV-GRP-7"), CFG,
          Arrive((1, 2, 3)), Admit(), Run(), Run(), Run(), Run(), Ask()),
    story("a second request shares the prefix", ("KV-FULL-2", "KV-POOL-5", "KV-GRP-5"), CFG,
          Arrive(A), Admit(), Arrive(B), Admit(), Ask(who=1), Run(who=1), Release(), Run()),
    story("a freed prefix is revived", ("KV-POOL-5", "KV-GRP-4", "KV-POOL-6"), CFG,
          Arrive(A), Admit(), Release(), Arrive(A), Admit(), Ask(), Release()),
    story("the last token is always computed", ("KV-MGR-1",), CFG,
          Arrive((1, 2, 3, 4)), Admit(), Release(), Arrive((1, 2, 3, 4)), Admit(), Ask()),
    story("unhashed blocks go to the front, hashed to the back", ("KV-POOL-6", "KV-POOL-8"), CFG,
          Arrive(LONG[:5]), Admit(), Arrive(C[:3]), Admit(), Release(), Release(), Arrive(LONG),
          Admit()),
    story("the tail is evicted before the prefix", ("KV-POOL-8", "KV-POOL-4"),
          configure(6, full()), Arrive(LONG[:8]), Admit(), Release(), Arrive(C[:3]), Admit(),
          Arrive(LONG[:8]), Admit(who=0), Ask()),
    story("an evicted block is no hit", ("KV-POOL-4", "KV-EVT-4"), configure(4, full()),
          Arrive(A), Admit(), Release(), Arrive(C), Admit(), Release(), Arrive(A), Admit()),
    story("duplicates are kept apart", ("KV-POOL-13", "KV-POOL-14"), CFG,
          Arrive(A), Arrive(A), Admit(look_up=False), Admit(look_up=False), Release(), Arrive(A),
          Admit(), Release(), Release(), Arrive(A), Admit()),
    story("evicting one duplicate leaves the other", ("KV-POOL-10", "KV-POOL-14"), CFG,
          Arrive(A), Arrive(A), Admit(look_up=False), Admit(look_up=False), Evict(), Arrive(A),
          Admit(), Ask(who=2)),
    story("a refusal changes nothing", ("KV-MGR-7", "KV-ERR-1"), configure(4, full()),
          Arrive(A), Admit(), Arrive(C), Admit(), Ask(), Run(), Run(), Run()),
    story("hits in the free queue count as needed", ("KV-GRP-4",), configure(5, full()),
          Arrive((1, 2, 3, 4, 5, 6)), Admit(), Release(), Arrive((1, 2, 3, 4, 8, 8, 8, 8)), Admit(),
          Arrive((1, 2, 3, 4, 8, 8)), Admit()),
    story("the watermark holds back newcomers beside others", ("KV-MGR-9",),
          configure(8, full(), watermark=0.4), Arrive(A), Admit(), Arrive(C),
          Admit(others_scheduled=True), Admit(others_scheduled=False), Run()),
    story("reserved blocks are left alone", ("KV-MGR-7",), configure(5, full()),
          Arrive(A), Admit(reserved_blocks=2), Admit(reserved_blocks=1)),
    story("the whole sequence must fit", ("KV-MGR-5",), configure(5, full()),
          Arrive(LONG), Admit(chunk_tokens=2, must_fit=True), Admit(chunk_tokens=2), Run(), Run()),
    story("chunks are cached as they come", ("KV-GRP-11", "KV-EVT-2", "KV-EVT-3"), CFG,
          Arrive(LONG[:9]), Admit(chunk_tokens=3), Run(chunk_tokens=3), Run(), Ask(), Take()),
    story("drafts are never cached", ("KV-MGR-10",), CFG,
          Arrive((1, 2, 3)), Admit(), Run(drafts=(4, 5), accepted=0),
          Run(drafts=(6, 6), accepted=1), Ask(), Arrive((1, 2, 3, 0, 4, 5)), Admit()),
    story("lookahead slots come on top", ("KV-MGR-7",), CFG,
          Arrive(A), Admit(lookahead_tokens=3), Ask(), Run()),
    story("external tokens get blocks before new ones", ("KV-GRP-6", "KV-GRP-8"), CFG,
          Arrive(LONG[:7]), Admit(external_tokens=4), Ask(), Arrive(LONG[:7]), Admit()),
    story("a load is registered when it arrives", ("KV-MGR-10", "KV-MGR-11"), CFG,
          Arrive(A), Admit(external_tokens=4, load_later=True), Arrive(A), Admit(), FinishLoad(),
          Release(who=1), Arrive(A), Admit(), Run()),
    story("preemption and return", ("KV-MGR-12", "KV-MGR-17", "KV-STAT-2"), CFG,
          Arrive(A), Admit(), Run(), Release(again=True), Take(), Admit(), Take(), Run()),
    story("popped blocks come back later", ("KV-MGR-13", "KV-POOL-7"), CFG,
          Arrive(A), Admit(), Arrive(B), Admit(), Release(later=True), Reset(), Release(later=True),
          ReturnPopped(2), ReturnPopped(9), Reset()),
    story("a reset needs an idle pool", ("KV-POOL-11", "KV-EVT-5", "KV-STAT-3"), CFG,
          Arrive(A), Admit(), Reset(), Release(), Reset(), Take(), Arrive(A), Admit()),
    story("a free block loses its identity where it lies", ("KV-POOL-10",), CFG,
          Arrive(A), Admit(), Arrive(C), Admit(), Release(again=True), Release(again=True),
          Evict(who=1), Evict(who=0, index=1), Ask(), Admit(), Admit()),
    story("an evicted block in use goes to the front when freed", ("KV-POOL-10",), CFG,
          Arrive(A), Admit(), Evict(index=1), Run(), Release(), Arrive(C), Admit()),
    story("the salt tells requests apart", ("KV-HASH-10",), CFG,
          Arrive(A, salt="s"), Admit(), Arrive(A), Admit(), Arrive(A, salt="s"), Admit()),
    story("the adapter tells requests apart", ("KV-HASH-10", "KV-HASH-7"), CFG,
          Arrive(A, lora="x"), Admit(), Arrive(A), Admit(), Arrive(A, lora="x"), Admit()),
    story("items tell requests apart", ("KV-HASH-8", "KV-EVT-8"), configure(16, full()),
          Arrive(A, items=(("i", 1, 2),)), Admit(), Arrive(A, items=(("j", 1, 2),)), Admit(),
          Arrive(A, items=(("i", 1, 2),)), Admit(), Arrive(LONG, items=(("i", 0, 1), ("j", 1, 9))),
          Admit(), Run()),
    story("some requests do not read the cache", ("KV-MGR-2",), CFG,
          Arrive(A), Admit(), Arrive(A, skip_reading=True), Admit(), Take()),
    story("requests share what all of them hold", ("KV-FULL-7", "KV-MGR-15"), CFG,
          Arrive(A), Admit(), Ask(), Arrive(B), Admit(), Ask(), Ask(who=1), Arrive(C), Admit(),
          Ask()),
    story("drafting drops the last block of a hit", ("KV-FULL-3", "KV-CFG-8"),
          configure(8, full(), use_eagle=True), Arrive(LONG[:7]), Admit(), Release(),
          Arrive(LONG[:7]), Admit(), Ask()),
    story("context parallelism widens a block", ("KV-FULL-5", "KV-CFG-6"),
          configure(8, full(), dcp_world_size=2), Arrive(LONG), Admit(), Release(), Arrive(LONG),
          Admit(), Run()),
    story("without caching nothing is a hit", ("KV-COORD-1",),
          configure(8, full(), enable_caching=False), Arrive(A), Admit(), Arrive(A), Admit(), Ask(),
          Reset(), Release(), Release(), Reset()),
    story("short hashes", ("KV-HASH-11", "KV-EVT-6"),
          configure(8, full(), hash_function="sha256_cbor_64bit", trusted_tenants=True,
                    int_event_hashes=True),
          Arrive(A), Admit(), Arrive(B), Admit(), Release(), Release()),
    story("statistics are taken once", ("KV-STAT-1", "KV-STAT-3", "KV-MGR-16"), CFG,
          Arrive(A), Admit(), Take(), Take(), NewStep(), Arrive(B), Admit(), Take()),
    *(
        story(f"illegal: {illegal.name}", (illegal.rule, "KV-ERR-2"), CFG,
              Arrive(A), Break(call=number), Admit(), Break(call=number), Run(), Arrive(C),
              Break(who=1, call=number), Release(later=illegal.operation == "free_blocks"),
              Break(call=number))
        for number, illegal in enumerate(ILLEGAL_OPERATIONS)
        if illegal.feature is not Feature.HITS_PER_GROUP  # which takes several groups
    ),
)  # fmt: skip
