"""Cut programs to a subject's features: none is judged for what it does not declare.

A directed program needs all of its steps. If they need what the subject lacks, it is left out, with
the reason; only queries and switches beside them (events, statistics) are dropped. The rest of a
random program is a program too, so that steps, members of steps, groups and options are
dropped one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, replace
from typing import Any, TypeAlias

from kvcheck.play import steps as st
from kvcheck.play.features import FEATURE_OF_OPERATION
from kvcheck.play.illegal_operations import ILLEGAL_OPERATIONS
from kvspec.config import HASH_FUNCTIONS, WEAK_HASHES, KVCacheGroup, ManagerConfig
from kvspec.errors import ConfigError, UnsupportedError
from kvspec.interface import Capabilities, Feature, Implementation
from kvspec.policy import OLDER, Policy
from kvspec.requirements import lacking
from kvspec.specs import CrossAttentionSpec, FullAttentionSpec, MambaSpec

Needs: TypeAlias = Iterator[tuple[Feature, st.Step | None]]
"""Features that a step needs, each with the rest of the step without it (None: nothing)."""

FEATURES_OF_STEP: Mapping[type[st.Step], tuple[Feature, ...]] = {
    st.FinishLoad: (Feature.DELAYED_CACHING,),
    st.FailLoad: (Feature.EXTERNAL_TOKENS, Feature.EVICTION_BY_ID),
    st.Withdraw: (Feature.WITHDRAWAL,),
    st.CachePartial: (Feature.PARTIAL_BLOCKS,),
    st.Skip: (Feature.SKIPPED_REMOVAL,),
    st.ReturnPopped: (Feature.DEFERRED_FREE,),
    st.Evict: (Feature.SNAPSHOT, Feature.EVICTION_BY_ID),  # it reads which block is evicted
    st.EvictIds: (Feature.EVICTION_BY_ID,),
    st.Hold: (Feature.HOLDING,),
    st.Copy: (Feature.CLONE, Feature.RESTORE),
    st.Reset: (Feature.RESET,),
    st.Batch: (Feature.BATCHED,),
    st.TakeDeltas: (Feature.BATCHED,),
    st.LookUps: (Feature.BATCHED, Feature.SNAPSHOT),
}
"""Steps that need a feature as a whole."""


def policy_of(policy: Policy, can: Capabilities) -> Policy:
    """Return the policy with the subject's form of extra keys and way of counting."""
    if can.extra_key_forms and policy.extra_keys not in can.extra_key_forms:
        policy = replace(policy, extra_keys=min(can.extra_key_forms))
    if Feature.LATER_CHOICES not in can.features:  # it has no call that counts at admission
        policy = replace(policy, lookups_counted=OLDER["lookups_counted"])
    return policy


def without_queues(config: ManagerConfig, features: frozenset[Feature]) -> ManagerConfig:
    """Return the configuration without the queues that the subject lacks."""
    return replace(
        config,
        enable_events=config.enable_events and Feature.EVENTS in features,
        log_stats=config.log_stats and Feature.STATISTICS in features,
    )


def random_program(
    program: st.Program,
    can: Capabilities,
    policy: Policy,
    *,
    hashes_matter: bool,
    oracle: Implementation | None,
) -> st.Program | None:
    """Return the part of a random program that the subject supports.

    None if that is empty, or if the oracle rejects the rest of the configuration: then another one
    is to be drawn.
    """
    whole = without_switches(program.config, can, policy, hashes_matter=hashes_matter)
    config = _cut(whole, can)
    if config is None or lacking(config, can, hashes_matter=hashes_matter):
        return None
    if config != whole and oracle is not None and not _accepts(oracle, config):
        return None
    return replace(program, config=config, steps=tuple(_cut_steps(program.steps, can)))


def _accepts(oracle: Implementation, config: ManagerConfig) -> bool:
    """Check that the rules allow the configuration and the oracle supports it."""
    try:
        oracle.create(config, check_invariants=False)
    except (ConfigError, UnsupportedError):
        return False
    return True


def needs(step: st.Step) -> Needs:
    """Yield what a step needs beyond the base."""
    for member in fields(step):
        if getattr(step, member.name) != member.default:
            for feature in member.metadata.get("needs", ()):
                yield feature, replace(step, **{member.name: member.default})
    if isinstance(step, st.Break):
        illegal = ILLEGAL_OPERATIONS[step.call % len(ILLEGAL_OPERATIONS)]
        feature = illegal.feature or FEATURE_OF_OPERATION.get(illegal.operation)
        if feature is not None:
            yield feature, None
    for feature in FEATURES_OF_STEP.get(type(step), ()):
        yield feature, None


def _cut_steps(steps: Iterable[st.Step], can: Capabilities) -> Iterator[st.Step]:
    """Yield the steps without what is lacking; a step may have to be cut several times."""
    for step in _to_the_point(steps, can):
        left: st.Step | None = step
        while left is not None:
            cuts = [rest for feature, rest in needs(left) if feature not in can.features]
            if not cuts:
                yield left
                break
            left = cuts[0]


def _to_the_point(steps: Iterable[st.Step], can: Capabilities) -> Iterator[st.Step]:
    """Yield the steps without what has no meaning for the subject's types of blocks.

    The beginning of a scheduling step matters to Mamba states, encoder tokens to cross attention.
    """
    for step in steps:
        if isinstance(step, st.NewStep) and MambaSpec not in can.spec_types:
            continue
        if isinstance(step, (st.Admit, st.Run)) and CrossAttentionSpec not in can.spec_types:
            yield replace(step, encoder_tokens=0)
        else:
            yield step


