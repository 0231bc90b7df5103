"""nano-vllm as an `Implementation`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from kvcheck.adapters.nanovllm.bench import native_calls
from kvcheck.adapters.nanovllm.library import Library
from kvcheck.adapters.nanovllm.manager import NanoManager, NanoRequest, own_request
from kvcheck.adapters.small import SmallImplementation
from kvcheck.tools.bench.calls import Calls
from kvspec.config import ManagerConfig
from kvspec.errors import UnsupportedError
from kvspec.interface import Feature, KVCacheManager
from kvspec.request import Request, RequestInput, check_token_ids, token_list


class NanoImplementation(SmallImplementation):
    """See `kvspec.interface.Implementation` for what each call promises."""

    name = NanoManager.name
    features = frozenset({Feature.PREFIX_CACHING, Feature.STABLE_LISTS})
    min_block_size_tokens = 2
    """A full block is detected by `length % block size == 1`, which never holds with blocks of 1.
    """

    def __init__(self, library: Library) -> None:
        super().__init__(library.version)
        self.library = library

    def make_manager(self, config: ManagerConfig) -> NanoManager:
        return NanoManager(self.library, config)

    def make_request(self, manager: KVCacheManager, request: RequestInput) -> Request:
        """Make a `Sequence` of these tokens; nanovllm hashes nothing else of a request."""
        beside = (request.cache_salt, request.lora, request.prompt_embeddings)
        if any(beside) or request.multimodal or request.skip_reading_cache:
            raise UnsupportedError("anything that identifies a request but its tokens", self.name)
        tokens = token_list(request.prompt_token_ids, field="prompt_token_ids")
        check_token_ids(tokens, field="prompt_token_ids")
        size = cast(NanoManager, manager).block_size
        return NanoRequest(request, self.library.sequence.Sequence, tokens, size)

    def append_tokens(
        self, manager: KVCacheManager, request: Request, token_ids: Sequence[int]
    ) -> None:
        check_token_ids(token_ids)
        for token in token_ids:
            own_request(request).inner.append_token(token)

    def bench_calls(self, manager: KVCacheManager) -> Calls:
        """Return nano-vllm's own calls, which `kvspec bench` times instead of this adapter's."""
        return native_calls(cast(NanoManager, manager), self.library)
