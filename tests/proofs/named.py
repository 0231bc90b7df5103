"""The functions that each proof is about, as proofs/README.md names them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

REF, FAST = "kvref", "kvfast._core"


def of(module: str, *names: str) -> list[str]:
    """Functions of a module."""
    return [f"{module}:{name}" for name in names]


NAMED: Mapping[str, Sequence[str]] = MappingProxyType({
    "code.windows": (
        *of(f"{REF}.groups.sliding_window", "SlidingWindowGroup.num_skipped_tokens",
            "SlidingWindowGroup.num_unread_tokens", "SlidingWindowGroup.max_admission_blocks",
            "SlidingWindowGroup.run_length_blocks"),
        *of(f"{REF}.groups.base", "cdiv", "Group.remove_skipped_blocks"),
        *of(f"{REF}.groups.chunked_local", "ChunkedLocalGroup.num_skipped_tokens",
            "ChunkedLocalGroup.max_admission_blocks"),
        *of(f"{REF}.groups.mamba", "MambaGroup.num_skipped_tokens",
            "MambaGroup.remove_skipped_blocks"),
        *of(f"{FAST}.kinds", "first_visible"),
        *of(f"{FAST}.allocator", "Allocator.remove_skipped"),
        *of(f"{FAST}.shape", "Shape.cdiv", "Shape.skipped", "Shape.unread",
            "Shape.is_window_beyond", "Shape.run_length"),
        *of("kvfast.configuration", "_cap_blocks"),
    ),
    "code.allocation": (
        *of(f"{REF}.groups.base", "Group.num_blocks_needed", "Group.num_revived", "Group.take_hits",
            "Group.allocate_external", "Group.allocate_new", "Group.extend"),
        *of(f"{REF}.groups.mamba", "MambaGroup.with_speculative_blocks"),
        *of(f"{REF}.groups.mamba_align", "AlignedMambaGroup.num_required_blocks",
            "AlignedMambaGroup.num_blocks_needed", "AlignedMambaGroup._needed_with_external",
            "AlignedMambaGroup.allocate_new", "AlignedMambaGroup.lengthen"),
        *of(f"{REF}.groups.cross_attention", "CrossAttentionGroup.num_blocks_needed"),
        *of(f"{FAST}.allocator", "Allocator.need_of", "Allocator.need_of_aligned",
            "Allocator.length_for", "Allocator.extend", "Allocator.take_hits",
            "Allocator.take_hits_of", "Allocator.take_new", "Allocator.grow_aligned",
            "Allocator.num_revived", "Allocator.num_needed"),
        *of(f"{FAST}.pool", "BlockPool.touch"),
    ),
    "code.slots": (
        *of(f"{REF}.allocation", "Allocator.allocate", "Allocator.whole_fits", "Allocator.release",
            "Allocator.demand", "Allocator.watermark", "Allocator.cache"),
        *of(f"{FAST}.calls", "Calls.grant"),
        *of(f"{FAST}.core", "Core.place"),
    ),
    "code.caching": (
        *of(f"{REF}.hybrid", "HybridCoordinator.cache_blocks"),
        *of(f"{REF}.groups.base", "replay_boundary", "Group.cache_blocks"),
        *of(f"{REF}.groups.sliding_window", "SlidingWindowGroup.is_worth_caching"),
        *of(f"{REF}.groups.mamba", "MambaGroup.is_worth_caching", "MambaGroup.kept_ends"),
        *of(f"{FAST}.allocator", "Allocator.cache"),
        *of(f"{FAST}.shape", "Shape.caches_all", "Shape.is_worth_caching", "Shape.full_blocks"),
    ),
    "code.free_queue": of(
        f"{FAST}.pool", "BlockPool.__init__", "BlockPool.after", "BlockPool.before",
        "BlockPool.link", "BlockPool.put", "BlockPool.unlink", "BlockPool.set_queue",
        "BlockPool.take", "BlockPool.allocate", "BlockPool.allocate_run", "BlockPool.touch",
        "BlockPool.release", "BlockPool.drop_ref",
    ),
    "code.fixed_point": of(
        f"{FAST}.lookup", "Lookup.ask", "Lookup.agreed_hit", "Lookup.farthest",
    ),
    "code.look_ups": (
        *of(f"{FAST}.lookup", "Lookup.find_in_all", "Lookup.put_null", "Lookup.look_up",
            "Lookup.run_from", "Lookup.look_up_full", "Lookup.look_up_sliding",
            "Lookup.short_run", "Lookup.look_up_chunked", "Lookup.look_up_mamba"),
        *of(f"{REF}.groups.full_attention", "FullAttentionGroup.longest_hit"),
        *of(f"{REF}.groups.sliding_window", "SlidingWindowGroup.longest_hit",
            "SlidingWindowGroup._run_from_the_start"),
        *of(f"{REF}.groups.chunked_local", "ChunkedLocalGroup.longest_hit"),
        *of(f"{REF}.groups.mamba", "MambaGroup.longest_hit"),
    ),
    "code.key_map": of(
        f"{FAST}.key_map", "KeyMap.steps_between", "KeyMap.place_from", "KeyMap.find",
        "KeyMap.find_run", "KeyMap.carries", "KeyMap.slot_of", "KeyMap.add_at",
        "KeyMap.add_beside", "KeyMap.add_run", "KeyMap.put_slot", "KeyMap.fill_slot",
        "KeyMap.remove", "KeyMap.remove_run", "KeyMap.empty_slot",
    ),
})  # fmt: skip
