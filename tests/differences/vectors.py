"""How the vectors were made: `python -m tests.differences.vectors` writes them again.

Each shows, in as few operations as possible, one point where the rules differ from vLLM 0.24.0; the
README beside the files says which, and what vLLM answers instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvcheck.discovery import find_implementation
from kvcheck.play.recorder import Recorder
from kvcheck.records.select import shipped_records
from kvspec.config import KVCacheConfig, KVCacheGroup, ManagerConfig
from kvspec.errors import ConfigError
from kvspec.policy import OLDER, Policy
from kvspec.record import Header
from kvspec.record_file import write_trace
from kvspec.specs import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    LayerSpec,
    MambaSpec,
    SlidingWindowSpec,
)

FULL = FullAttentionSpec(4, 1, 8, "float16")
WIDE_FULL = FullAttentionSpec(4, 2, 8, "float16")
WINDOW = SlidingWindowSpec(4, 1, 8, "float16", sliding_window=5)
MAMBA = MambaSpec(4, ((2,),), ("float32",), mamba_cache_mode="all")
ALIGN = MambaSpec(4, ((2,),), ("float32",), mamba_cache_mode="align", num_speculative_blocks=1)
CHUNKED = ChunkedLocalAttentionSpec(4, 1, 8, "float16", attention_chunk_size=6)


def configuration(
    specs: Sequence[LayerSpec], num_blocks: int, *, eagle: bool = False, **members: Any
) -> ManagerConfig:
    """One group per spec, all of them eagle groups or none."""
    groups = tuple(
        KVCacheGroup((f"layer.{number}",), spec, is_eagle_group=eagle)
        for number, spec in enumerate(specs)
    )
    policy = Policy.vllm_0_24()
    values: dict[str, Any] = {"max_model_len_tokens": 64, "hash_seed": "0", "policy": policy}
    return ManagerConfig(KVCacheConfig(num_blocks, groups), **{**values, **members})


def record(scenario: str, *specs: LayerSpec, num_blocks: int = 24, **members: Any) -> Recorder:
    """A recorder on kvref."""
    config = configuration(specs, num_blocks, **members)
    return Recorder(find_implementation("kvref"), config, scenario=scenario)


def allocate(recorder: Recorder, name: str, computed: int, num_new: int, **arguments: Any) -> Any:
    """One allocation; a request is WAITING while it has computed nothing."""
    status = "RUNNING" if computed else "WAITING"
    return recorder.play(
        "allocate_slots",
        name,
        num_computed_tokens=computed,
        status=status,
        num_new_tokens=num_new,
        **arguments,
    )


def eagle_mamba() -> Recorder:
    """A flagged Mamba group beside flagged full attention: 12 of 13 prompt tokens are cached."""
    recorder = record("eagle_mamba", FULL, MAMBA, eagle=True, use_eagle=True)
    prompt = list(range(13))
    recorder.play("new_request", "a", prompt_token_ids=prompt)
    recorder.admit("a", 13)
    recorder.play("new_step_starts")
    recorder.play("new_request", "b", prompt_token_ids=prompt)
    recorder.admit("b", 5)
    return recorder


def two_full_specs() -> Recorder:
    """Two specs of full attention and a window that shortens the hit from 16 tokens to 8."""
    recorder = record("two_full_specs", FULL, WIDE_FULL, WINDOW, num_blocks=30)
    prompt = list(range(17))
    recorder.play("new_request", "a", prompt_token_ids=prompt)
    recorder.admit("a", 17)
    window = recorder.play("get_block_ids", "a")["blocks"][2]
    recorder.play("evict_blocks", block_ids=window[2:4])
    recorder.play("new_request", "b", prompt_token_ids=prompt)
    recorder.admit("b", 9)
    return recorder


def align_null_gap() -> Recorder:
    """Mode align: a state before a gap of nulls, left there by a short step."""
    recorder = record("align_null_gap", ALIGN, enable_caching=False)
    recorder.play("new_request", "a", prompt_token_ids=list(range(25)))
    allocate(recorder, "a", 0, 4)
    allocate(recorder, "a", 4, 1)
    allocate(recorder, "a", 5, 16)
    allocate(recorder, "a", 21, 4)
    recorder.play("get_block_ids", "a")
    recorder.play("free", "a")
    return recorder


def align_external() -> Recorder:
    """Mode align: 8 external tokens and 4 new ones take 3 blocks, and 2 are free."""
    recorder = record("align_external", ALIGN, num_blocks=3)
    recorder.play("new_request", "a", prompt_token_ids=list(range(14)))
    allocate(recorder, "a", 0, 4, num_external_computed_tokens=8)
    recorder.play("get_block_ids", "a")
    return recorder


def late_items() -> Recorder:
    """Two images in a block that generated tokens complete; the requests differ in the first."""
    recorder = record("late_items", FULL)
    last = {"identifier": "image-2", "offset": 5, "length": 1}
    for name, identifier in (("a", "image-1"), ("b", "image-3")):
        first = {"identifier": identifier, "offset": 4, "length": 1}
        recorder.play(
            "new_request", name, prompt_token_ids=[1, 2, 3, 4, 9, 9], mm_features=[first, last]
        )
        recorder.play("append_tokens", name, token_ids=[5, 6, 7])
        recorder.admit(name, 9 if name == "a" else 5)
    return recorder


def whole_prompt_external() -> Recorder:
    """A window of 5, a prompt of 12 tokens loaded whole, and its last token computed again."""
    recorder = record("whole_prompt_external", WINDOW)
    recorder.play("new_request", "a", prompt_token_ids=list(range(12)))
    allocate(recorder, "a", 0, 0, num_external_computed_tokens=12, delay_cache_blocks=True)
    recorder.play("get_block_ids", "a")
    recorder.play("cache_blocks", "a", num_computed_tokens=11)
    allocate(recorder, "a", 11, 1)
    recorder.play("get_block_ids", "a")
    return recorder


def verified_tokens() -> Recorder:
    """A window of 5 and three drafts a step: the next step says 9 computed tokens, not 12."""
    recorder = record("verified_tokens", WINDOW)
    recorder.play("new_request", "a", prompt_token_ids=list(range(9)))
    allocate(recorder, "a", 0, 8)
    allocate(recorder, "a", 8, 4)
    recorder.play("append_tokens", "a", token_ids=[50])
    allocate(recorder, "a", 9, 4)
    recorder.play("get_block_ids", "a")
    return recorder


def skipped_read() -> Recorder:
    """A request that skips reading, after one with an uncached common prefix."""
    recorder = record("skipped_read", FULL, WINDOW)
    prompt = list(range(17))
    recorder.play("new_request", "a", prompt_token_ids=prompt)
    recorder.admit("a", 17)
    window = recorder.play("get_block_ids", "a")["blocks"][1]
    recorder.play("evict_blocks", block_ids=window[3:4])
    recorder.play("new_request", "b", prompt_token_ids=prompt)
    recorder.play("get_computed_blocks", "b")
    recorder.play("new_request", "c", prompt_token_ids=prompt, skip_reading_prefix_cache=True)
    recorder.play("get_computed_blocks", "c")
    return recorder


def external_behind_lookahead() -> Recorder:
    """External tokens for a request that holds more blocks than they need, and no entry."""
    recorder = record("external_behind_lookahead", FULL)
    recorder.play("new_request", "a", prompt_token_ids=list(range(9)))
    allocate(recorder, "a", 0, 1, num_lookahead_tokens=7)
    allocate(recorder, "a", 1, 1, num_external_computed_tokens=1)
    recorder.play("get_block_ids", "a")
    return recorder


def released_twice() -> Recorder:
    """References returned twice, ids out of range, and requests that nobody knows."""
    recorder = record("released_twice", FULL, num_blocks=6)
    for name, first in (("a", 1), ("b", 1)):
        prompt = [*range(first, first + 8), 50 + ord(name)]
        recorder.play("new_request", name, prompt_token_ids=prompt)
        recorder.admit(name, 9 if name == "a" else 1)
    popped = recorder.play("pop_blocks_for_free", "a")
    recorder.play("free_blocks", block_ids=popped[::-1])
    recorder.play("free_blocks", block_ids=[1])  # the reference that is left is b's
    recorder.play("free_blocks", block_ids=[0, 3])
    recorder.play("evict_blocks", block_ids=[-1])
    recorder.play("evict_blocks", block_ids=[2, 6])
    recorder.play("free", "a")
    recorder.play("pop_blocks_for_free", "a")
    recorder.play("free", "b")
    return recorder


def illegal_arguments() -> Recorder:
    """Hits for a request under way, and hits of the wrong length."""
    recorder = record("illegal_arguments", FULL)
    prompt = list(range(9))
    recorder.play("new_request", "a", prompt_token_ids=prompt)
    recorder.admit("a", 9)
    allocate(recorder, "a", 9, 1, num_new_computed_tokens=8, new_computed_blocks=[[1, 2]])
    recorder.play("new_request", "b", prompt_token_ids=prompt)
    allocate(recorder, "b", 0, 1, num_new_computed_tokens=4, new_computed_blocks=[[1, 2]])
    allocate(recorder, "b", 0, 1, num_new_computed_tokens=8, new_computed_blocks=[[1, 3]])
    recorder.play("get_block_ids", "b")
    return recorder


def short_lists() -> Recorder:
    """Own hits of 12 and of 4 tokens: a load fills up the states; then without a load."""
    recorder = record("short_lists", FULL, MAMBA)
    prompt = list(range(17))

    def offer(name: str, num_new: int, **arguments: Any) -> Any:
        own = recorder.play("find_longest_cache_hit_per_group", name, max_cache_hit_length=16)
        given = {
            "num_new_computed_tokens": max(own["hit_lengths"]),
            "new_computed_blocks": own["blocks"],
        }
        return allocate(recorder, name, 0, num_new, **given, **arguments)

    recorder.play("new_request", "a", prompt_token_ids=prompt)
    allocate(recorder, "a", 0, 12)
    recorder.play("new_step_starts")
    states = recorder.play("get_block_ids", "a")["blocks"][1]
    recorder.play("evict_blocks", block_ids=states[1:])
    recorder.play("free", "a")
    recorder.play("new_request", "b", prompt_token_ids=prompt)
    load = {"num_external_computed_tokens": 4, "delay_cache_blocks": True}
    offer("b", 0, **load, reserved_blocks=19)
    offer("b", 0, **load)
    states = recorder.play("get_block_ids", "b")["blocks"][1]
    recorder.play("cache_blocks", "b", num_computed_tokens=16)
    recorder.play("new_step_starts")
    recorder.play("evict_blocks", block_ids=states)
    recorder.play("new_request", "c", prompt_token_ids=prompt)
    offer("c", 1)
    recorder.play("get_block_ids", "c")
    return recorder


RECORDS: Mapping[str, Callable[[], Recorder]] = {
    "eagle_mamba.jsonl": eagle_mamba,
    "two_full_specs.jsonl": two_full_specs,
    "align_null_gap.jsonl": align_null_gap,
    "align_external.jsonl": align_external,
    "late_items.jsonl": late_items,
    "whole_prompt_external.jsonl": whole_prompt_external,
    "verified_tokens.jsonl": verified_tokens,
    "skipped_read.jsonl": skipped_read,
    "external_behind_lookahead.jsonl": external_behind_lookahead,
    "released_twice.jsonl": released_twice,
    "illegal_arguments.jsonl": illegal_arguments,
    "short_lists.jsonl": short_lists,
}

REFUSED = "chunk_inside_block.jsonl"
"""The one vector without operations: its configuration must be refused."""


def chunk_inside_block() -> Header:
    """A chunk of 6 tokens in blocks of 4: building the manager fails."""
    implementation = find_implementation("kvref")
    config = configuration([CHUNKED], 12, policy=Policy(**dict[str, Any](OLDER)))
    aligned = replace(CHUNKED, attention_chunk_size=8)
    none_hash = implementation.create(configuration([aligned], 12)).none_hash
    try:
        implementation.create(config)
    except ConfigError as error:
        message = str(error)
    return Header(
        config=replace(config, scheduler_block_size_tokens=4, hash_block_size_tokens=4),
        none_hash=none_hash,
        initial=None,
        source=f"{implementation.capabilities.name} {implementation.capabilities.version}",
        scenario="chunk_inside_block",
        raises="ValueError",
        message=message,
    )


def folder() -> Path:
    """Where the vectors lie."""
    return shipped_records() / "differences"


def write_vectors(target: Path) -> None:
    """Write all of them."""
    target.mkdir(parents=True, exist_ok=True)
    for name, make in RECORDS.items():
        make().write(target / name)
    write_trace(target / REFUSED, chunk_inside_block(), (), {})


if __name__ == "__main__":
    write_vectors(folder())
