"""How the records in the package were made: `python -m tests.records.shipped` writes them again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from kvcheck.discovery import find_implementation
from kvcheck.play.recorder import Recorder
from kvcheck.records.select import shipped_records
from kvspec.config import KVCacheConfig, KVCacheGroup, ManagerConfig
from kvspec.policy import Policy
from kvspec.specs import FullAttentionSpec, MLAAttentionSpec

FULL = FullAttentionSpec(4, 2, 64, "bfloat16")
MLA = MLAAttentionSpec(4, 1, 576, "bfloat16")


def life_of_blocks() -> Recorder:
    """Sharing, chunks, decoding, duplicates, refusal, preemption, eviction, reset: 8 blocks."""
    config = ManagerConfig(
        KVCacheConfig(8, (KVCacheGroup(("layer.0", "layer.1"), FULL),)),
        max_model_len_tokens=64,
        log_stats=True,
        enable_events=True,
        hash_seed="0",
        policy=Policy.vllm_0_24(),
    )
    recorder = Recorder(find_implementation("kvref"), config, scenario="life_of_blocks")
    play = recorder.play
    play("new_request", "a", prompt_token_ids=[1, 2, 3, 4, 5, 6, 7, 8, 9, 10])
    recorder.admit("a", 6)
    play("allocate_slots", "a", num_computed_tokens=6, status="RUNNING", num_new_tokens=4)
    # The same prompt with another end: two blocks are shared.
    play("new_request", "b", prompt_token_ids=[1, 2, 3, 4, 5, 6, 7, 8, 11])
    recorder.admit("b", 1)
    play("get_num_common_prefix_blocks", "a")
    # Both generate the same tokens after different ones; then one fills the other's block.
    play("append_tokens", "a", token_ids=[12, 13])
    play("allocate_slots", "a", num_computed_tokens=10, status="RUNNING", num_new_tokens=2)
    play("new_request", "c", prompt_token_ids=[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 13])
    recorder.admit("c", 4)  # the third block is a duplicate: its last token is computed again
    play("get_block_ids", "c")
    play("new_request", "d", prompt_token_ids=list(range(20, 40)))
    recorder.admit("d", 20)  # no room: null
    play("free", "b")  # preempted: no reference of its own is left
    recorder.admit("d", 8, full_sequence_must_fit=True)
    recorder.admit("d", 8)
    play("take_new_block_ids")
    play("evict_blocks", block_ids=[3, 1])
    popped = play("pop_blocks_for_free", "c")
    play("free_blocks", block_ids=popped[::-1])
    play("reset_prefix_cache")  # refused: blocks are in use
    play("free", "a")
    play("get_computed_blocks", "b", num_preemptions=1)
    play("allocate_slots", "b", num_computed_tokens=0, status="PREEMPTED", num_new_tokens=0)
    play("free", "d")
    play("reset_prefix_cache")
    play("make_prefix_cache_stats")
    play("take_events")
    return recorder


def identities() -> Recorder:
    """What keeps equal tokens apart – adapter, items, salt – in a pool shown by its hash."""
    config = ManagerConfig(
        KVCacheConfig(100, (KVCacheGroup(("layer.0",), MLA),)),
        max_model_len_tokens=256,
        enable_events=True,
        int_event_hashes=True,
        dcp_world_size=2,
        watermark=0.05,
        hash_seed="identities",
        policy=Policy.vllm_0_24(),
    )
    recorder = Recorder(find_implementation("kvref"), config, scenario="identities")
    play = recorder.play
    tokens = list(range(100, 120))
    item = {"identifier": "image-1", "offset": 4, "length": 6}
    differing: Mapping[str, dict[str, object]] = {
        "plain": {},
        "adapter": {"lora": {"name": "fr", "id": 3}},
        "salted": {"cache_salt": "tenant"},
        "image": {"mm_features": [item]},
        "image_moved": {"mm_features": [{**item, "offset": 5}]},
        "unread": {"skip_reading_prefix_cache": True},
    }
    for name, extra in differing.items():
        play("new_request", name, prompt_token_ids=tokens, **extra)
        recorder.admit(name, 20)
    play("new_request", "again", prompt_token_ids=[*tokens, 7], lora={"name": "fr", "id": 4})
    recorder.admit("again", 5)
    play("new_request", "loaded", prompt_token_ids=list(range(24)))
    play(
        "allocate_slots",
        "loaded",
        num_computed_tokens=0,
        status="WAITING",
        num_new_tokens=8,
        num_external_computed_tokens=16,
        num_lookahead_tokens=2,
        delay_cache_blocks=True,
    )
    play("cache_blocks", "loaded", num_computed_tokens=24)
    for name in differing:
        play("free", name)
    play("take_events")
    return recorder


RECORDS: Mapping[str, Callable[[], Recorder]] = {
    "life_of_blocks.jsonl": life_of_blocks,
    "identities.jsonl": identities,
}


def write_records(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, make in RECORDS.items():
        make().write(folder / name)


if __name__ == "__main__":
    write_records(shipped_records())
