"""Features that a configuration needs and an implementation may lack."""

from __future__ import annotations

from collections.abc import Mapping

from kvcheck.explore.bounds import Call, Configuration
from kvspec import requirements
from kvspec.interface import Capabilities, Feature

FEATURES_OF_CALL: Mapping[Call, tuple[Feature, ...]] = {
    Call.POP: (Feature.DEFERRED_FREE,),
    Call.EVICT: (Feature.EVICTION_BY_ID,),
    Call.RESET: (Feature.RESET,),
    Call.SKIP: (Feature.SKIPPED_REMOVAL,),
    Call.CACHE: (Feature.DELAYED_CACHING,),
    Call.PARTIAL: (Feature.PARTIAL_BLOCKS,),
    Call.ASK: (Feature.COMMON_PREFIX, Feature.UNHASHED_BLOCKS, Feature.NEED),
    Call.ILLEGAL: (Feature.DEFERRED_FREE, Feature.EVICTION_BY_ID, Feature.DELAYED_CACHING),
}
"""Features beyond the base that a call needs."""


def lacks(configuration: Configuration, can: Capabilities) -> list[str]:
    """Return what this configuration needs and the implementation lacks."""
    found = requirements.lacking(configuration.config, can, hashes_matter=True)
    needed = {feature for call in configuration.calls for feature in FEATURES_OF_CALL.get(call, ())}
    needed |= _features_of_options(configuration)
    # Every move needs them.
    needed |= {Feature.SNAPSHOT, Feature.NEW_BLOCK_IDS}
    return sorted({*found, *(feature.value for feature in needed - can.features)})


def _features_of_options(configuration: Configuration) -> set[Feature]:
    admissions, computations = configuration.admissions, configuration.computations
    drafting = any(each.lookahead_tokens for each in admissions)
    drafting |= any(each.lookahead_tokens or each.num_drafts for each in computations)
    drafting |= any(each.num_lookahead_tokens for each in configuration.steps)
    delayed = any(each.delayed or each.load_later for each in admissions)
    delayed |= any(each.delayed for each in computations)
    options = {
        Feature.DRAFTING: drafting,
        Feature.EXTERNAL_TOKENS: any(each.external_tokens for each in admissions),
        Feature.DELAYED_CACHING: delayed,
        Feature.ADMISSION: any(each.must_fit or each.reserved_blocks for each in admissions)
        or any(each.reserved_blocks for each in configuration.steps),
        Feature.HITS_PER_GROUP: any(each.own_hits for each in admissions)
        or (Call.ASK in configuration.calls and len(configuration.config.kv_cache.groups) > 1),
        Feature.UNEQUAL_HITS: any(each.own_hits for each in admissions),
    }
    return {feature for feature, wanted in options.items() if wanted}
