"""The calls of vLLM's scheduler, made to vLLM's manager and to the follower, and compared."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from kvcheck.adapters.vllm import preconditions
from kvcheck.adapters.vllm.mirror import Mirror
from kvcheck.adapters.vllm.preconditions import Asked
from kvspec.blocks import KVCacheBlocks
from kvspec.events import Event
from kvspec.specs import MambaSpec

UNTOLD = "skip_zeroing_group_ids"
"""An option of 0.33 for groups that are not zeroed, because a connector writes them."""


def ids_of(blocks: Any) -> KVCacheBlocks | None:
    """Return the ids of vLLM's blocks; None stays None."""
    if blocks is None:
        return None
    return KVCacheBlocks(tuple([block.block_id for block in group] for group in blocks.blocks))


def first_apart(theirs: Sequence[object], ours: Sequence[object]) -> str:
    """Describe the first difference between two sequences, and their lengths."""
    pairs = zip(theirs, ours, strict=False)
    place = next((at for at, (one, other) in enumerate(pairs) if one != other), None)
    if place is None:
        place = min(len(theirs), len(ours))
    their, our = ([*side, None][place] for side in (theirs, ours))
    return f"vLLM {their!r}, shadow {our!r}, number {place} of {len(theirs)} and {len(ours)}"


class Forwarded:
    """An object that forwards to vLLM's stock object."""

    def __init__(self, stock: Any, mirror: Mirror) -> None:
        self.stock = stock
        self.mirror = mirror

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stock, name)


class ShadowedPool(Forwarded):
    """vLLM's pool; blocks returned to it are also returned in the shadow."""

    def free_blocks(self, ordered_blocks: Iterable[Any]) -> None:
        """Return references, in this order."""
        blocks = list(ordered_blocks)
        self.stock.free_blocks(blocks)
        ids = [block.block_id for block in blocks]
        for each in ids:
            if each in self.mirror.popped:
                self.mirror.popped.remove(each)
        self.mirror.same("free_blocks", lambda: self.mirror.manager.free_blocks(ids), None)

    def touch(self, blocks: Sequence[Any]) -> None:
        self.stock.touch(blocks)
        ids = [block.block_id for block in blocks]
        self.mirror.popped.extend(ids)
        self.mirror.same("hold_blocks", lambda: self.mirror.manager.hold_blocks(ids), None)


