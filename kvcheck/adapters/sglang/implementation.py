"""SGLang as an `Implementation`."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Any, cast

from kvcheck.adapters.sglang.engine import load_modules
from kvcheck.adapters.sglang.manager import SGLangManager, SGLangRequest
from kvcheck.adapters.small import SmallImplementation, owned
from kvcheck.tools.bench.calls import (
    ADMIT,
    ALLOCATE,
    APPEND,
    CHUNK,
    DECODE,
    REPLAY_PHASES,
    Calls,
)
from kvspec.blocks import KVCacheBlocks
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

    def __init__(self, core: str) -> None:
        self.m = load_modules()
        super().__init__(str(self.m.version))
        self.core = core

    def make_manager(self, config: ManagerConfig) -> SGLangManager:
        """Make new pools and an empty tree."""
        return SGLangManager(config, self.core)

    def make_request(self, manager: KVCacheManager, request: RequestInput) -> Request:
        """Make a `Req` with this content."""
        if request.prompt_embeddings is not None or request.multimodal:
            raise UnsupportedError("embeddings and multimodal items", self.name)
        tokens = token_list(request.prompt_token_ids, field="prompt_token_ids")
        check_token_ids(tokens, field="prompt_token_ids")
        inner = self.m.schedule_batch.Req(
            rid=request.request_id,
            origin_input_text="",
            origin_input_ids=array("q", tokens),
            sampling_params=self.m.sampling.SamplingParams(),
            return_logprob=request.skip_reading_cache,
            lora_id=None if request.lora is None else f"{request.lora.name} {request.lora.path}",
            cache_salt=request.cache_salt,
        )
        if request.skip_reading_cache:
            inner.logprob_start_len = 0
        return SGLangRequest(request, inner)

    def append_tokens(
        self, manager: KVCacheManager, request: Request, token_ids: Sequence[int]
    ) -> None:
        check_token_ids(token_ids)
        owned(request, SGLangRequest).inner.output_ids.extend(token_ids)

    def bench_calls(self, manager: KVCacheManager) -> Calls:
        """Return SGLang's own calls, which `kvspec bench` times instead of this adapter's."""
        return native_calls(cast(SGLangManager, manager))


def _maker(m: Any) -> Callable[[tuple[RequestInput, array[int]]], SGLangRequest]:
    """Return a function that makes a `Req`, always with the same sampling parameters."""
    request_class, parameters = m.schedule_batch.Req, m.sampling.SamplingParams()

    def make_request(given: tuple[RequestInput, array[int]]) -> SGLangRequest:
        named, tokens = given
        inner = request_class(
            rid=named.request_id,
            origin_input_text="",
            origin_input_ids=tokens,
            sampling_params=parameters,
        )
        return SGLangRequest(named, inner)

    return make_request


def _read_hit(manager: SGLangManager, request: SGLangRequest) -> tuple[int, list[int]]:
    """Read the hit from the request; an admission replaces it by the whole prompt."""
    is_admitted = request.inner.kv.holds_kv
    pages = request.last_hit if is_admitted else manager.last_match(request)
    return len(pages) * manager.block_size, pages


def native_calls(manager: SGLangManager) -> Calls:
    """Return calls on the `Req` inside the adapter's request; the adapter is never timed.

    Timed are matching a prompt and releasing it, which puts it into the tree, but not slots: SGLang
    allocates them for a whole batch by GPU kernels, whose substitute here is not representative. A
    tree compares tokens and hashes nothing, so compare its look-up with `hash + look up`.
    """
    tree, release = manager.tree, manager.m.common.release_kv_cache

    def look_up(request: SGLangRequest) -> SGLangRequest:
        request.inner.init_next_round_input(tree)
        return request

    def allocate_with_hit(
        request: Any, num_new_tokens: int, hit: SGLangRequest
    ) -> KVCacheBlocks | None:
        length, request.last_hit = _read_hit(manager, hit)
        return manager.allocate_slots(
            request,
            num_new_tokens,
            num_new_computed_tokens=length,
            new_computed_blocks=KVCacheBlocks((tuple(request.last_hit),)),
        )

    def free(request: SGLangRequest) -> None:
        release(request.inner, tree, checkpoint=True)
        request.inner.reset_for_retract()

    def read_blocks(answer: KVCacheBlocks | None) -> list[int] | None:
        return None if answer is None else list(answer.groups[0])

    return Calls(
        make_request=_maker(manager.m),
        append_tokens=lambda request, token_ids: request.inner.output_ids.extend(token_ids),
        look_up=look_up,
        allocate=manager.allocate_slots,
        allocate_with_hit=allocate_with_hit,
        free=free,
        make_input=lambda name, tokens: (RequestInput(name, tokens), array("q", tokens)),
        read_hashes=None,
        read_hit=lambda request: _read_hit(manager, request),
        read_blocks=read_blocks,
        num_free_blocks=lambda: manager.num_free_blocks,
        includes=(
            "SGLang's own Req and radix tree; hashes nothing, `free` puts the prompt into the tree"
        ),
        around=manager.engine.active,
        has_own_names=True,
        not_timed=frozenset({ALLOCATE, ADMIT, CHUNK, APPEND, DECODE, *REPLAY_PHASES}),
    )
