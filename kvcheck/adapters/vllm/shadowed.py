"""The calls of vLLM's scheduler, made to vLLM's manager and to the follower, and compared."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvcheck.adapters.vllm import preconditions
from kvcheck.adapters.vllm.manager import stats_of
from kvcheck.adapters.vllm.mirror import Mirror
from kvcheck.adapters.vllm.preconditions import Asked
from kvcheck.adapters.vllm.steps import Steps
from kvspec.blocks import KVCacheBlocks
from kvspec.events import Event
from kvspec.inside import hits_end_inside, last_boundary
from kvspec.specs import MambaSpec

UNTOLD = "skip_zeroing_group_ids"
"""An option of 0.33 for groups that are not zeroed, because a connector writes them."""


def ids_of(blocks: Any) -> KVCacheBlocks | None:
    if blocks is None:
        return None
    return KVCacheBlocks(tuple([block.block_id for block in group] for group in blocks.blocks))


def first_apart(theirs: Sequence[object], ours: Sequence[object]) -> str:
    pairs = zip(theirs, ours, strict=False)
    place = next((at for at, (one, other) in enumerate(pairs) if one != other), None)
    if place is None:
        place = min(len(theirs), len(ours))
    their, our = ([*side, None][place] for side in (theirs, ours))
    return f"vLLM {their!r}, shadow {our!r}, number {place} of {len(theirs)} and {len(ours)}"


@dataclass(frozen=True)
class Later:
    """The facts of 0.33's scheduler that 0.24's lacks; `steps`: those it has under way.

    `num_read`: tokens after a chunk that its drafter reads; `most_tokens`: of one chunk.
    """

    steps: Steps
    num_read: int
    most_tokens: int
    has_connector: bool


class Forwarded:
    """An object that forwards to vLLM's stock object."""

    def __init__(self, stock: Any, mirror: Mirror, later: Later | None = None) -> None:
        self.stock = stock
        self.mirror = mirror
        self.later = later

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stock, name)


