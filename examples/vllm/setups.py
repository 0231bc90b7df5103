"""The configurations that lock step tries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import torch

from examples.vllm.engine import DENSE, OWN, Setup, attention, states
from kvfast.engines.vllm.versions import release


def setups() -> Mapping[str, Setup]:
    """Return the configurations to try, by name."""
    found = {name: setup for name, setup in every_setup().items() if not is_refused(setup)}
    return MappingProxyType(found)


def every_setup() -> dict[str, Setup]:
    """Those, and what kvfast leaves to vLLM's manager."""
    full, wide = (attention("FullAttentionSpec", size) for size in (4, 8))
    layers = full, attention("SlidingWindowSpec", 4, sliding_window=10), wide
    return {**alone(*layers), **beside_others(*layers), **since_then(release(), layers)}


def is_refused(setup: Setup) -> bool:
    """Return whether kvfast leaves it to vLLM's manager in 0.26 to 0.32
    (`kvfast.engines.vllm.fit`).
    """
    if not 25 < release() < 33:
        return False
    keeps_boundaries = bool(setup.retention) or (release() > 29 and setup.retention != DENSE)
    return (
        (setup.enable_caching and any(type(s).__name__ == "MambaSpec" for s in setup.specs))
        or (setup.use_eagle and len(setup.specs) > 1 and keeps_boundaries)
        or (release() < 32 and any(s.block_size != setup.hash_block_size for s in setup.specs))
    )


def alone(full: Any, window: Any, wide: Any) -> dict[str, Setup]:
    chunk = attention("ChunkedLocalAttentionSpec", 4, attention_chunk_size=8)
    plain = Setup((full,), 60, 4, 4)
    both = Setup((full, window), 90, 4, 4, has_events=True)
    whole = Setup((), 1, 4, 4, 128, max_num_batched_tokens=128, pools=True, is_chunked=False)
    recurrent = Setup((full, states(8, "align")), 90, 8, 4, mamba_mode="align")
    return {
        "full": plain,
        "full, no caching": replace(plain, enable_caching=False),
        "full, lives": replace(plain, follows_lives=True),
        "full, drafts": replace(plain, num_drafts=3),
        "full, async": replace(plain, is_async=True),
        "full, async, drafts": replace(plain, is_async=True, num_drafts=2),
        "full, logprobs": replace(plain, num_drafts=2, has_logprobs=True),
        "full, events": replace(plain, has_events=True),
        "full, priority, watermark": replace(plain, policy="priority", watermark=0.05),
        "full, priority, long prompts": replace(
            plain, num_blocks=40, max_num_seqs=4, policy="priority", most_of_prompt=24
        ),
        "full, sessions": replace(plain, num_blocks=200, has_sessions=True, has_events=True),
        "full, sessions, unusual": replace(
            plain, num_blocks=200, max_num_seqs=2, has_sessions=True, has_unusual=True
        ),
        "full, async, drafts, unusual": replace(
            plain, is_async=True, num_drafts=2, has_events=True, has_unusual=True
        ),
        "full, async, sessions": replace(plain, num_blocks=200, is_async=True, has_sessions=True),
        "full, eagle": replace(plain, num_drafts=2, use_eagle=True),
        "full, pooling": replace(plain, max_model_len=64, pools=True, has_events=True),
        "full and window, pooling, async": replace(both, pools=True, is_async=True),
        "window, pooling, whole prompts": replace(whole, specs=(window,), num_blocks=60),
        "no cache, pooling": replace(whole, enable_caching=False, is_async=True),
        "full, long prompts": replace(plain, most_of_prompt=8, throttles=True),
        "full and states": recurrent,
        "full and states, sessions, retention": replace(
            recurrent, num_blocks=300, retention=32, has_sessions=True
        ),
        "full and window, eagle": replace(both, num_drafts=2, use_eagle=True),
        "full and states, no caching": Setup(
            (full, states(4, "none")), 120, 4, 4, mamba_mode="none", enable_caching=False
        ),
        "window": Setup((window,), 50, 4, 4),
        "chunk": Setup((chunk,), 50, 4, 4),
        "full and window": both,
        "full and window, async": Setup((full, window), 90, 4, 4, is_async=True),
        "full and wider window": Setup((wide, window), 90, 8, 4, num_drafts=2, has_events=True),
        "full and window, sessions, retention, eagle": replace(
            both, num_blocks=300, retention=32, num_drafts=2, use_eagle=True, has_sessions=True
        ),
        "full and two windows": Setup((full, window, window), 120, 4, 4),
    }


