"""The cases: each does the same work in several ways, and states how many bytes it moves.

Block size 16, 8 heads of size 128, bfloat16: a token has 4 KiB of keys and values in a layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import torch

from bench.device.peers import Tokens, writers
from bench.device.timing import Call, captured
from kvfast.device import Backend, DeviceTables, Ids, KVPools, PageOperations, Swapper, Transfer
from kvspec.config import KVCacheConfig, KVCacheGroup, ManagerConfig
from kvspec.specs import FullAttentionSpec

BLOCK_SIZE = 16
SPEC = FullAttentionSpec(BLOCK_SIZE, 8, 128, "bfloat16")
TOKEN_BYTES = 2 * 8 * 128 * 2
PAGE_BYTES = BLOCK_SIZE * TOKEN_BYTES
COPY = "copy of as many bytes"


@dataclass
class Case:
    """One row of the table.

    - `moved_bytes`: read plus written, as far as the work needs it; of swaps, over the bus.
    - `staged_bytes`: copied from the host for `new_blocks` blocks, where that is of interest.
    - `contestants[COPY]` moves as many by one copy: in device memory, for swaps over the bus.
    - `failed`: what could not be run, and why.
    """

    phase: str
    size: str
    moved_bytes: int
    contestants: dict[str, Call] = field(default_factory=dict)
    staged_bytes: int | None = None
    new_blocks: int = 0
    failed: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Bench:
    """The device and the sizes. `backends`: the forms of an operation that are compared, by name.

    `num_calls`: calls in one graph.
    """

    device: torch.device
    num_blocks: int
    backends: dict[str, Backend]
    num_calls: int = 20

    def add(self, case: Case, name: str, call: Callable[..., object], *given: object) -> None:
        """Add a contestant, captured in a graph; one that cannot be captured is noted and left
        out.
        """
        try:
            case.contestants[name] = captured(lambda: call(*given), self.device, self.num_calls)
        except RuntimeError as error:
            case.failed[name] = str(error).partition("\n")[0]

    @property
    def pools(self) -> KVPools:
        """Pools of one layer."""
        groups = (KVCacheGroup(("layer",), SPEC),)
        return KVPools(KVCacheConfig(self.num_blocks, groups), device=self.device)

    def slots(self, num: int) -> torch.Tensor:
        """Return `num` slots in blocks at random places, each block filled in order."""
        generator = torch.Generator().manual_seed(num)
        blocks = 1 + torch.randperm(self.num_blocks - 1, generator=generator)
        blocks = blocks[: -(-num // BLOCK_SIZE)]
        slots = blocks[:, None] * BLOCK_SIZE + torch.arange(BLOCK_SIZE)
        return slots.flatten()[:num].to(self.device)

    def add_copy(self, case: Case, moved_bytes: int) -> None:
        """Add a plain copy that reads and writes `moved_bytes` together, of random data."""
        num = max(1, moved_bytes // 2)
        source = torch.empty(num, dtype=torch.uint8, device=self.device).random_()
        target = torch.empty_like(source)
        self.add(case, COPY, target.copy_, source)


def page_cases(bench: Bench, token_counts: list[int], block_counts: list[int]) -> Iterator[Case]:
    """Yield the cases that write and read tokens, and copy and zero blocks."""
    pools = bench.pools
    operations = {
        name: PageOperations(pools, backend=backend) for name, backend in bench.backends.items()
    }
    for num in (one for one in token_counts if one <= BLOCK_SIZE * (bench.num_blocks - 1)):
        slots = bench.slots(num)
        keys = torch.randn((num, 8, 128), device=bench.device).bfloat16()
        values = -keys
        yield from _token_cases(bench, pools, operations, (keys, values, slots))
    generator = torch.Generator().manual_seed(0)
    for num in (one for one in block_counts if 2 * one < bench.num_blocks):
        ids = (1 + torch.randperm(bench.num_blocks - 1, generator=generator)).to(bench.device)
        first, second = ids[:num], ids[num : 2 * num]
        copies = Case("copy blocks", f"{num:,} blocks", 2 * num * PAGE_BYTES)
        zeros = Case("zero blocks", f"{num:,} blocks", num * PAGE_BYTES)
        for name, one in operations.items():
            bench.add(copies, name, one.copy_blocks, first, second)
            bench.add(zeros, name, one.zero_blocks, first)
        pages = pools.pages[0]
        way = "torch's index_select + index_copy_"
        bench.add(copies, way, _copied_by_torch, pages, first, second)
        bench.add(zeros, "torch's index_fill_", pages.index_fill_, 0, first, 0)
        for case in (copies, zeros):
            bench.add_copy(case, case.moved_bytes)
            yield case


def _token_cases(
    bench: Bench,
    pools: KVPools,
    operations: dict[str, PageOperations],
    given: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
) -> Iterator[Case]:
    keys, values, slots = given
    num = len(slots)
    write = Case("write", f"{num:,} tokens", 2 * num * TOKEN_BYTES)
    gather = Case("gather", f"{num:,} tokens", 2 * num * TOKEN_BYTES)
    for name, one in operations.items():
        bench.add(write, name, one.write, "layer", keys, values, slots)
        bench.add(gather, name, one.gather, "layer", slots)
    parts = pools.layers["layer"].parts
    blocks, offsets = slots // BLOCK_SIZE, slots % BLOCK_SIZE

    def index_put() -> None:
        parts["key"].index_put_((blocks, offsets), keys)
        parts["value"].index_put_((blocks, offsets), values)

    def index() -> object:
        return parts["key"][blocks, offsets], parts["value"][blocks, offsets]

    bench.add(write, "torch's index_put_", index_put)
    if bench.device.type == "cuda":
        tokens = Tokens(keys, values, slots, parts["key"], parts["value"])
        for name, peer in writers(tokens):
            bench.add(write, name, peer)
    bench.add(gather, "torch's indexing", index)
    for case in (write, gather):
        bench.add_copy(case, case.moved_bytes)
        yield case


def swap_cases(bench: Bench, block_counts: list[int]) -> Iterator[Case]:
    """Yield copies of blocks to pinned host memory and back, beside one copy of as many bytes.

    They are not captured: an engine calls swaps from the host, so the host's part is in the times.
    """
    pools = bench.pools
    host = KVPools(pools.cache, pin_memory=bench.device.type == "cuda")
    generator = torch.Generator().manual_seed(1)
    for num in block_counts:
        ids = (1 + torch.randperm(bench.num_blocks - 1, generator=generator)[:num]).tolist()
        plain = pools.pages[0][1 : 1 + num]
        far = host.pages[0][1 : 1 + num]
        out = Case("swap out", f"{num:,} blocks", num * PAGE_BYTES)
        back = Case("swap in", f"{num:,} blocks", num * PAGE_BYTES)
        for name, backend in bench.backends.items():
            swapper = Swapper(pools, host, backend=backend)
            out.contestants[name] = _waited(swapper.swap_out, ids)
            back.contestants[name] = _waited(swapper.swap_in, ids)
        out.contestants[COPY] = partial(far.copy_, plain, non_blocking=True)
        back.contestants[COPY] = partial(plain.copy_, far, non_blocking=True)
        yield out
        yield back


def table_cases(bench: Bench, request_counts: list[int]) -> Iterator[Case]:
    """Yield the device's part of decode steps in which every sixteenth request begins a block.

    Each call continues where the one before ended: sequences grow by a token, and the limit is far
    enough.
    """
    for num in request_counts:
        num_blocks = num + 1
        groups = (KVCacheGroup(("layer",), SPEC),)
        config = ManagerConfig(KVCacheConfig(num_blocks, groups), 256 * BLOCK_SIZE)
        case = Case("tables and slots", f"{num:,} requests", 0)
        for name, backend in bench.backends.items():
            tables = DeviceTables(
                config, max_requests=num, max_tokens=num, device=bench.device, backend=backend
            )
            tables.set_lengths(range(num), 500)
            new = range(0, num, 16)
            rows = torch.tensor([[handle, 0, 32, 1 + handle] for handle in new], dtype=torch.int32)
            tables.update(range(num), [1] * num, rows)
            tables.update(range(num), [1] * num, rows)
            case.staged_bytes, case.new_blocks = tables.staged_bytes, len(new)
            bench.add(case, name, tables.apply)
        bench.add_copy(case, num * 32)
        yield case


def _copied_by_torch(pages: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> object:
    return pages.index_copy_(0, second, pages.index_select(0, first))


def _waited(swap: Callable[[Ids, Ids], Transfer], ids: list[int]) -> Call:
    def call() -> None:
        swap(ids, ids).wait()

    return call