class ShadowedManager(Forwarded):
    """vLLM's manager; its scheduler's calls are also made to the shadow.

    `translate`: an event of vLLM's as the contract's; None: events are not compared. `reports`: the
    events that no caching has made.
    """

    def __init__(
        self,
        stock: Any,
        pool: ShadowedPool,
        mirror: Mirror,
        translate: Callable[..., Event] | None = None,
    ) -> None:
        super().__init__(stock, mirror)
        self.block_pool = pool
        self.translate = translate
        self.reports: list[Any] = []

    @property
    def shadow(self) -> Any:
        """The follower, which is another one once a known difference was met."""
        return self.mirror.manager

    def same(self, call: str, theirs: object, *given: Any) -> None:
        """Make a call to the follower, and compare its result."""
        self.mirror.same(call, lambda: getattr(self.shadow, call)(*given), theirs)

    def same_of(self, request_id: str, call: str, theirs: object, *given: Any) -> None:
        """Make a call about a request that was seen, and compare its result."""
        mine = self.mirror.named(request_id)
        if mine is not None:
            self.same(call, theirs, mine, *given)

    def new_step_starts(self) -> None:
        self.stock.new_step_starts()
        self.same("new_step_starts", None)

    def get_computed_blocks(self, request: Any) -> tuple[Any, int]:
        blocks, length = self.mirror.answered(
            "get_computed_blocks", lambda: self.stock.get_computed_blocks(request)
        )

        def ours() -> object:
            hit = self.shadow.get_computed_blocks(self.mirror.current(request))
            return hit.blocks, hit.hit_length_tokens, hit.uncached_common_prefix_tokens or 0

        common = getattr(self.stock.coordinator, "num_uncached_common_prefix_tokens", 0)
        self.mirror.same("get_computed_blocks", ours, (ids_of(blocks), length, common))
        return blocks, length

    def allocate_slots(
        self,
        request: Any,
        num_new_tokens: int,
        num_new_computed_tokens: int = 0,
        new_computed_blocks: Any = None,
        **options: Any,
    ) -> Any:
        """Slots, or None. Both must have as many free blocks afterwards."""
        hits = ids_of(new_computed_blocks)
        self._check(request, num_new_tokens, num_new_computed_tokens, options)
        computed = request.num_computed_tokens
        call = f"allocate_slots of {request.request_id}"
        granted = self.mirror.answered(
            call,
            lambda: self.stock.allocate_slots(
                request, num_new_tokens, num_new_computed_tokens, new_computed_blocks, **options
            ),
        )
        free = self.stock.block_pool.get_num_free_blocks()

        def ours() -> object:
            mine = self.mirror.current(request)
            mine.num_computed_tokens = computed
            told = {name: value for name, value in options.items() if name != UNTOLD}
            told["num_new_computed_tokens"] = num_new_computed_tokens
            told["new_computed_blocks"] = None if hits is None or hits.is_empty else hits
            return self._granted(mine, num_new_tokens, told), self.shadow.num_free_blocks

        self.mirror.same(call, ours, (ids_of(granted), free))
        return granted

    def _granted(self, mine: Any, num_new_tokens: int, options: Mapping[str, Any]) -> Any:
        """Return the follower's result."""
        return self.shadow.allocate_slots(mine, num_new_tokens, **options)

    def _cached(self, mine: Any, num_computed_tokens: int) -> None:
        """Cache in the follower."""
        self.shadow.cache_blocks(mine, num_computed_tokens)

    def _check(self, request: Any, new: int, new_computed: int, options: Any) -> Asked:
        """Check the preconditions of an allocation."""
        asked = Asked(
            request.num_tokens,
            request.num_prompt_tokens,
            request.num_computed_tokens,
            new,
            new_computed,
            options.get("num_external_computed_tokens", 0),
            options.get("num_lookahead_tokens", 0),
            options.get("delay_cache_blocks", False),
        )
        config, call = self.mirror.config, f"allocate_slots of {request.request_id}"
        size = config.scheduler_block_size_tokens or 1
        self.mirror.require(call, preconditions.load_behind_hit(asked, size))
        self.mirror.require(call, preconditions.lookahead_of_load(asked))
        for spec in config.managed_specs:
            if isinstance(spec, MambaSpec) and spec.mamba_cache_mode == "align":
                stops = self._stops(asked, request, spec.block_size)
                broken = preconditions.aligned_chunk(asked, spec.block_size, stops)
                self.mirror.require(call, broken)
        return asked

    def _stops(self, asked: Asked, request: Any, block_size: int) -> Collection[int]:
        """Return where a chunk of aligned Mamba may end besides the end of a block."""
        return ()

    def free(self, request: Any) -> None:
        """Release all blocks of the request."""
        self.stock.free(request)
        self.same_of(request.request_id, "free", None)
        self._forget(request)

    def pop_blocks_for_free(self, request: Any) -> Any:
        """Forget the request, keep its references."""
        blocks = self.stock.pop_blocks_for_free(request)
        if self.mirror.named(request.request_id) is not None:
            ids = tuple(block.block_id for block in blocks)
            self.mirror.popped.extend(ids)
            self.same_of(request.request_id, "pop_blocks_for_free", ids)
        self._forget(request)
        return blocks

    def _forget(self, request: Any) -> None:
        """Forget a finished request."""
        if request.is_finished():
            self.mirror.forget(request.request_id)

    def remove_skipped_blocks(self, request_id: str, total_computed_tokens: int) -> None:
        """Release what attention no longer needs."""
        self.stock.remove_skipped_blocks(request_id, total_computed_tokens)
        self.same_of(request_id, "remove_skipped_blocks", None, total_computed_tokens)

    def evict_blocks(self, block_ids: Iterable[int]) -> None:
        """Drop the cached identity of these blocks."""
        ids = list(block_ids)
        self.stock.evict_blocks(set(ids))
        self.same("evict_blocks", None, ids)

    def reset_prefix_cache(self) -> bool:
        """Drop every hash, if no block is in use."""
        done = bool(self.stock.reset_prefix_cache())
        self.same("reset_prefix_cache", done)
        return done

    def get_num_common_prefix_blocks(self, running_request_id: str) -> list[int]:
        """Per group, leading blocks that all share."""
        found: list[int] = self.stock.get_num_common_prefix_blocks(running_request_id)
        self.same_of(running_request_id, "get_num_common_prefix_blocks", tuple(found))
        return found

    def cache_blocks(self, request: Any, num_computed_tokens: int) -> None:
        """Register full blocks of tokens that are computed."""
        broken = preconditions.verified_tokens(num_computed_tokens, request.num_tokens)
        self.mirror.require(f"cache_blocks of {request.request_id}", broken)
        self.stock.cache_blocks(request, num_computed_tokens)
        self.mirror.same(
            "cache_blocks",
            lambda: self._cached(self.mirror.current(request), num_computed_tokens),
            None,
        )

    def take_new_block_ids(self) -> list[int]:
        ids: list[int] = self.stock.take_new_block_ids()
        self.same("take_new_block_ids", tuple(ids))
        return ids

    def take_events(self) -> list[Any]:
        """Events since the last call; the hashes are other ones, so by the shadow's names."""
        events: list[Any] = self.stock.take_events()
        if self.translate is not None and self.mirror.config.enable_events:
            names = self.mirror.hashes
            theirs = tuple(
                names.theirs(self.translate(each, is_report=any(each is r for r in self.reports)))
                for each in events
            )

            def ours() -> object:
                return tuple(map(names.own, self.shadow.take_events()))

            self.mirror.same("take_events", ours, theirs, first_apart)
        self.reports = []
        return events
