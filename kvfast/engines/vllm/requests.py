"""kvfast's requests beside vLLM's."""

from __future__ import annotations

from typing import Any

from vllm.v1.request import RequestStatus

from kvfast._implementation import FastImplementation
from kvspec.errors import UnsupportedError
from kvspec.interface import KVCacheManager
from kvspec.request import LoRA, MultimodalItem, RequestInput
from kvspec.request import RequestStatus as Status

NAME = "_kvfast_request"
"""The member of vLLM's request under which kvfast's is kept, with the manager that it is of."""


class Requests:
    """The requests of one manager; `held`: those that may hold blocks, by their ids."""

    def __init__(self, implementation: FastImplementation, manager: KVCacheManager) -> None:
        self.implementation = implementation
        self.manager = manager
        self.held: dict[str, Any] = {}

    def current(self, request: Any) -> Any:
        """kvfast's request, which knows what vLLM's knows now."""
        kept = request.__dict__.get(NAME)
        if kept is None or kept[0] is not self:
            mine: Any = self._made(request)
            request.__dict__[NAME] = (self, mine)
        else:
            mine = kept[1]
        tokens = request._all_token_ids
        missing = len(tokens) - mine.num_tokens
        if missing > 0:
            mine.append(tokens[-missing:])
        elif missing < 0:
            raise UnsupportedError("a request that loses tokens (a streaming session)", "kvfast")
        mine.num_computed_tokens = request.num_computed_tokens
        mine.num_preemptions = request.num_preemptions
        mine.status = _status_of(request.status)
        return mine

    def _made(self, request: Any) -> Any:
        if request.prompt_embeds is not None:
            raise UnsupportedError("prompt embeddings", "kvfast.engines.vllm")
        adapter = request.lora_request
        given = RequestInput(
            request.request_id,
            list(request.prompt_token_ids),
            cache_salt=request.cache_salt or None,
            lora=None if adapter is None else LoRA(adapter.name, adapter.adapter_id),
            multimodal=tuple(
                MultimodalItem(item.identifier, item.mm_position.offset, item.mm_position.length)
                for item in request.mm_features
            ),
            skip_reading_cache=bool(request.skip_reading_prefix_cache),
        )
        return self.implementation.make_request(self.manager, given)


def _status_of(status: Any) -> Status:
    """Only WAITING and PREEMPTED meet the watermark; what else vLLM knows is like RUNNING."""
    if status == RequestStatus.WAITING:
        return Status.WAITING
    return Status.PREEMPTED if status == RequestStatus.PREEMPTED else Status.RUNNING
