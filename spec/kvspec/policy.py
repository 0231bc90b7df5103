"""Policies: what a conforming implementation may choose, as one frozen value (KV-POL-*).

Safety is never a policy. `Policy()` is what the rules say; `Policy.vllm_0_24()` is the profile
under which planning was recorded.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvspec._check import boolean, exact_members, one_of

EXTRA_KEY_FORMS: tuple[str, ...] = ("tagged", "plain")


@dataclass(frozen=True)
class Policy:
    """One implementation's declared choices.

    - `unhashed_freed_to`: where freed blocks without a hash go in the free queue.
    - `removed_event_per`: one removal event for each physical copy, or only for the last one.
    - `chunked_null_prefix_is_hit`: whether chunked local attention reports the blocks before the
      current chunk as computed for a fresh prompt.
    - `capacity_counts_null_block`: whether planning's capacity check counts the null block.
    - `chunk_must_align`: whether a chunk that is no multiple of the block size is an error.
    - `exact_block_ids`: whether block ids and eviction order are promised (level *identity*).
    - `extra_keys`: whether extra keys enter a hash with their kind ("tagged") or as bare values
      ("plain"), so that values of two kinds can be equal.
    """

    unhashed_freed_to: str = "front"
    removed_event_per: str = "copy"
    chunked_null_prefix_is_hit: bool = True
    capacity_counts_null_block: bool = True
    chunk_must_align: bool = True
    exact_block_ids: bool = True
    extra_keys: str = "tagged"

    def __post_init__(self) -> None:
        exact_members(self)
        one_of("unhashed_freed_to", self.unhashed_freed_to, ("front", "back"))
        one_of("removed_event_per", self.removed_event_per, ("copy", "last_copy"))
        boolean("chunked_null_prefix_is_hit", self.chunked_null_prefix_is_hit)
        boolean("capacity_counts_null_block", self.capacity_counts_null_block)
        boolean("chunk_must_align", self.chunk_must_align)
        boolean("exact_block_ids", self.exact_block_ids)
        one_of("extra_keys", self.extra_keys, EXTRA_KEY_FORMS)

    @classmethod
    def vllm_0_24(cls) -> Policy:
        """The profile `vllm-0.24`, under which records that name no policy are replayed."""
        return replace(
            cls(), capacity_counts_null_block=False, chunk_must_align=False, extra_keys="plain"
        )
