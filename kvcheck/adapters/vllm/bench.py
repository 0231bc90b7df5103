"""vLLM's own calls for `kvspec bench`: its request class and its manager, without the adapter."""

from __future__ import annotations

from typing import Any

from kvcheck.adapters.vllm.manager import VLLMManager
from kvcheck.adapters.vllm.state import block_ids
from kvcheck.tools.bench.calls import Calls


def native_calls(manager: VLLMManager) -> Calls:
    """Bound methods of vLLM's manager; requests and hits stay vLLM's objects throughout."""
    library, inner = manager.library, manager.inner
    request_class = library.request.Request
    params = library.sampling.SamplingParams(max_tokens=1)
    hasher = manager.block_hasher

    def make_request(given: tuple[str, list[int]]) -> Any:
        return request_class(
            request_id=given[0],
            prompt_token_ids=given[1],
            sampling_params=params,
            pooling_params=None,
            block_hasher=hasher,
        )

    def allocate_with_hit(request: Any, num_new_tokens: int, hit: Any) -> Any:
        return inner.allocate_slots(request, num_new_tokens, hit[1], hit[0])

    return Calls(
        make_request=make_request,
        append_tokens=request_class.append_output_token_ids,
        look_up=inner.get_computed_blocks,
        allocate=inner.allocate_slots,
        allocate_with_hit=allocate_with_hit,
        free=inner.free,
        make_input=lambda request_id, token_ids: (request_id, token_ids),
        read_hashes=lambda request: list(map(bytes, request.block_hashes)),
        read_hit=lambda hit: (int(hit[1]), list(block_ids(hit[0].blocks[0]))),
        read_blocks=lambda answer: None if answer is None else list(block_ids(answer.blocks[0])),
        num_free_blocks=lambda: manager.num_free_blocks,
        new_step_starts=inner.new_step_starts,
        end_step=inner.take_new_block_ids,
        includes="vLLM's own Request and KVCacheManager, called directly: none of the adapter",
        # vLLM's hasher reads its first parent from a module.
        around=lambda: library.parent_hash(manager.none_hash),
    )
