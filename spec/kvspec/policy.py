"""Policies: the choices of a conforming implementation, as one frozen value (KV-POL-*).

Safety is never a policy. `Policy()` has the choices of the rules; `Policy.vllm_0_24()` is the
profile under which planning was recorded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Annotated

from kvspec.domains import check_members

EXTRA_KEY_FORMS: tuple[str, ...] = ("tagged", "plain")

NONE_HASH_TEXT = "vllm-none-hash"
"""The seed of a "fixed" first parent (KV-POL-12)."""

LATER: tuple[str, ...] = (
    *("zero_retention_needs_windows", "none_hash_without_seed", "zeroed_blocks"),
    *("lookups_counted", "popped_leading_nulls", "counts_common_prefix", "eagle_flag_counts_alone"),
    *("full_partial_tails", "eagle_looks_beyond", "eagle_replays_before_drop"),
    *("drafts_hold_states", "caching_beyond_tokens", "checkpoints_return", "hits_inside_blocks"),
    *("hits_reported", "default_retention"),
)
"""Choices that only some implementations have (`Feature.LATER_CHOICES`)."""

OLDER: Mapping[str, str] = {"extra_keys": "plain", "lookups_counted": "asked"}
"""The meaning of a record or message without the key, if the rules' default was another before."""


@dataclass(frozen=True)
class Policy:
    """One implementation's declared choices.

    - `unhashed_freed_to`: where freed blocks without a hash are put in the free queue.
    - `removed_event_per`: one removal event for each physical copy, or only for the last one.
    - `chunked_null_prefix_is_hit`: whether chunked local attention reports the blocks before the
      current chunk as computed for a fresh prompt.
    - `capacity_counts_null_block`: whether planning's capacity check counts the null block.
    - `chunk_must_align`: whether a chunk that is not a multiple of the block size is an error.
    - `exact_block_ids`: whether block ids and eviction order are promised (level *identity*).
    - `zero_retention_needs_windows`: whether a retention interval of 0 is an error, as any is,
      without a group that it thins out.
    - `none_hash_without_seed`: whether the first parent is "random" without a seed, or "fixed" for
      cryptographic hash functions.
    - `zeroed_blocks`: whether new blocks are queued for zeroing in plain "full_attention" groups,
      or in all of attention where the configuration has "mixed_formats", and else in none.
    - `lookups_counted`: whether statistics count a look-up when its request is "admitted", by
      `record_prefix_cache_stats`, or whenever it is "asked".
    - `popped_leading_nulls`: whether `pop_blocks_for_free` shows the nulls that a list begins with.
    - `counts_common_prefix`: whether common prefixes are counted; else each is 0.
    - `eagle_flag_counts_alone`: whether flagged groups drop a block without `use_eagle`.
    - `eagle_looks_beyond`: whether the block that an eagle group drops may lie beyond the limit of
      a search for a common hit.
    - `eagle_replays_before_drop`: whether retention keeps, where some group drops a block, the two
      places at which a replay then ends, and not the replay boundary.
    - `drafts_hold_states`: whether Mamba groups keep states for drafts counted as computed.
    - `caching_beyond_tokens`: whether `cache_blocks` for more tokens than the request has is an
      "error", or "cut" to those that it has.
    - `checkpoints_return`: whether a state at the checkpoint of a prompt gets its key again.
    - `full_partial_tails`: whether full attention registers the end of a prompt inside a block.
    - `hits_inside_blocks`: whether hits may end inside a block, where the groups allow it.
    - `hits_reported`: whether a request that wants its hits reported has them reported when it is
      "admitted", or whenever a look-up is "asked".
    - `default_retention`: what a configuration that names no retention interval has: None
      ("dense"), or 0 ("boundaries").
    - `extra_keys`: whether extra keys enter a hash with their kind ("tagged") or as bare values
      ("plain"), so that values of two kinds can be equal.
    """

    unhashed_freed_to: Annotated[str, ("front", "back")] = "front"
    removed_event_per: Annotated[str, ("copy", "last_copy")] = "copy"
    chunked_null_prefix_is_hit: bool = True
    capacity_counts_null_block: bool = True
    chunk_must_align: bool = True
    exact_block_ids: bool = True
    extra_keys: Annotated[str, EXTRA_KEY_FORMS] = "tagged"
    zero_retention_needs_windows: bool = True
    none_hash_without_seed: Annotated[str, ("random", "fixed")] = "random"
    zeroed_blocks: Annotated[str, ("full_attention", "mixed_formats")] = "full_attention"
    lookups_counted: Annotated[str, ("asked", "admitted")] = "admitted"
    popped_leading_nulls: bool = True
    counts_common_prefix: bool = True
    eagle_flag_counts_alone: bool = True
    full_partial_tails: bool = False
    eagle_looks_beyond: bool = False
    eagle_replays_before_drop: bool = False
    drafts_hold_states: bool = True
    caching_beyond_tokens: Annotated[str, ("error", "cut")] = "error"
    checkpoints_return: bool = False
    hits_inside_blocks: bool = False
    hits_reported: Annotated[str, ("admitted", "asked")] = "admitted"
    default_retention: Annotated[str, ("dense", "boundaries")] = "dense"

    def __post_init__(self) -> None:
        check_members(self)

    @property
    def default_interval_tokens(self) -> int | None:
        """Retention interval of configurations that name none (KV-POL-26)."""
        return None if self.default_retention == "dense" else 0

    @property
    def later_choices(self) -> frozenset[str]:
        """Names in `LATER` whose value differs from that of a record without the key."""
        older = {name: OLDER.get(name, getattr(Policy, name)) for name in LATER}
        return frozenset(name for name in LATER if getattr(self, name) != older[name])

    @property
    def written(self) -> list[str]:
        """Names in records and messages: later choices only where they differ."""
        left_out = frozenset(LATER) - self.later_choices
        return [field.name for field in fields(self) if field.name not in left_out]

    @classmethod
    def vllm_0_24(cls) -> Policy:
        """Return the profile `vllm-0.24`, under which records that name no policy are replayed."""
        return replace(
            cls(),
            capacity_counts_null_block=False,
            chunk_must_align=False,
            extra_keys=OLDER["extra_keys"],
            lookups_counted=OLDER["lookups_counted"],
        )
