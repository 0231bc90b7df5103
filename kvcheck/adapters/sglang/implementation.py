"""SGLang as an `Implementation`."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import cast

from kvcheck.adapters.sglang.bench import native_calls
from kvcheck.adapters.sglang.library import Library
from kvcheck.adapters.sglang.manager import SGLangManager, SGLangRequest, own_request
from kvcheck.adapters.small import SmallImplementation
from kvcheck.tools.bench.calls import Calls
from kvspec.config import ManagerConfig
from kvspec.errors import UnsupportedError
from kvspec.interface import Feature, KVCacheManager
from kvspec.request import Request, RequestInput, check_token_ids, token_list


class SGLangImplementation(SmallImplementation):
    """See `kvspec.interface.Implementation` for what each call promises."""

    name = SGLangManager.name
    features = frozenset(
        {
            Feature.PREFIX_CACHING,
            Feature.CACHE_SALT,
            Feature.LORA,
            Feature.SKIP_READING,
            Feature.RESET,
        }
    )

    def __init__(
        self, library: Library, *, is_unified: bool = True, tree_core: str | None = None
    ) -> None:
        super().__init__(library.version)
        self.library = library
        self.is_unified = is_unified
        self.tree_core = tree_core

    def make_manager(self, config: ManagerConfig) -> SGLangManager:
        """Make new pools and an empty tree."""
        return SGLangManager(
            self.library, config, is_unified=self.is_unified, tree_core=self.tree_core
        )

    def make_request(self, manager: KVCacheManager, request: RequestInput) -> Request:
        """Make a `Req` with this content."""
        if request.prompt_embeddings is not None or request.multimodal:
            raise UnsupportedError("embeddings and multimodal items", self.name)
        tokens = token_list(request.prompt_token_ids, field="prompt_token_ids")
        check_token_ids(tokens, field="prompt_token_ids")
        inner = self.library.schedule_batch.Req(
            rid=request.request_id,
            origin_input_text="",
            origin_input_ids=array("q", tokens),
            sampling_params=self.library.sampling.SamplingParams(),
            return_logprob=request.skip_reading_cache,
            lora_id=None if request.lora is None else request.lora.name,
            cache_salt=request.cache_salt,
        )
        if request.skip_reading_cache:
            inner.logprob_start_len = 0
        return SGLangRequest(request, inner)

    def append_tokens(
        self, manager: KVCacheManager, request: Request, token_ids: Sequence[int]
    ) -> None:
        check_token_ids(token_ids)
        own_request(request).inner.output_ids.extend(token_ids)

    def bench_calls(self, manager: KVCacheManager) -> Calls:
        """Return SGLang's own calls, which `kvspec bench` times instead of this adapter's."""
        return native_calls(cast(SGLangManager, manager))
