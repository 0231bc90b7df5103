"""nano-vllm's block manager with the contract's calls, for level *safety*.

    PYTHONPATH=nano-vllm kvspec check kvcheck.adapters.nanovllm:implementation --level safety

It needs numpy and xxhash, and no GPU. It is judged from outside, by its block lists and its number
of free blocks (docs/decisions/0022-what-a-small-manager-must-show.md). Translation of the calls:

- block id: nano-vllm's + 1; id 0 is the null block, which it does not have.
- request: a `Sequence`, with the block size of its manager.
- `get_computed_blocks`: `can_allocate`. It returns the length of the hit, or that the request does
  not fit; then the hit is empty. The blocks are read from `hash_to_block_id`.
- first `allocate_slots`: `allocate`, which takes blocks for the whole prompt at once, also if only
  a chunk is computed. Without a hit its length is 0, if that many blocks are free.
- later ones: nothing in prefill; `can_append` and `may_append` for a generated token.
- after each grant `hash_blocks`, since the tokens of a granted step count as computed. With caching
  off it is not called: nano-vllm has no such switch.
- `free`: `deallocate`, for a finished request as for a preempted one.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, cast

from kvcheck.adapters import owned
from kvspec.base import MEANINGLESS, BaseImplementation, BaseManager
from kvspec.blocks import KVCacheBlocks, PrefixHit
from kvspec.config import ManagerConfig
from kvspec.domains import is_int
from kvspec.editions import NEWEST
from kvspec.errors import InvalidArgumentError, KVSpecError, StaleHitError, UnsupportedError
from kvspec.interface import Capabilities, Feature, KVCacheManager
from kvspec.request import Request, RequestInput, RequestStatus, check_token_ids, token_list

PACKAGE = "nanovllm"


class NanoUnavailableError(KVSpecError, ImportError):
    """nano-vllm, or what its block manager needs, cannot be imported."""

    def __init__(self, problem: str) -> None:
        super().__init__(
            f"{problem}; this adapter needs a checkout of GeeeekExplorer/nano-vllm on the path"
            " (PYTHONPATH), with numpy and xxhash"
        )
        self.problem = problem


@dataclass(frozen=True)
class Library:
    """The modules that the adapter uses, untyped as they are to us."""

    version: str
    block_manager: Any
    sequence: Any


def load_library() -> Library:
    """Import nano-vllm's block manager. Raises NanoUnavailableError."""
    with without_init():
        try:
            manager = importlib.import_module(f"{PACKAGE}.engine.block_manager")
            sequence = importlib.import_module(f"{PACKAGE}.engine.sequence")
        except ImportError as error:
            raise NanoUnavailableError(f"nano-vllm cannot be imported ({error})") from error
    try:
        version = importlib.metadata.version("nano-vllm")
    except importlib.metadata.PackageNotFoundError:
        version = "unknown"  # a checkout says it in pyproject.toml only
    return Library(version, manager, sequence)


@contextmanager
def without_init() -> Iterator[None]:
    """Make the package importable without its `__init__`, which imports the whole engine.

    The names in `sys.modules` are put back afterwards.
    """
    before = {name: sys.modules[name] for name in sys.modules if name.split(".")[0] == PACKAGE}
    for name in before:
        del sys.modules[name]
    try:
        found = importlib.util.find_spec(PACKAGE)
        if found is None:
            raise NanoUnavailableError("nano-vllm is not on the path")
        sys.modules[PACKAGE] = importlib.util.module_from_spec(found)
        yield
    finally:
        for name in [name for name in sys.modules if name.split(".")[0] == PACKAGE]:
            del sys.modules[name]
        sys.modules.update(before)


class NanoRequest:
    """The scheduler's side of a request; `inner` is its `Sequence`.

    `num_prefill_tokens`: tokens that it had when it was admitted. `last_hit`: of its last look-up.
    """

    def __init__(self, given: RequestInput, inner: Any) -> None:
        self.request_id = given.request_id
        self.num_prompt_tokens = len(given.prompt_token_ids)
        self.inner = inner
        self.num_prefill_tokens = 0
        self.last_hit: list[int] = []
        self.num_computed_tokens = 0
        self.num_preemptions = 0
        self.status = RequestStatus.WAITING
        self.block_hashes: tuple[bytes, ...] = ()

    @property
    def token_ids(self) -> Sequence[int]:
        return tuple(self.inner.token_ids)

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)


