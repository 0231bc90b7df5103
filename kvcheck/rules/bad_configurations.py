"""Configurations that cannot be served: the error names the field, and says what is allowed.

How it says so is free; the number or name that a reader needs must be in it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvcheck.rules.bench import Bench
from kvcheck.rules.example import cases, example
from kvcheck.rules.judging import equal, holds, raises
from kvcheck.rules.specs import chunked, cross, encoder_only, full, mamba, sliding
from kvspec.errors import ConfigError
from kvspec.specs import (
    FullAttentionSpec,
    LayerSpec,
    MambaSpec,
    SinkFullAttentionSpec,
    SlidingWindowSpec,
)

BAD_SPECS: tuple[tuple[str, Callable[[], LayerSpec], str, object, str], ...] = (
    ("block_of_0", lambda: full(0), "block_size", 0, "1"),
    ("block_of_minus_4", lambda: sliding(-4, 8), "block_size", -4, "1"),
    ("window_of_0", lambda: sliding(4, 0), "sliding_window", 0, "1"),
    ("window_below_0", lambda: sliding(4, -8), "sliding_window", -8, "1"),
    ("window_unset", lambda: SlidingWindowSpec(4, 1, 8, "float16"), "sliding_window", 0, "1"),
    ("window_a_text", lambda: sliding(4, "8"), "sliding_window", "8", "int"),  # type: ignore[arg-type]  # the point
    ("remembered_window_of_0", lambda: full(4, sliding_window=0), "sliding_window", 0, "1"),
    ("chunk_of_0", lambda: chunked(4, 0), "attention_chunk_size", 0, "1"),
    ("chunk_below_0", lambda: chunked(4, -4), "attention_chunk_size", -4, "1"),
    ("no_head", lambda: full(4, num_kv_heads=0), "num_kv_heads", 0, "1"),
    ("head_of_0", lambda: full(4, head_size=0), "head_size", 0, "1"),
    ("unknown_dtype", lambda: full(4, dtype="float12"), "dtype", "float12", "bfloat16"),
    ("state_dtype", lambda: MambaSpec(4, ((2,),), ("half",)), "dtypes", "half", "float16"),
    ("state_dtypes", lambda: MambaSpec(4, ((2,),), ()), "dtypes", (), "1"),
    ("cache_mode", lambda: mamba(4, "some"), "mamba_cache_mode", "some", "align"),
    ("drafts", lambda: mamba(4, speculative=-1), "num_speculative_blocks", -1, "0"),
    ("sink", lambda: SinkFullAttentionSpec(4, 1, 8, "float16", sink_len=6), "sink_len", 6, "4"),
    (
        "padding",
        lambda: FullAttentionSpec(4, 1, 8, "float16", page_size_padded=0),
        "page_size_padded",
        0,
        "1",
    ),
)


@cases(*[case[1:] for case in BAD_SPECS])
@example("KV-CFG-1", "KV-ERR-5")
def a_bad_spec_is_refused_when_it_is_made(
    bench: Bench, make: Callable[[], LayerSpec], field: str, value: object, allowed: str
) -> None:
    """No manager is needed: the value itself is wrong."""
    with raises(ConfigError) as caught:
        make()
    equal((caught.value.field, caught.value.value), (field, value))
    holds(str(caught.value).startswith(f"{field} = {value!r}: must be "))


HYBRID = (full(4), sliding(8, 16))
TWICE = "two groups"

BAD_CONFIGURATIONS: tuple[tuple[Any, ...], ...] = (
    # KV-CFG-5
    ({"specs": HYBRID, "hash_block_size_tokens": 3}, "hash_block_size_tokens", "4"),
    ({"specs": HYBRID, "hash_block_size_tokens": 8}, "hash_block_size_tokens", "4"),
    # KV-CFG-4
    ({"specs": [sliding(4, 8)], "scheduler_block_size_tokens": 8},
     "scheduler_block_size_tokens", "4"),
    ({"specs": [full(4), sliding(6, 16)], "scheduler_block_size_tokens": 8},
     "scheduler_block_size_tokens", "12"),
    ({"specs": [full(4), sliding(6, 16)], "scheduler_block_size_tokens": 24},
     "scheduler_block_size_tokens", "12"),
    # KV-CFG-7
    ({"specs": [full(4), chunked(4, 8)], "retention_interval_tokens": 8},
     "retention_interval_tokens", "None"),
    ({"specs": HYBRID, "retention_interval_tokens": -8}, "retention_interval_tokens", "8"),
    ({"specs": HYBRID, "retention_interval_tokens": 12}, "retention_interval_tokens", "8"),
    ({"specs": [mamba(4)], "retention_interval_tokens": 6}, "retention_interval_tokens", "4"),
    # KV-COORD-3
    ({"specs": HYBRID, "dcp_world_size": 2}, "dcp_world_size", "1"),
    ({"specs": HYBRID, "pcp_world_size": 4}, "pcp_world_size", "1"),
    # KV-CFG-6
    ({"specs": [sliding(4, 8)], "dcp_world_size": 2}, "dcp_world_size", "1"),
    ({"specs": [mamba(4)], "dcp_world_size": 2}, "dcp_world_size", "1"),
    ({"dcp_world_size": 0}, "dcp_world_size", "1"),
    # KV-CFG-3
    ({"specs": []}, "kv_cache.groups", "one", ()),
    # KV-COORD-3
    ({"specs": [full(4), full(4)]}, "kv_cache.groups", "different spec", TWICE),
    # KV-CROSS-4
    ({"specs": [full(4), cross(4)]}, "enable_caching", "False", True),
    ({"specs": [encoder_only(4)]}, "enable_caching", "False", True),
    # KV-CHUNK-3
    ({"specs": [chunked(4, 6)]}, "attention_chunk_size", "4", 6),
    ({"specs": [chunked(4, 8)], "use_eagle": True}, "is_eagle_group", "False", True),
    ({"specs": [full(8), chunked(4, 8)]}, "block_size", "8", 4),
    # KV-ERR-5
    ({"hash_function": "md5"}, "hash_function", "sha256_cbor"),
    ({"watermark": 1.5}, "watermark", "1"),
    ({"max_model_len_tokens": 0}, "max_model_len_tokens", "1"),
    ({"max_num_batched_tokens": 0}, "max_num_batched_tokens", "1"),
)  # fmt: skip
"""What is configured, the field that is refused, a word of what is allowed, and the value that is
shown, if the configuration has no such member."""


@cases(*[case[:3] for case in BAD_CONFIGURATIONS])
@example(
    "KV-ERR-5",
    "KV-CFG-3",
    "KV-CFG-4",
    "KV-CFG-5",
    "KV-CFG-6",
    "KV-CFG-7",
    "KV-COORD-3",
)
def a_bad_configuration_is_refused(
    bench: Bench, config: dict[str, Any], field: str, allowed: str
) -> None:
    """Before anything is made; the message can be acted on."""
    if field == "attention_chunk_size":
        bench.need_usual("chunk_must_align")
    with raises(ConfigError, field=field) as caught:
        bench.manager(40, **config)
    if not bench.is_remote:
        holds(allowed in caught.value.allowed)
        holds(field in str(caught.value))
