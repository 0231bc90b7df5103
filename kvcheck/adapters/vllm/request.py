"""vLLM's request, seen through the contract's protocol."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvcheck.adapters import owned
from kvcheck.adapters.vllm.library import Library
from kvspec.request import RequestInput, RequestStatus, check_token_ids, token_list


class Count:
    """A number of vLLM's request under this name; 0 where the version has none."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, request: VLLMRequest, owner: type) -> int:
        return int(getattr(request.inner, self.name, 0))

    def __set__(self, request: VLLMRequest, value: int) -> None:
        setattr(request.inner, self.name, value)


class VLLMRequest:
    """Forwards to `inner`, vLLM's own request, which holds all state."""

    num_tokens = Count("num_tokens")
    num_prompt_tokens = Count("num_prompt_tokens")
    num_computed_tokens = Count("num_computed_tokens")
    num_preemptions = Count("num_preemptions")
    num_in_flight_tokens = Count("num_in_flight_tokens")  # since 0.26
    junction_tokens = Count("shared_prefix_boundary")  # likewise

    def __init__(self, library: Library, inner: Any, *, skips_cache: bool) -> None:
        self._statuses = library.request.RequestStatus
        self.inner = inner
        self.skips_cache = skips_cache

    @property
    def request_id(self) -> str:
        return str(self.inner.request_id)

    @property
    def token_ids(self) -> Sequence[int]:
        return tuple(self.inner.all_token_ids)

    @property
    def block_hashes(self) -> Sequence[bytes]:
        return tuple(self.inner.block_hashes)

    @property
    def status(self) -> RequestStatus:
        return RequestStatus(self.inner.status.name)

    @status.setter
    def status(self, value: RequestStatus) -> None:
        self.inner.status = self._statuses[value.value]


def make_request(library: Library, request: RequestInput, hasher: Any) -> VLLMRequest:
    """vLLM's request with this content; `hasher` is its block hasher, None with caching off."""
    tokens = token_list(request.prompt_token_ids, field="prompt_token_ids")
    check_token_ids(tokens, field="prompt_token_ids")
    inner = library.request.Request(
        request_id=request.request_id,
        prompt_token_ids=tokens,
        sampling_params=library.sampling.SamplingParams(
            max_tokens=1,
            skip_reading_prefix_cache=request.skip_reading_cache,
            extra_args={"kv_cache_report_mode": "full"} if request.reports_hits else None,
        ),
        pooling_params=None,
        prompt_embeds=_embeddings(library, request),
        mm_features=[
            library.multimodal.MultiModalFeatureSpec(
                data=None,
                modality="image",
                identifier=item.identifier,
                mm_position=library.multimodal.PlaceholderRange(item.offset, item.length),
            )
            for item in request.multimodal
        ],
        lora_request=_adapter(library, request),
        cache_salt=request.cache_salt,
        block_hasher=hasher,
    )
    return VLLMRequest(library, inner, skips_cache=request.skip_reading_cache)


def _embeddings(library: Library, request: RequestInput) -> Any:
    """Return one row of bytes per token; vLLM wants a row for every token of the prompt."""
    given = request.prompt_embeddings
    if given is None:
        return None
    flat = library.torch.frombuffer(bytearray(given.data), dtype=library.torch.uint8)
    return flat.reshape(-1, given.bytes_per_token)


def _adapter(library: Library, request: RequestInput) -> Any:
    if request.lora is None:
        return None
    # The path is demanded by vLLM's class; 0.33 hashes it, and the contract's may be None.
    made = library.lora.LoRARequest(request.lora.name, request.lora.id, request.lora.name)
    made.lora_path = request.lora.path
    return made


def own_request(request: object) -> VLLMRequest:
    return owned(request, VLLMRequest)
