"""nano-vllm as an `Implementation`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from kvcheck.adapters.nanovllm.library import Library
from kvcheck.adapters.nanovllm.manager import NanoManager, NanoRequest
from kvcheck.adapters.small import SmallImplementation, owned
from kvcheck.tools.bench.calls import CHUNK, REPLAY_PHASES, Calls
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
            owned(request, NanoRequest).inner.append_token(token)

    def bench_calls(self, manager: KVCacheManager) -> Calls:
        """Return nano-vllm's own calls, which `kvspec bench` times instead of this adapter's."""
        return native_calls(cast(NanoManager, manager), self.library)


def native_calls(manager: NanoManager, library: Library) -> Calls:
    """Make nano-vllm's calls in the order of its scheduler; scheduled tokens count as computed.

    It hashes in the look-up, again when it takes the hit, and in `hash_blocks`: with XXH64 over the
    tokens as 64-bit ints. All of that is in the times of the phase where it happens, and a sequence
    is made without hashing. It takes the blocks of a whole prompt at once, so chunks are not
    compared.
    """
    inner, size = manager.inner, manager.block_size
    # Its class keeps the block size; `num_computed_tokens` is what the scenarios set.
    sized = type(
        "Sequence", (library.sequence.Sequence,), {"block_size": size, "num_computed_tokens": 0}
    )

    def schedule(sequence: Any, num_new_tokens: int) -> None:
        sequence.num_scheduled_tokens = num_new_tokens
        inner.hash_blocks(sequence)
        sequence.num_cached_tokens += num_new_tokens

    def allocate(sequence: Any, num_new_tokens: int) -> list[int]:
        held = len(sequence.block_table)
        if not held:
            inner.allocate(sequence, 0)
        elif num_new_tokens == 1 and inner.can_append(sequence):  # decoding; not a chunk
            inner.may_append(sequence)
        schedule(sequence, num_new_tokens)
        return list(sequence.block_table[held:])

    def allocate_with_hit(sequence: Any, num_new_tokens: int, hit: int) -> list[int]:
        inner.allocate(sequence, hit)
        schedule(sequence, num_new_tokens)
        return list(sequence.block_table[hit:])

    def append_tokens(sequence: Any, token_ids: list[int]) -> None:
        for token in token_ids:
            sequence.append_token(token)

    return Calls(
        make_request=sized,
        append_tokens=append_tokens,
        look_up=inner.can_allocate,
        allocate=allocate,
        allocate_with_hit=allocate_with_hit,
        free=inner.deallocate,
        make_input=lambda request_id, token_ids: token_ids,
        read_hashes=None,
        # The hit's ids are known when it is taken; only their number is compared.
        read_hit=lambda hit: (hit * size, [0] * hit),
        read_blocks=lambda answer: answer,
        num_free_blocks=lambda: manager.num_free_blocks,
        includes=(
            "nano-vllm's own Sequence and BlockManager; hashes (XXH64) in look-up, admission and"
            " decoding, none in `hash`"
        ),
        has_own_names=True,
        not_timed=frozenset({CHUNK, *REPLAY_PHASES}),
    )