def without_switches(
    config: ManagerConfig, can: Capabilities, policy: Policy, *, hashes_matter: bool
) -> ManagerConfig:
    """Set the subject's policy and hash function, and drop queues that it lacks."""
    function = config.hash_function
    if not hashes_matter and function not in can.hash_functions:
        function = min(can.hash_functions, default=HASH_FUNCTIONS[0])
    return replace(
        without_queues(config, can.features),
        policy=policy_of(policy, can),
        hash_function=function,
        trusted_tenants=config.trusted_tenants or function in WEAK_HASHES,
        residency_sample_rate=(
            config.residency_sample_rate if Feature.RESIDENCY in can.features else 0.0
        ),
    )


def _with_blocks_of(group: KVCacheGroup, min_tokens: int) -> KVCacheGroup:
    """Return the group with blocks that are not too small. ConfigError if its spec allows none."""
    if group.spec.block_size >= min_tokens:
        return group
    return replace(group, spec=replace(group.spec, block_size=min_tokens))


def _cut(config: ManagerConfig, can: Capabilities) -> ManagerConfig | None:
    """Return the configuration without groups and options that are lacking; None if none is left.

    Options that only made sense with a dropped group are dropped too.
    """
    has = can.features
    groups = _cut_groups(config, can)
    if groups is None:
        return None
    specs = [config.registry.resolve(group.spec) for group in groups]
    caching = config.enable_caching and Feature.PREFIX_CACHING in has
    if caching and all(spec == specs[0] for spec in specs):  # KV-COORD-3
        groups, specs = groups[:1], specs[:1]
    is_retained = any(spec.retains_sparsely for spec in specs)
    is_retained &= Feature.RETENTION in has  # KV-CFG-7
    parallel = can.values.get("context_parallel", frozenset({"decode", "prefill"}))
    parallel = parallel if Feature.CONTEXT_PARALLEL in has else frozenset()
    most_blocks = can.limits.get("num_blocks", config.kv_cache.num_blocks)
    num_blocks = min(config.kv_cache.num_blocks, most_blocks)
    is_whole = specs == [config.registry.resolve(each.spec) for each in config.kv_cache.groups]
    is_whole &= "decode" in parallel and "prefill" in parallel  # KV-CFG-4
    return replace(
        config,
        kv_cache=replace(config.kv_cache, groups=tuple(groups), num_blocks=num_blocks),
        scheduler_block_size_tokens=config.scheduler_block_size_tokens if is_whole else None,
        enable_caching=caching,
        use_eagle=config.use_eagle and Feature.EAGLE in has,
        watermark=config.watermark if Feature.ADMISSION in has else 0.0,
        eviction_order=config.eviction_order if Feature.EVICTION_ORDERS in has else "lru",
        hash_lookahead_tokens=config.hash_lookahead_tokens if Feature.HASH_LOOKAHEAD in has else 0,
        dcp_world_size=config.dcp_world_size if "decode" in parallel else 1,
        pcp_world_size=config.pcp_world_size if "prefill" in parallel else 1,
        retention_interval_tokens=config.retention_interval_tokens if is_retained else None,
    )


def _unflagged(group: KVCacheGroup) -> KVCacheGroup:
    return replace(group, is_eagle_group=False)


def _of_value(group: KVCacheGroup, config: ManagerConfig, can: Capabilities) -> KVCacheGroup:
    """Return the group in a mode, of a size and with drafted states that the subject supports."""
    spec, changes = group.spec, dict[str, Any]()
    if "different" not in can.values.get("block_sizes", {"different"}):
        changes["block_size"] = config.kv_cache.groups[0].spec.block_size
    if isinstance(spec, MambaSpec):
        modes = can.values.get("mamba_cache_mode", {spec.mamba_cache_mode})
        if spec.mamba_cache_mode not in modes:
            changes["mamba_cache_mode"] = min(modes, default=spec.mamba_cache_mode)
        most = can.limits.get("num_speculative_blocks", spec.num_speculative_blocks)
        changes["num_speculative_blocks"] = min(spec.num_speculative_blocks, most)
    return replace(group, spec=replace(spec, **changes)) if changes else group


def _cut_groups(config: ManagerConfig, can: Capabilities) -> list[KVCacheGroup] | None:
    """Return the groups that the subject supports, one of full attention if none is left."""
    groups = [
        _of_value(group if Feature.EAGLE in can.features else _unflagged(group), config, can)
        for group in config.kv_cache.groups
        if type(config.registry.resolve(group.spec)) in can.spec_types
    ]
    if config.enable_caching:  # which needs one that takes part (KV-COORD-14)
        groups.sort(key=lambda group: not group.spec.prefix_cacheable)
        groups = groups if any(group.spec.prefix_cacheable for group in groups) else []
    if not groups and FullAttentionSpec in can.spec_types:
        first = config.kv_cache.groups[0]
        spec = FullAttentionSpec(first.spec.block_size, 1, 8, "float16")
        groups = [_unflagged(replace(first, spec=spec))]
    most = can.limits.get("groups", len(groups))
    groups = groups[: most if Feature.MULTIPLE_GROUPS in can.features else 1]
    try:
        found = [_with_blocks_of(group, can.min_block_size_tokens) for group in groups]
    except ConfigError:
        return None
    return found or None