class NanoManager(BaseManager):
    """See `kvspec.interface.KVCacheManager` for what each call promises."""

    name = "nano-vllm"

    def __init__(self, library: Library, config: ManagerConfig) -> None:
        super().__init__(config)
        num_blocks = config.kv_cache.num_blocks - 1
        self.inner = library.block_manager.BlockManager(num_blocks, self.block_size)

    @property
    def num_free_blocks(self) -> int:
        """Length of the free list, which includes unused cached blocks."""
        return len(self.inner.free_block_ids)

    def get_computed_blocks(self, request: Request) -> PrefixHit:
        """Return the longest cached prefix if the request fits now, and keep it on the request."""
        own = owned(request, NanoRequest)
        length = max(self.inner.can_allocate(own.inner), 0)
        own.last_hit = [block + 1 for block in self._cached_blocks(own.inner, length)]
        return PrefixHit(KVCacheBlocks((tuple(own.last_hit),)), length * self.block_size)

    def _cached_blocks(self, sequence: Any, length: int) -> Iterator[int]:
        """Yield the blocks that `allocate` will look up again."""
        block_hash = -1
        for index in range(length):
            block_hash = self.inner.compute_hash(sequence.block(index), block_hash)
            yield self.inner.hash_to_block_id[block_hash]

    def get_blocks(self, request: Request) -> KVCacheBlocks:
        return KVCacheBlocks((_held(owned(request, NanoRequest)),))

    def allocate_slots(
        self,
        request: Request,
        num_new_tokens: int,
        *,
        num_new_computed_tokens: int = 0,
        new_computed_blocks: KVCacheBlocks | None = None,
        **options: Any,
    ) -> KVCacheBlocks | None:
        """Allocate slots for tokens about to be computed; None if there are too few."""
        own = owned(request, NanoRequest)
        for option, value in options.items():
            if value and option not in MEANINGLESS:
                raise UnsupportedError(option, self.name)
        hit = self._kept_hit(own, new_computed_blocks, num_new_computed_tokens)
        start = own.num_computed_tokens + hit
        left = own.num_tokens - start
        if not is_int(num_new_tokens) or not 1 <= num_new_tokens <= left:
            raise InvalidArgumentError("num_new_tokens", num_new_tokens, f"an int in 1 … {left}")
        before = len(own.inner.block_table)
        if before and hit:
            raise InvalidArgumentError("num_new_computed_tokens", hit, "0 for a running request")
        if not self._grant(own, hit // self.block_size, start + num_new_tokens):
            return None
        return KVCacheBlocks((_held(own)[before or hit // self.block_size :],))

    def _kept_hit(self, own: NanoRequest, given: KVCacheBlocks | None, num_hit_tokens: int) -> int:
        """Return the number of hit tokens, if the hit is the result of the look-up just before.

        The manager finds a hit again and does not take it as blocks, so any other is refused.
        """
        blocks, last = [] if given is None else list(given.groups[0]), own.last_hit
        for index, block in enumerate(blocks):
            if index >= len(last) or block != last[index]:
                raise StaleHitError(0, index, block)
        if num_hit_tokens != len(blocks) * self.block_size or len(blocks) not in (0, len(last)):
            allowed = "the length of the last look-up's hit"
            raise InvalidArgumentError("num_new_computed_tokens", num_hit_tokens, allowed)
        return num_hit_tokens

    def _grant(self, own: NanoRequest, num_hit_blocks: int, end: int) -> bool:
        is_running = bool(own.inner.block_table)
        if not (self._extend(own, end) if is_running else self._admit(own, num_hit_blocks)):
            return False
        own.inner.num_scheduled_tokens = end - own.inner.num_cached_tokens
        if self.config.enable_caching:
            self.inner.hash_blocks(own.inner)
        own.inner.num_cached_tokens = end
        own.inner.num_scheduled_tokens = 0
        return True

    def _admit(self, own: NanoRequest, num_hit_blocks: int) -> bool:
        fits: bool = self.inner.can_allocate(own.inner) >= 0
        if not num_hit_blocks:
            # can_allocate counts on its own hit, which is not used here.
            fits = own.inner.num_blocks <= self.num_free_blocks
        if fits:
            self.inner.allocate(own.inner, num_hit_blocks)
            own.num_prefill_tokens = own.num_tokens
        return fits

    def _extend(self, own: NanoRequest, end: int) -> bool:
        """Allocate a block for a generated token if the last one is full."""
        if end <= own.num_prefill_tokens:
            return True  # admission took the blocks of the whole prompt
        if end - own.inner.num_cached_tokens > 1:  # it adds a block at most
            raise UnsupportedError(Feature.DRAFTING, self.name)
        if not self.inner.can_append(own.inner):
            return False
        self.inner.may_append(own.inner)
        return True

    def free(self, request: Request) -> None:
        self.inner.deallocate(owned(request, NanoRequest).inner)


def _held(own: NanoRequest) -> tuple[int, ...]:
    """Return the blocks of a request, none of one that waits."""
    return tuple(block + 1 for block in own.inner.block_table)


class NanoImplementation(BaseImplementation):
    """See `kvspec.interface.Implementation` for what each call promises."""

    name = NanoManager.name
    edition = NEWEST
    features = frozenset({Feature.PREFIX_CACHING, Feature.STABLE_LISTS})

    def __init__(self, library: Library) -> None:
        self.library = library

    @property
    def capabilities(self) -> Capabilities:
        """Declare no hash function, so that only safety can be checked.

        A full block is detected by `length % block size == 1`, which never holds with blocks of 1.
        """
        found = super().capabilities
        return replace(found, version=self.library.version, min_block_size_tokens=2)

    def make_manager(self, config: ManagerConfig) -> NanoManager:
        return NanoManager(self.library, config)

    def make_request(self, manager: KVCacheManager, request: RequestInput) -> Request:
        """Make a `Sequence` of these tokens; nano-vllm hashes nothing else of a request."""
        beside = (request.cache_salt, request.lora, request.prompt_embeddings)
        if any(beside) or request.multimodal or request.skip_reading_cache:
            raise UnsupportedError("anything that identifies a request but its tokens", self.name)
        tokens = token_list(request.prompt_token_ids, field="prompt_token_ids")
        check_token_ids(tokens, field="prompt_token_ids")
        # The class keeps the block size, so the requests of a manager have their own.
        own = {"block_size": cast(NanoManager, manager).block_size}
        sequence_class = type("Sequence", (self.library.sequence.Sequence,), own)
        return NanoRequest(request, sequence_class(tokens))

    def append_tokens(
        self, manager: KVCacheManager, request: Request, token_ids: Sequence[int]
    ) -> None:
        check_token_ids(token_ids)
        for token in token_ids:
            owned(request, NanoRequest).inner.append_token(token)


def implementation() -> NanoImplementation:
    """Return nano-vllm's manager. Raise NanoUnavailableError if it cannot be imported."""
    return NanoImplementation(load_library())
