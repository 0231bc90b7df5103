"""What the state machine knows and does for every rule: requests, oracles, shadow memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from hypothesis import event
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine

from kvspec.blocks import KVCacheBlocks
from kvspec.config import KVCacheConfig, KVCacheGroup, ManagerConfig
from kvspec.conformance import oracles
from kvspec.conformance.shadow import Identity, ShadowMemory
from kvspec.interface import Implementation
from kvspec.request import Request, RequestInput, RequestStatus
from kvspec.safety.event_fold import EventFold
from kvspec.snapshot import Snapshot
from kvspec.specs import FullAttentionSpec
from kvspec.stats import PrefixCacheStats

MAX_REQUESTS = 6
# A tiny alphabet, and one token most of the time, make equal prefixes likely.
TOKENS = st.sampled_from([0, 0, 0, 1])
PROMPTS = st.one_of(
    st.integers(1, 9).map(lambda n: [0] * n), st.lists(TOKENS, min_size=1, max_size=9)
)
DRAFTS = st.lists(TOKENS, max_size=2)
OFTEN = st.sampled_from([True, True, True, False])


@st.composite
def single_group_configs(draw: st.DrawFn) -> ManagerConfig:
    """Small pools, where eviction and refusal happen within a few calls."""
    block_size = draw(st.sampled_from([1, 2, 2, 3]))
    group = KVCacheGroup(
        ("layer",),
        FullAttentionSpec(block_size, 1, 8, "float16"),
        is_eagle_group=draw(st.sampled_from([False, False, False, True])),
    )
    return ManagerConfig(
        KVCacheConfig(
            draw(st.sampled_from([*range(2, 6), *range(6, 14), *range(6, 14)])), (group,)
        ),
        max_model_len_tokens=draw(st.sampled_from([12, 64])),
        enable_caching=draw(st.sampled_from([True, True, True, True, True, True, False])),
        use_eagle=draw(st.sampled_from([False, False, False, True])),
        log_stats=True,
        enable_events=True,
        int_event_hashes=draw(st.booleans()),
        dcp_world_size=draw(st.sampled_from([1, 1, 1, 1, 2])),
        watermark=draw(st.sampled_from([0.0, 0.0, 0.3])),
        hash_seed="0",
        hash_function=draw(st.sampled_from(["sha256_cbor", "sha256_cbor_64bit"])),
    )


@dataclass(eq=False)
class Tracked:
    """A request of the machine. `loading_tokens`: tokens of a load that is not registered yet."""

    request: Request
    salt: str | None
    holds_blocks: bool = False
    loading_tokens: int = 0
    tokens: list[int] = field(default_factory=list)

    def __repr__(self) -> str:
        return self.request.request_id

    def is_in(self, *, holding: bool, loading: bool) -> bool:
        """Whether it holds blocks, and waits for a load."""
        return (self.holds_blocks, self.loading_tokens > 0) == (holding, loading)

    def identity(self, position: int) -> Identity:
        """What the slot of this token must hold: the whole prefix that ends with it."""
        return (self.salt, *self.tokens[: position + 1])


class MachineBase(RuleBasedStateMachine):
    """The state of one run; `implementation` is set by `manager_machine`."""

    implementation: ClassVar[Implementation]
    audit: ClassVar[bool] = True

    def start(self, config: ManagerConfig) -> None:
        """A fresh manager, and nothing known of it yet."""
        self.manager = self.implementation.create(config, check_invariants=self.audit)
        self.config = self.manager.config
        self.block_size = self.config.scheduler_block_size_tokens or 1
        self.shadow = ShadowMemory(self.block_size)
        self.fold = EventFold()
        self.requests: list[Tracked] = []
        self.num_made = 0
        self.popped: list[int] = []
        self.stats = PrefixCacheStats()

    def make_request(self, prompt: list[int], salt: str | None) -> Tracked:
        """A new request, its number of hashes checked."""
        name = f"r{self.num_made}"
        self.num_made += 1
        request = self.implementation.make_request(
            self.manager, RequestInput(name, prompt, cache_salt=salt)
        )
        hashes = len(prompt) // self.block_size if self.config.enable_caching else 0
        oracles.expect_equal("KV-HASH-4", "hashes of the prompt", hashes, len(request.block_hashes))
        tracked = Tracked(request, salt, tokens=list(prompt))
        self.requests.append(tracked)
        return tracked

    def pick(self, data: st.DataObject, *, holding: bool, loading: bool = False) -> Tracked:
        """One of the requests in that state."""
        fitting = [
            t for t in self.requests if (t.holds_blocks, t.loading_tokens > 0) == (holding, loading)
        ]
        return data.draw(st.sampled_from(fitting))

    def some(self, *, holding: bool, loading: bool = False) -> bool:
        return any(
            (t.holds_blocks, t.loading_tokens > 0) == (holding, loading) for t in self.requests
        )

    def append(self, tracked: Tracked, tokens: Sequence[int]) -> None:
        self.implementation.append_tokens(self.manager, tracked.request, tokens)
        tracked.tokens.extend(tokens)

    def look_up(self, tracked: Tracked) -> list[int]:
        """A look-up, its answer compared by enumeration, its content read back."""
        before = self.manager.snapshot()
        request = tracked.request
        answer = self.manager.get_computed_blocks(request)
        (blocks,) = answer.blocks.to_lists()
        expected = oracles.longest_full_hit(
            before,
            request.block_hashes,
            len(tracked.tokens) - 1,
            self.block_size,
            drop_last_block=self.config.use_eagle or self.config.kv_cache.groups[0].is_eagle_group,
        )
        oracles.expect_equal("KV-FULL-2", "the longest hit", expected, blocks)
        length = len(blocks) * self.block_size
        oracles.expect_equal("KV-MGR-1", "hit length", length, answer.hit_length_tokens)
        identities = [tracked.identity(position) for position in range(length)]
        self.shadow.expect(blocks, identities, f"hit of {request.request_id}", "KV-HASH-1")
        if self.config.enable_caching:
            self.count(len(tracked.tokens), length, preempted=request.num_preemptions > 0)
        return blocks

    def count(self, queries: int, hits: int, *, preempted: bool) -> None:
        s = self.stats
        if preempted:
            self.stats = replace(
                s,
                preempted_requests=s.preempted_requests + 1,
                preempted_queries_tokens=s.preempted_queries_tokens + queries,
                preempted_hits_tokens=s.preempted_hits_tokens + hits,
            )
        else:
            self.stats = replace(
                s,
                requests=s.requests + 1,
                queries_tokens=s.queries_tokens + queries,
                hits_tokens=s.hits_tokens + hits,
            )

    def allocate(
        self, tracked: Tracked, num_new: int, *, hit: Sequence[int] = (), **options: Any
    ) -> bool:
        """`allocate_slots`, its refusal and its blocks compared with the rules' arithmetic."""
        before = self.manager.snapshot()
        held = len(self.blocks_of(tracked))
        computed = tracked.request.num_computed_tokens
        answer = self.manager.allocate_slots(
            tracked.request,
            num_new,
            num_new_computed_tokens=len(hit) * self.block_size,
            new_computed_blocks=KVCacheBlocks((tuple(hit),)) if hit else None,
            **options,
        )
        total = computed + len(hit) * self.block_size + options["num_external_computed_tokens"]
        max_len = self.config.max_model_len_tokens
        slots = min(min(total, max_len) + num_new + options["num_lookahead_tokens"], max_len)
        need = oracles.blocks_needed(before, held, hit, slots, self.block_size)
        free = len(before.free_queue)
        watermark = 0
        if options["has_scheduled_reqs"] and tracked.request.status != RequestStatus.RUNNING:
            watermark = int(self.config.watermark * self.config.kv_cache.num_blocks)
        fits = need + watermark <= free - options["reserved_blocks"]
        if options["full_sequence_must_fit"]:
            whole = min(len(tracked.tokens), max_len)
            whole_need = oracles.blocks_needed(before, held, hit, whole, self.block_size)
            fits = fits and whole_need + watermark <= free
        oracles.expect_equal("KV-MGR-7", "there is room", fits, answer is not None)
        self.note_situations(before, tracked, hit, refused=answer is None)
        if answer is not None:
            self.expect_taken(before, tracked, held, hit, answer.to_lists()[0])
        return answer is not None

    def note_situations(
        self, before: Snapshot, tracked: Tracked, hit: Sequence[int], *, refused: bool
    ) -> None:
        """What this run reached, for Hypothesis' statistics: a run that missed one says so."""
        after = self.manager.snapshot()
        if refused:
            event("refusal")
        if any(before.ref_counts[block] == 0 for block in hit):
            event("hit that revives a free block")
        if any(before.ref_counts[block] > 0 for block in hit):
            event("hit that shares a block in use")
        if sum(map(len, before.block_keys)) > sum(map(len, after.block_keys)):
            event("eviction by allocation")
        if any(len(blocks) > 1 for blocks in after.lookup_order.values()):
            event("duplicates")
        if hit and tracked.request.num_preemptions:
            event("resumed with a hit")

    def expect_taken(
        self, before: Snapshot, tracked: Tracked, held: int, hit: Sequence[int], new: list[int]
    ) -> None:
        """The blocks come from the front of the queue, and the list is held + hit + taken."""
        after = self.manager.snapshot()
        blocks = self.blocks_of(tracked)
        num_taken = len(blocks) - held - len(hit)
        taken, queue = oracles.queue_after_allocation(before, hit, num_taken)
        oracles.expect_equal(
            "KV-POOL-3", "free queue after the allocation", queue, after.free_queue
        )
        oracles.expect_equal("KV-POOL-3", "blocks taken", list(taken), blocks[held + len(hit) :])
        oracles.expect_equal("KV-MGR-3", "blocks returned", new, blocks[len(blocks) - len(new) :])

    def blocks_of(self, tracked: Tracked) -> list[int]:
        return self.manager.get_blocks(tracked.request).to_lists()[0]

    def write(self, tracked: Tracked, start: int, end: int) -> None:
        blocks = self.blocks_of(tracked)
        for position in range(start, end):
            self.shadow.write(blocks, position, tracked.identity(position))

    def expect_queue(self, before: Snapshot, released: Sequence[int]) -> None:
        expected = oracles.queue_after_release(before, [released])
        got = self.manager.snapshot().free_queue
        oracles.expect_equal("KV-POOL-6", "free queue after the release", expected, got)
