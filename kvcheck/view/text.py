"""Operations and configurations in words, for a reader who does not know their names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from kvcheck.play.text import changed_members, shown
from kvspec.codec import encode_spec
from kvspec.config import KVCacheGroup, ManagerConfig
from kvspec.policy import Policy

MEANINGS: Mapping[str, str] = {
    "new_request": "A request arrives with its prompt.",
    "append_tokens": "Tokens are added to the request.",
    "get_computed_blocks": "Looks up how much of the request is already in the cache.",
    "find_longest_cache_hit_per_group": "Looks up, for each group alone, how much is in the cache.",
    "allocate_slots": "Asks for blocks, so that the next tokens can be computed.",
    "free": "Releases the request’s blocks; those with a key stay cached until evicted.",
    "pop_blocks_for_free": "Takes the blocks from the request; they are released later.",
    "free_blocks": "Releases blocks that were popped before.",
    "remove_skipped_blocks": "Releases blocks that no later token can attend to.",
    "cache_blocks": "Gives full blocks their keys, so that later look-ups find them.",
    "cache_partial_block": "Gives a block a further key, for a boundary inside it.",
    "evict_blocks": "Makes the cache forget these blocks.",
    "withdraw": "Takes back the keys of blocks whose step did not run.",
    "reset_prefix_cache": "Makes the cache forget everything.",
    "get_num_common_prefix_blocks": "Asks how many blocks all running requests share.",
    "get_block_ids": "Asks which blocks the request holds.",
    "get_num_blocks_to_allocate": "Asks how many blocks an allocation would take.",
    "take_new_block_ids": "Asks which blocks must be zeroed before use.",
    "take_block_copies": "Asks which blocks must be copied before the step.",
    "new_step_starts": "A new scheduler step starts.",
    "make_prefix_cache_stats": "Takes the look-up counters.",
    "record_prefix_cache_stats": "Counts the look-up of an admitted request.",
    "take_events": "Takes the events that were queued.",
}


def group_words(group: KVCacheGroup) -> str:
    """Describe a group in words: `sliding window, 4 tokens per block, window 8`."""
    spec = encode_spec(group.spec)
    name = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", spec["type"])
    words = [word if word.isupper() else word.lower() for word in name.split() if word != "Spec"]
    size = spec["block_size"]
    parts = [" ".join(words), f"{size} token{'s' * (size != 1)} per block"]
    parts += [f"{word} {spec[name]}" for name, word in SIZES.items() if spec.get(name)]
    return ", ".join(parts)


SIZES: Mapping[str, str] = {
    "sliding_window": "window",
    "attention_chunk_size": "chunk",
    "sink_len": "sink",
    "mamba_cache_mode": "mode",
    "num_speculative_blocks": "speculative blocks",
}
"""Members of specs, besides the block size, that affect blocks."""

SAY_NOTHING = frozenset({"kv_cache", "registry", "log_stats", "enable_events", "hash_seed"})
"""Members of a configuration that affect no program, or are shown elsewhere."""


def config_words(config: ManagerConfig) -> str:
    """Describe a configuration in words: `6 blocks; full attention, 4 tokens per block`."""
    managed = zip(config.kv_cache.groups, config.managed_specs, strict=True)
    groups = [replace(group, spec=spec) for group, spec in managed]
    parts = [f"{config.kv_cache.num_blocks} blocks"]
    for number, group in enumerate(groups):
        words = group_words(group) + (", eagle" if group.is_eagle_group else "")
        parts.append(f"group {number}: {words}" if len(groups) > 1 else words)
    # No one need have chosen a way of counting (KV-POL-18).
    chosen = replace(config.policy, lookups_counted=Policy.lookups_counted)
    parts += [
        f"{member.name}={shown(getattr(config, member.name))}"
        for member in changed_members(replace(config, policy=chosen))
        if member.name not in SAY_NOTHING
    ]
    return "; ".join(parts)
