"""A KV connector that moves nothing, with the worker's side: loads that ended or failed.

Its results depend on names and numbers alone, so two schedulers get the same.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    SupportsHMA,
)
from vllm.v1.outputs import KVConnectorOutput


@dataclass
class Seen(KVConnectorMetadata):  # type: ignore[misc]  # vLLM has no types where it is not installed
    """The connector's observations in one step; part of the plan, so it is compared."""

    lists: list[Any] = field(default_factory=list)
    blocks: list[Any] = field(default_factory=list)
    freed: list[str] = field(default_factory=list)


class MadeUpConnector(KVConnectorBase_V1, SupportsHMA):  # type: ignore[misc]  # as above
    """The scheduler's side. Extra configuration: `loads`, `unit` and `whole`.

    `loads`: sync, async or both. It finds a number of units of tokens after the local hit, and with
    `whole` also the whole prompt. It keeps blocks of requests that ended (`sending`) and references
    to single blocks (`pinned`) for a while.
    """

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        asked = vllm_config.kv_transfer_config.kv_connector_extra_config
        self.loads: str = asked["loads"]
        self.unit: int = asked["unit"]
        self.whole: bool = asked["whole"]
        self.pool: Any = None
        self.seen = Seen()
        self.put_off: set[tuple[str, int]] = set()
        self.announced: dict[str, bool] = {}
        self.loading: dict[str, list[int]] = {}
        self.loaded_now: dict[str, list[int]] = {}
        self.sending: set[str] = set()
        self.pinned: list[list[Any]] = []

    def bind_gpu_block_pool(self, gpu_block_pool: Any) -> None:
        self.pool = gpu_block_pool

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        """Return tokens that can be loaded after the local hit, and whether the load is awaited."""
        key = (request.request_id, request.num_preemptions)
        drawn = crc32(f"{key} {num_computed_tokens}".encode())
        if drawn % 9 == 0 and key not in self.put_off:
            self.put_off.add(key)
            return None, False
        waits = self.loads == "async" or (self.loads == "both" and drawn % 2 == 0)
        rest = request.num_tokens - num_computed_tokens
        found = (drawn >> 8) % ((rest - 1) // self.unit + 1) * self.unit
        if waits and self.whole and drawn % 3 == 0:
            found = rest
        self.announced[request.request_id] = waits and found > 0
        return found, waits and found > 0

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        ids = blocks.get_block_ids()
        self.seen.lists.append((request.request_id, ids, num_external_tokens))
        if num_external_tokens:
            waits = self.announced.pop(request.request_id)
            into = self.loading if waits else self.loaded_now
            into[request.request_id] = [block for block in ids[0] if block]

    def build_connector_meta(self, scheduler_output: Any) -> Seen:
        """Return the observations of this step, and return old pins."""
        pool, seen = self.pool, self.seen
        while len(self.pinned) > 3:
            pool.free_blocks(self.pinned.pop(0))
        seen.blocks.append(pool.get_num_free_blocks())
        for new in scheduler_output.scheduled_new_reqs:
            facts = [pool.blocks[block] for block in new.block_ids[0]]
            seen.blocks.append([(b.block_id, b.ref_cnt, b.block_hash, b.is_null) for b in facts])
        self.seen = Seen()
        return seen

    def request_finished(
        self, request: Any, block_ids: Sequence[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        return self.request_finished_all_groups(request, (block_ids,))

    def request_finished_all_groups(
        self, request: Any, block_ids: Sequence[Sequence[int]]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Some blocks are kept until they are sent; of some requests one block is pinned."""
        name = request.request_id
        self.seen.freed.append(f"{name} {[list(ids) for ids in block_ids]}")
        drawn, held = crc32(f"end of {name}".encode()), [block for block in block_ids[0] if block]
        if name in self.loading:
            return False, None
        if drawn % 5 == 0 and held:
            chosen = [self.pool.blocks[held[drawn // 5 % len(held)]]]
            self.pool.touch(chosen)
            self.pinned.append(chosen)
        if drawn % 3 == 0 and held:
            self.sending.add(name)
            return True, None
        return False, None

    def update_connector_output(self, connector_output: Any) -> None:
        for name in connector_output.finished_recving or ():
            del self.loading[name]
        self.sending -= connector_output.finished_sending or set()

    @property
    def is_busy(self) -> bool:
        """Whether it waits for a worker, or holds blocks that no request has."""
        return bool(self.loading or self.sending or self.pinned)

    def start_load_kv(self, forward_context: Any, **options: Any) -> None:
        """Do nothing, like the three below: the base demands the worker's side, which never
        runs.
        """

    def wait_for_layer_load(self, layer_name: str) -> None: ...

    def save_kv_layer(self, *args: Any, **options: Any) -> None: ...

    def wait_for_save(self) -> None: ...


def work_done(connector: MadeUpConnector, fails: bool, rng: random.Random) -> Any:
    """Return the worker's reply to one step: loads and transfers that ended, blocks that failed."""
    received = chosen(connector.loading, rng)
    failed: set[int] = set()
    if fails and rng.random() < 0.3:
        loads = [connector.loading[name] for name in received] + list(connector.loaded_now.values())
        for blocks in loads:
            failed.update(block for block in blocks if rng.random() < 0.2)
    connector.loaded_now.clear()
    return KVConnectorOutput(
        finished_sending=chosen(sorted(connector.sending), rng),
        finished_recving=received,
        invalid_block_ids=failed,
    )


def chosen(names: Iterable[str], rng: random.Random) -> set[str]:
    return {name for name in names if rng.random() < 0.4}