def beside_others(full: Any, window: Any, wide: Any) -> dict[str, Setup]:
    """Connectors that load, fail, keep and pin; images and sounds; few adapters at a time."""
    plain = Setup((full,), 60, 4, 4)
    return {
        "full, loads": replace(plain, loads="sync", has_events=True),
        "full, loads fail": replace(plain, loads="both", fails="recompute"),
        "full, loads fail and end": replace(plain, loads="both", fails="fail"),
        "full, awaited loads": replace(plain, loads="async", whole_loads=True),
        "full, async, awaited loads": replace(
            plain, is_async=True, loads="async", whole_loads=True, fails="recompute"
        ),
        "full, async, loads, drafts": replace(plain, is_async=True, loads="both", num_drafts=2),
        "full, loads, eagle": replace(plain, loads="both", num_drafts=2, use_eagle=True),
        "full and window, loads": Setup((full, window), 90, 4, 4, loads="both"),
        "full and wider window, async, loads": Setup(
            (wide, window), 90, 8, 4, is_async=True, loads="both", has_events=True
        ),
        "full, items, adapters": replace(plain, encoder_cache=24, max_adapters=1, has_events=True),
        "full and window, async, items": Setup(
            (full, window), 90, 4, 4, is_async=True, encoder_cache=24
        ),
        "full, async, eagle, items": replace(
            plain, num_drafts=2, use_eagle=True, encoder_cache=40, is_async=True
        ),
        "full, eagle, items, loads": replace(
            plain, num_drafts=2, use_eagle=True, encoder_cache=24, loads="both"
        ),
    }


def since_then(minor: int, layers: tuple[Any, Any, Any]) -> dict[str, Setup]:
    """Return setups of vLLM 0.`minor` that 0.24 lacked, or had by default."""
    found = {} if minor < 26 else since_026(layers[0])
    found |= {} if minor < 28 else since_028(*layers[:2])
    if minor >= 33:
        loads = replace(found["two formats, zeroed"], loads="both")
        found |= {"two formats, zeroed, loads": loads, **since_033(*layers)}
    return found


def since_026(full: Any) -> dict[str, Setup]:
    """Prompts that stay beside a window, and reported hits."""
    prompts = attention("RSWASpec", 4, rswa_window=9)
    half = replace(full, dtype=torch.float16)
    plain = Setup((full,), 60, 4, 4)
    return {
        "full, reports": replace(plain, has_events=True, has_reports=True),
        "prompt and window": Setup((prompts,), 60, 4, 4, has_events=True),
        "prompt and window, async": Setup((prompts,), 60, 4, 4, is_async=True),
        "two formats, zeroed": Setup((full, half), 90, 4, 4),
    }


def since_028(full: Any, window: Any) -> dict[str, Setup]:
    """Windows that retain more, and all of a cache retained by name."""
    kept = attention("SlidingWindowSpec", 4, sliding_window=10, extra_retained_tokens=6)
    return {
        "full and window, dense": Setup((full, window), 90, 4, 4, retention=DENSE, has_events=True),
        "window that retains more, async": Setup((kept,), 50, 4, 4, is_async=True),
    }


def since_033(full: Any, window: Any, wide: Any) -> dict[str, Setup]:
    """Return setups new in vLLM 0.33, and states, which kvfast serves again."""
    ring = attention("CircularBufferSpec", 8)
    latent = attention("MLAAttentionSpec", 4, num_kv_heads=1)
    narrow = attention("SlidingWindowMLASpec", 4, num_kv_heads=1, sliding_window=10)
    replayed = replace(narrow, bounded_replay=True)
    plain = Setup((full,), 60, 4, 4)
    drops = replace(plain, num_drafts=2, use_eagle=True, drops_blocks=True)
    return {
        "full, async, long prompts": replace(
            plain, is_async=True, most_of_prompt=4, is_adaptive=True, throttles=True
        ),
        "full, eagle, drops": replace(drops, has_events=True),
        "full and window, eagle, drops": replace(
            drops, specs=(full, window), num_blocks=90, has_events=True
        ),
        "full and wider window, async, eagle, drops": replace(
            drops, specs=(wide, window), num_blocks=90, block_size=8, is_async=True
        ),
        "latent and its window": Setup((latent, narrow), 90, 4, 4, has_events=True),
        "latent and replayed window": Setup((latent, replayed), 90, 4, 4, has_events=True),
        "latent and replayed window, loads": Setup((latent, replayed), 90, 4, 4, loads="both"),
        "latent, ring and replayed window, async": Setup(
            (latent, ring, replayed), 90, 8, 4, is_async=True
        ),
        "full and ring": Setup((full, ring), 90, 8, 4),
        **own_connectors(full, window),
        **states_since_then(full, window),
    }