class ShadowedPool(Forwarded):
    """vLLM's pool; blocks returned to it are also returned in the shadow."""

    def free_blocks(self, ordered_blocks: Iterable[Any]) -> None:
        """Return references, in this order; with 0.33 also those that were held for copies."""
        blocks = list(ordered_blocks)
        ids = [block.block_id for block in blocks]
        if self.later is not None:
            self.later.steps.returns(ids)
        self.stock.free_blocks(blocks)
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
        super().__init__(stock, mirror, pool.later)
        self.block_pool = pool
        self.translate = translate
        self.reports: list[Any] = []

    @property
    def shadow(self) -> Any:
        """The follower, which is another one once a known difference was met."""
        return self.mirror.manager

    def same(self, call: str, theirs: object, *given: Any) -> None:
        self.mirror.same(call, lambda: getattr(self.shadow, call)(*given), theirs)

    def same_of(self, request_id: str, call: str, theirs: object, *given: Any) -> None:
        mine = self.mirror.named(request_id)
        if mine is not None:
            self.same(call, theirs, mine, *given)

    def new_step_starts(self) -> None:
        if self.later is not None:
            self.later.steps.starts()
        self.stock.new_step_starts()
        self.same("new_step_starts", None)

    # Looking up.

    def get_computed_blocks(self, request: Any, *most: Any) -> tuple[Any, ...]:
        """Return the longest cached prefix, its tokens, and in 0.33 the junction."""
        queue = getattr(self.stock.block_pool, "kv_event_queue", ())
        before = len(queue)
        call, ask = "get_computed_blocks", self.stock.get_computed_blocks
        found = self.mirror.answered(call, lambda: ask(request, *most))
        self.reports += queue[before:]  # nothing is stored here
        blocks, *numbers = found
        if self.later is None:  # it has left the tokens that are common, but not cached
            attribute = "num_uncached_common_prefix_tokens"
            numbers.append(getattr(self.stock.coordinator, attribute, 0))
        self.mirror.same(call, lambda: self._hit(request), (ids_of(blocks), *numbers))
        return tuple(found)

    def _hit(self, request: Any) -> tuple[Any, int, int]:
        hit = self.shadow.get_computed_blocks(self.mirror.current(request))
        length, beyond = hit.hit_length_tokens, hit.uncached_common_prefix_tokens or 0
        return hit.blocks, length, length + beyond if beyond and self.later else beyond

    def get_computed_blocks_for_connector(
        self, request: Any, *most: Any, **named: Any
    ) -> tuple[Any, ...]:
        """Return each group's own hit if full attention has the longest, else the common one."""
        call = "get_computed_blocks_for_connector"
        ask = self.stock.get_computed_blocks_for_connector
        blocks, *others = self.mirror.answered(call, lambda: ask(request, *most))
        full = getattr(self.stock.coordinator, "full_attention_group_id", None)
        has_own = self.stock.kv_cache_config.has_mamba_layers and full is not None

        def ours() -> object:
            if has_own and self.stock.prefix_cache_lookup_enabled(request):
                mine, longest = self.mirror.current(request), request.num_tokens - 1
                hits = self.shadow.find_longest_cache_hit_per_group(mine, longest)
                lengths = hits.hit_lengths_tokens
                if max(lengths) <= lengths[full]:
                    return hits.blocks, lengths[full], 0, min(lengths) < lengths[full]
            return *self._hit(request), False

        self.mirror.same(call, ours, (ids_of(blocks), *others))
        return blocks, *others

    # Allocating.

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
        call = f"allocate_slots of {request.request_id}"
        self._check(call, request, num_new_tokens, num_new_computed_tokens, options)
        computed = request.num_computed_tokens
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

    @property
    def num_reread(self) -> int:
        """Tokens at the end that are not cached: a drafter of several modules computes them again.

        With several groups and hash look-ahead vLLM caches them all the same; 0.24 has none.
        """
        coordinator = self.stock.coordinator
        is_alone = len(getattr(coordinator, "single_type_managers", ())) == 1
        return int(getattr(coordinator, "num_reprefillable_tokens", 0)) if is_alone else 0

    def _granted(self, mine: Any, num_new_tokens: int, options: Mapping[str, Any]) -> Any:
        """Allocate in the follower; a separate call caches what is not cached yet."""
        if not self.num_reread or options.get("delay_cache_blocks"):
            return self.shadow.allocate_slots(mine, num_new_tokens, **options)
        told = {**options, "delay_cache_blocks": True}
        answer = self.shadow.allocate_slots(mine, num_new_tokens, **told)
        if answer is not None:
            computed = mine.num_computed_tokens + options["num_new_computed_tokens"]
            computed += options.get("num_external_computed_tokens", 0)
            total = min(computed, self.stock.max_model_len) + num_new_tokens
            self._cached(mine, min(total, mine.num_tokens))
        return answer

    def _cached(self, mine: Any, num_computed_tokens: int) -> None:
        self.shadow.cache_blocks(mine, max(num_computed_tokens - self.num_reread, 0))

    def _check(self, call: str, request: Any, new: int, new_computed: int, options: Any) -> None:
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
        config, later = self.mirror.config, self.later
        if later is not None:
            later.steps.allocates(call, request)
        unit, num_read = config.scheduler_block_size_tokens or 1, later.num_read if later else 0
        said = [*preconditions.broken(asked, unit, num_read)]
        for spec in config.managed_specs:
            if isinstance(spec, MambaSpec) and spec.mamba_cache_mode == "align":
                stops = self._stops(asked, request, spec.block_size)
                # With states inside a chunk vLLM keys the state before (docs/FINDINGS.md).
                ends_inside = later is not None and not spec.has_checkpoints
                said += preconditions.misaligned(asked, spec.block_size, stops, later=ends_inside)
        for broken in said:
            self.mirror.require(call, broken)

    def _stops(self, asked: Asked, request: Any, block_size: int) -> Collection[int]:
        """Return where a chunk of aligned Mamba may end besides the end of a block.

        In 0.33 at the prompt's last boundary inside a block, and anywhere in a block larger than a
        chunk, and where an item no longer fits.
        """
        if self.later is None:
            return ()
        if block_size > self.later.most_tokens or request.mm_features:
            return (asked.end,)
        stops = [request.shared_prefix_boundary] * self.stock.mamba_shared_prefix_checkpoint
        if hits_end_inside(self.mirror.config):
            stops.append(last_boundary(request.num_prompt_tokens, self.mirror.config))
        return stops

    def cache_blocks(self, request: Any, num_computed_tokens: int) -> None:
        if num_computed_tokens > request.num_tokens:  # rejected drafts
            said = f"{num_computed_tokens} tokens to be cached, of which {request.num_tokens} are"
            self.mirror.require(f"cache_blocks of {request.request_id}", f"{said} final")
        self.stock.cache_blocks(request, num_computed_tokens)
        self.mirror.same(
            "cache_blocks",
            lambda: self._cached(self.mirror.current(request), num_computed_tokens),
            None,
        )

    # Releasing.

    def free(self, request: Any) -> None:
        self.stock.free(request)
        self.same_of(request.request_id, "free", None)
        self._forget(request)

    def pop_blocks_for_free(self, request: Any) -> Any:
        blocks = self.stock.pop_blocks_for_free(request)
        if self.mirror.named(request.request_id) is not None:
            ids = tuple(block.block_id for block in blocks)
            self.mirror.popped.extend(ids)
            self.same_of(request.request_id, "pop_blocks_for_free", ids)
        self._forget(request)
        return blocks

    def _forget(self, request: Any) -> None:
        if request.is_finished():
            self.mirror.forget(request.request_id)

    def remove_skipped_blocks(self, request_id: str, *counts: int, **named: int) -> None:
        self.stock.remove_skipped_blocks(request_id, *counts, **named)
        total, *_ = (*counts, *named.values())  # and the prompt's, in 0.33
        self.same_of(request_id, "remove_skipped_blocks", None, total)

    def evict_blocks(self, block_ids: Iterable[int]) -> None:
        ids = list(block_ids)
        self.stock.evict_blocks(set(ids))
        self.same("evict_blocks", None, ids)

    def reset_prefix_cache(self) -> bool:
        done = bool(self.stock.reset_prefix_cache())
        self.same("reset_prefix_cache", done)
        return done

    # Asking.

    def get_num_common_prefix_blocks(self, running_request_id: str) -> list[int]:
        found: list[int] = self.stock.get_num_common_prefix_blocks(running_request_id)
        self.same_of(running_request_id, "get_num_common_prefix_blocks", tuple(found))
        return found

    def take_new_block_ids(self) -> list[int]:
        """Return blocks to be zeroed; in 0.33 not compared with a connector, which changes them."""
        if self.later is not None and self.later.has_connector:
            self.mirror.uncompared.add("take_new_block_ids")
        ids: list[int] = self.stock.take_new_block_ids()
        self.same("take_new_block_ids", tuple(ids))
        return ids

    def record_prefix_cache_stats(self, request: Any, num_hits: int) -> None:
        self.stock.record_prefix_cache_stats(request, num_hits)
        self.mirror.same(
            "record_prefix_cache_stats",
            lambda: self.shadow.record_prefix_cache_stats(self.mirror.current(request), num_hits),
            None,
        )

    def make_prefix_cache_stats(self) -> Any:
        """Look-ups since the last call, compared in 0.33."""
        stats = self.stock.make_prefix_cache_stats()
        if self.later is not None:
            self.same("make_prefix_cache_stats", stats_of(stats))
        return stats

    @property
    def copies_wait(self) -> bool:
        groups = self.stock.coordinator.single_type_managers
        return any(getattr(group, "_pending_cow_copies", ()) for group in groups)

    def take_kv_cache_block_copies(self) -> tuple[list[Any], Sequence[Any]]:
        """Copies on write, and the blocks that are held for them until the step is over."""
        copies, retained = self.stock.take_kv_cache_block_copies()
        pairs = tuple((each.src_block_id, each.dst_block_id) for each in copies)
        ids = tuple(block.block_id for block in retained)
        self.mirror.popped.extend(ids)
        if self.later is not None:
            self.later.steps.copied(pairs, ids)

        def ours() -> object:
            found = self.shadow.take_block_copies()
            return found.pairs, found.retained

        self.mirror.same("take_kv_cache_block_copies", ours, (pairs, ids))
        return copies, retained

    def take_events(self) -> list[Any]:
        """Events since the last call; the hashes are other ones, so by the shadow's names."""
        events: list[Any] = self.stock.take_events()
        if self.translate is not None and self.mirror.config.enable_events:
            names, reports, translate = self.mirror.hashes, self.reports, self.translate
            theirs = tuple(
                names.theirs(translate(each, is_report=any(each is r for r in reports)))
                for each in events
            )

            def ours() -> object:
                return tuple(map(names.own, self.shadow.take_events()))

            self.mirror.same("take_events", ours, theirs, first_apart)
        self.reports = []
        return events
