"""A block manager with the members that the nano-vllm adapter uses, to test it without nano-vllm.

Written for these tests: prefixes are tuples, and a dict finds them. `write_package` makes it an
importable `nanovllm` whose `__init__` must not run.
"""

from __future__ import annotations

from pathlib import Path

INIT = 'raise RuntimeError("the engine was imported")\n'

SEQUENCE = """
class Sequence:
    block_size = 256

    def __init__(self, token_ids):
        self.token_ids = list(token_ids)
        self.block_table = []
        self.num_cached_tokens = 0
        self.num_scheduled_tokens = 0

    def __len__(self):
        return len(self.token_ids)

    @property
    def num_blocks(self):
        return -(-len(self.token_ids) // self.block_size)

    def block(self, index):
        return self.token_ids[index * self.block_size : (index + 1) * self.block_size]

    def append_token(self, token):
        self.token_ids.append(token)
"""

MANAGER = """
from nanovllm.engine.sequence import Sequence


class BlockManager:
    def __init__(self, num_blocks, block_size):
        self.block_size = block_size
        self.free_block_ids = list(range(num_blocks))
        self.users = [0] * num_blocks
        self.hash_to_block_id = {}

    @staticmethod
    def compute_hash(token_ids, prefix=-1):
        return ((() if prefix == -1 else prefix), tuple(token_ids))

    def hashes(self, seq, count):
        found, last = [], -1
        for index in range(count):
            last = self.compute_hash(seq.block(index), last)
            found.append(last)
        return found

    def can_allocate(self, seq):
        hits = []
        for block_hash in self.hashes(seq, seq.num_blocks - 1):
            if block_hash not in self.hash_to_block_id:
                break
            hits.append(self.hash_to_block_id[block_hash])
        shared = sum(1 for block in hits if self.users[block])
        return len(hits) if seq.num_blocks - shared <= len(self.free_block_ids) else -1

    def take(self):
        block = self.free_block_ids.pop(0)
        for block_hash in [h for h, b in self.hash_to_block_id.items() if b == block]:
            del self.hash_to_block_id[block_hash]
        return block

    def allocate(self, seq, num_cached_blocks):
        for block_hash in self.hashes(seq, num_cached_blocks):
            block = self.hash_to_block_id[block_hash]
            if not self.users[block]:
                self.free_block_ids.remove(block)
            self.users[block] += 1
            seq.block_table.append(block)
        while len(seq.block_table) < seq.num_blocks:
            self.grow(seq)
        seq.num_cached_tokens = num_cached_blocks * self.block_size

    def grow(self, seq):
        seq.block_table.append(self.take())
        self.users[seq.block_table[-1]] = 1

    def deallocate(self, seq):
        for block in reversed(seq.block_table):
            self.users[block] -= 1
            if not self.users[block]:
                self.free_block_ids.append(block)
        seq.block_table.clear()
        seq.num_cached_tokens = 0

    def can_append(self, seq):
        return len(self.free_block_ids) >= (len(seq) % self.block_size == 1)

    def may_append(self, seq):
        if len(seq) % self.block_size == 1:
            self.grow(seq)

    def hash_blocks(self, seq):
        end = (seq.num_cached_tokens + seq.num_scheduled_tokens) // self.block_size
        for block_hash, block in zip(self.hashes(seq, end), seq.block_table):
            self.hash_to_block_id.setdefault(block_hash, block)
"""


def write_package(folder: Path) -> None:
    """Write `nanovllm` with its two modules below `folder`."""
    engine = folder / "nanovllm" / "engine"
    engine.mkdir(parents=True)
    (folder / "nanovllm" / "__init__.py").write_text(INIT)
    (engine / "sequence.py").write_text(SEQUENCE)
    (engine / "block_manager.py").write_text(MANAGER)