def own_connectors(full: Any, window: Any) -> dict[str, Setup]:
    """Return setups with vLLM's own connectors, whose worker is made up."""
    plain = Setup((full,), 60, 4, 4)
    both = replace(plain, specs=(full, window), num_blocks=90)
    kinds = {
        "": plain,
        ", async": replace(plain, is_async=True),
        ", async, drafts": replace(plain, is_async=True, num_drafts=2),
        ", window": both,
        ", window, async": replace(both, is_async=True),
    }
    return {
        f"own {loads}{kind}": replace(setup, loads=loads)
        for loads in OWN
        for kind, setup in kinds.items()
        # A peer brings whole prompts, for which vLLM takes other blocks in windows.
        if "window" not in kind or loads not in ("nixl", "mooncake")
    }


def states_since_then(full: Any, window: Any) -> dict[str, Setup]:
    """Return setups with Mamba states, inside whose blocks hits may end."""
    drafted = states(8, "align", num_speculative_blocks=2)
    inside = states(8, "align", num_prefill_checkpoint_blocks=1, prefill_checkpoint_alignment=1)
    whole = replace(inside, block_size=4)
    dense = Setup((full, states(8, "align")), 90, 8, 4, mamba_mode="align", retention=DENSE)
    plain = replace(dense, num_blocks=120, retention=None)
    drops = replace(dense, num_blocks=120, num_drafts=2, use_eagle=True, drops_blocks=True)
    return {
        "full and states, dense": dense,
        "full and states, dense, events, async": replace(
            plain, retention=DENSE, is_async=True, has_events=True
        ),
        "full and states, drafts": replace(plain, specs=(full, drafted), num_drafts=2),
        "full and states, eagle": replace(
            plain, specs=(full, drafted), num_drafts=2, use_eagle=True, has_events=True
        ),
        "full and states, eagle, drops, dense": replace(
            drops, specs=(full, drafted), has_events=True
        ),
        "full and states, async, eagle, drops, dense": replace(
            drops, specs=(full, drafted), is_async=True
        ),
        "full, window and states": replace(
            plain, specs=(full, window, states(8, "align")), has_events=True
        ),
        "full and states, async, eagle": replace(
            plain, specs=(full, drafted), num_drafts=2, use_eagle=True, is_async=True
        ),
        "full and states, long prompts": replace(plain, most_of_prompt=5, throttles=True),
        "full and two states, priority": replace(
            plain, specs=(full, drafted, states(8, "align")), policy="priority", watermark=0.05
        ),
        "states": replace(plain, specs=(states(8, "align"),), hash_block_size=8),
        "full, ring and states, inside": replace(
            plain, specs=(full, attention("CircularBufferSpec", 8), inside)
        ),
        "full and states, pooling": replace(plain, pools=True, has_events=True),
        "full and states, items": replace(plain, encoder_cache=24),
        "full and states, inside": replace(plain, specs=(full, inside)),
        "full and states, inside, dense": replace(plain, specs=(full, inside), retention=DENSE),
        "full and states, inside, async, drafts": replace(
            plain,
            specs=(full, replace(inside, num_speculative_blocks=2)),
            num_drafts=2,
            is_async=True,
        ),
        "latent and states, inside, whole": Setup(
            (attention("MLAAttentionSpec", 4, num_kv_heads=1), whole), 180, 4, 4, mamba_mode="align"
        ),
        "full and states, inside, whole": Setup((full, whole), 180, 4, 4, mamba_mode="align"),
        "full and states, inside, whole, sessions": Setup(
            (full, whole), 600, 4, 4, mamba_mode="align", has_sessions=True
        ),
    }
