"""Small managers and requests, and the few steps that most examples start with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from kvcheck.rules.managed import Everything
from kvcheck.rules.specs import full
from kvspec.blocks import KVCacheBlocks
from kvspec.config import KVCacheConfig, KVCacheGroup, ManagerConfig
from kvspec.interface import Implementation, KVCacheManager
from kvspec.request import Request, RequestInput
from kvspec.specs import LayerSpec

MakeManager: TypeAlias = Callable[..., KVCacheManager]
MakeRequest: TypeAlias = Callable[..., Request]


def make_config(
    num_blocks: int = 6,
    block_size: int = 4,
    *,
    specs: Sequence[LayerSpec] | None = None,
    eagle_groups: Sequence[int] = (),
    **members: Any,
) -> ManagerConfig:
    """Configure a full-attention group, or one group per spec; hashes are reproducible."""
    listed = [full(block_size)] if specs is None else specs
    groups = tuple(
        KVCacheGroup((f"layer{index}",), spec, is_eagle_group=index in eagle_groups)
        for index, spec in enumerate(listed)
    )
    defaults: dict[str, Any] = {"max_model_len_tokens": 1000, "hash_seed": "0"}
    return ManagerConfig(KVCacheConfig(num_blocks, groups), **{**defaults, **members})


def new_manager(
    implementation: Implementation,
    num_blocks: int = 6,
    block_size: int = 4,
    *,
    clock: Callable[[], int] | None = None,
    **config: Any,
) -> KVCacheManager:
    """Create a manager that checks invariants; `config` as for `make_config`."""
    return implementation.create(make_config(num_blocks, block_size, **config), clock=clock)


def new_request(
    implementation: Implementation,
    manager: KVCacheManager,
    request_id: str,
    token_ids: Sequence[int],
    **content: Any,
) -> Request:
    return implementation.make_request(
        manager, RequestInput(request_id, list(token_ids), **content)
    )


def admit(
    manager: KVCacheManager, request: Request, num_new_tokens: int | None = None, **arguments: Any
) -> KVCacheBlocks | None:
    """Look the request up, allocate (by default all other tokens) and count them as computed."""
    hit = manager.get_computed_blocks(request)
    rest = request.num_tokens - hit.hit_length_tokens
    new = rest if num_new_tokens is None else num_new_tokens
    answer = manager.allocate_slots(
        request,
        new,
        num_new_computed_tokens=hit.hit_length_tokens,
        new_computed_blocks=hit.blocks,
        **arguments,
    )
    if answer is not None:
        request.num_computed_tokens = hit.hit_length_tokens + new
    return answer


def run_on(manager: KVCacheManager, request: Request, num_new_tokens: int = 1) -> list[list[int]]:
    """Run one more step of a request, which must not be refused; return its new blocks."""
    answer = manager.allocate_slots(request, num_new_tokens)
    assert answer is not None
    request.num_computed_tokens += num_new_tokens
    return answer.to_lists()


def everything(manager: KVCacheManager) -> Everything:
    return Everything(
        manager.snapshot(),
        manager.take_events(),
        manager.make_prefix_cache_stats(),
        manager.take_residency_samples(),
    )
