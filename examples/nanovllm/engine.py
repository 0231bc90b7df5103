"""nano-vllm's scheduler on its own block manager and on kvfast: the same tokens.

    PYTHONPATH=CHECKOUT_OF_NANO_VLLM python -m examples.nanovllm.engine

`BlockManager` is the whole integration. No device: a made-up model writes each token into the slot
that the block table names, and samples from what it reads back from there.
"""

from __future__ import annotations

import importlib
import sys
from random import Random
from types import ModuleType, SimpleNamespace
from typing import Any
from zlib import crc32

import kvfast
from kvcheck.adapters.nanovllm import without_init
from kvspec.blocks import KVCacheBlocks
from kvspec.config import KVCacheConfig, KVCacheGroup, ManagerConfig
from kvspec.policy import Policy
from kvspec.request import RequestInput
from kvspec.specs import FullAttentionSpec


class BlockManager:
    """nano-vllm's calls, implemented with kvfast. Block 0 is the contract's null block."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        spec = FullAttentionSpec(block_size, num_kv_heads=8, head_size=128, dtype="bfloat16")
        cache = KVCacheConfig(num_blocks + 1, (KVCacheGroup(("layers",), spec),))
        policy = Policy(unhashed_freed_to="back")  # nano-vllm has one order for all
        config = ManagerConfig(cache, max_model_len_tokens=4096, policy=policy)
        self.implementation = kvfast.implementation()
        self.manager = self.implementation.create(config, check_invariants=False)
        self.block_size = block_size
        self.requests: dict[int, Any] = {}
        self.hits: dict[int, KVCacheBlocks] = {}

    def request_of(self, seq: Any) -> Any:
        """Return kvfast's request, with all tokens of the sequence."""
        if seq.seq_id not in self.requests:
            given = RequestInput(str(seq.seq_id), seq.token_ids)
            self.requests[seq.seq_id] = self.implementation.make_request(self.manager, given)
        request = self.requests[seq.seq_id]
        if new := seq.token_ids[request.num_tokens :]:
            request.append(new)
        return request

    def can_allocate(self, seq: Any) -> int:
        """Return the number of hit blocks; -1 if the pool lacks the others of all the tokens."""
        hit = self.manager.get_computed_blocks(self.request_of(seq)).blocks
        self.hits[seq.seq_id], (ids,) = hit, hit.groups
        free = sum(self.manager.get_block(each).references == 0 for each in ids)
        needed = seq.num_blocks - len(ids) + free
        return len(ids) if needed <= self.manager.num_free_blocks else -1

    def allocate(self, seq: Any, num_cached_blocks: int) -> None:
        """Take the hit and all other blocks; they are cached once their tokens are computed."""
        request = self.request_of(seq)
        seq.num_cached_tokens = num_cached_blocks * self.block_size
        self.take(seq, request, seq.num_tokens - seq.num_cached_tokens, seq.num_cached_tokens)
        request.num_computed_tokens = seq.num_cached_tokens

    def take(self, seq: Any, request: Any, num_new: int, num_hit: int = 0) -> None:
        """Allocate slots for `num_new` tokens, which the pool has."""
        hit = self.hits.pop(seq.seq_id) if num_hit else None
        given: Any = {"num_new_computed_tokens": num_hit, "new_computed_blocks": hit}
        if self.manager.allocate_slots(request, num_new, delay_cache_blocks=True, **given) is None:
            raise RuntimeError(f"sequence {seq.seq_id} was not asked for first")
        seq.block_table[:] = self.manager.get_blocks(request).groups[0]

    def deallocate(self, seq: Any) -> None:
        """Release all blocks."""
        request = self.requests[seq.seq_id]
        self.manager.free(request)
        request.num_computed_tokens = seq.num_cached_tokens = 0
        seq.block_table.clear()
        if seq.is_finished:
            del self.requests[seq.seq_id]

    def can_append(self, seq: Any) -> bool:
        """Return whether there is a block for the next token, if it needs one."""
        return self.manager.num_free_blocks >= (len(seq) % self.block_size == 1)

    def may_append(self, seq: Any) -> None:
        """Have a slot for the last token."""
        request = self.request_of(seq)
        request.num_computed_tokens = len(seq) - 1
        self.take(seq, request, 1)

    def hash_blocks(self, seq: Any) -> None:
        """Register the blocks that the step filled."""
        request = self.request_of(seq)
        self.manager.cache_blocks(request, seq.num_cached_tokens + seq.num_scheduled_tokens)


def completions(scheduler: Any, arrivals: list[tuple[int, Any]]) -> list[list[int]]:
    """Return the outputs of sequences that arrive at these steps; a wrong slot changes them."""
    memory, size = dict[tuple[int, int], tuple[int, int]](), scheduler.block_size
    number, waiting = 0, list(reversed(arrivals))
    while waiting or not scheduler.is_finished():
        while waiting and (waiting[-1][0] <= number or scheduler.is_finished()):
            scheduler.add(waiting.pop()[1])
        number += 1
        (seqs, is_prefill), tokens = scheduler.schedule(), []
        for seq in seqs:
            start = seq.num_cached_tokens if is_prefill else len(seq) - 1
            end = start + seq.num_scheduled_tokens
            slots = [(seq.block_table[i // size], i % size) for i in range(end)]
            memory |= {slots[i]: (i, seq.token_ids[i]) for i in range(start, end)}
            tokens.append(crc32(str([memory.get(slot) for slot in slots]).encode()) % 50)
        scheduler.postprocess(seqs, tokens, is_prefill)
    return [seq.completion_token_ids for _, seq in arrivals]


def load() -> tuple[Any, Any]:
    """Import nano-vllm's scheduler and sequences without the engine around them."""
    with without_init():
        config: Any = ModuleType("nanovllm.config")  # its own reads a model's folder
        sys.modules["nanovllm.config"], config.Config = config, SimpleNamespace
        scheduler = importlib.import_module("nanovllm.engine.scheduler")
        return scheduler, importlib.import_module("nanovllm.engine.sequence")


def compare(num_sequences: int, seed: int) -> str:
    """Describe what both computed. SystemExit if their tokens differ."""
    scheduler, sequence = load()
    sequence.Sequence.block_size = size = 4
    given = {"max_num_seqs": 8, "max_num_batched_tokens": 64, "eos": 0, "num_kvcache_blocks": 40}
    config, found = SimpleNamespace(**given, kvcache_block_size=size), []
    for is_kvfast in (False, True):
        rng, made, arrivals = Random(seed), scheduler.Scheduler(config), []
        if is_kvfast:
            made.block_manager = BlockManager(40, size)
        for number in range(num_sequences):
            prompt = [rng.randrange(3)] * rng.choice((0, 8, 16, 24))
            prompt += [rng.randrange(1, 50) for _ in range(rng.randint(1, 30))]
            asked = {"max_tokens": rng.randint(1, 40), "ignore_eos": rng.random() < 0.5}
            seq = sequence.Sequence(prompt, SimpleNamespace(temperature=1, **asked))
            arrivals.append((number * 6, seq))
        found.append(completions(made, arrivals))
    if found[0] != found[1]:
        raise SystemExit(f"other tokens: {found}")
    return f"{num_sequences} sequences, the same {sum(map(len, found[0]))} tokens"


if __name__ == "__main__":
    print(compare(500, 1))
