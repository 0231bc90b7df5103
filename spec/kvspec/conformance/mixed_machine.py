"""A state machine over one to four groups of any types.

Compared: the longest hit with a statement of it by enumeration, content through shadow memory (of
groups that hold tokens), the event stream with the cached keys, and the invariants of every state
and transition. What attention still reads must be there, whatever was released.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from hypothesis import event
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from kvspec.blocks import NULL_BLOCK, PrefixHit
from kvspec.config import ManagerConfig
from kvspec.conformance import oracles
from kvspec.conformance.machine_base import (
    DRAFTS,
    MAX_REQUESTS,
    OFTEN,
    PROMPTS,
    TOKENS,
    MachineBase,
    Tracked,
)
from kvspec.conformance.mixed_configs import mixed_configs
from kvspec.conformance.shadow import ShadowMemory
from kvspec.errors import InvariantViolation
from kvspec.interface import Implementation
from kvspec.request import Request, RequestStatus
from kvspec.snapshot import Snapshot
from kvspec.specs import (
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    LayerSpec,
    MambaSpec,
    SlidingWindowSpec,
)

HitOracle = Callable[[ManagerConfig, Snapshot, Request, int], tuple[int, list[list[int]]]]
"""(config, state, request, most tokens) -> hit length in tokens, block ids per group."""

NUM_ENCODER_TOKENS = 3


def first_needed_token(spec: LayerSpec, position: int) -> int:
    """The first token that the token at `position` attends to."""
    if isinstance(spec, SlidingWindowSpec):
        return max(0, position - spec.sliding_window + 1)
    if isinstance(spec, ChunkedLocalAttentionSpec):
        return position // spec.attention_chunk_size * spec.attention_chunk_size
    return 0


class MixedMachine(MachineBase):
    """Rules are calls; see the module. Mamba states and encoder tokens have no shadow."""

    hit_oracle: ClassVar[HitOracle]

    @initialize(config=mixed_configs())
    def create(self, config: ManagerConfig) -> None:
        self.start(config)
        self.block_size = self.config.hash_block_size_tokens or 1
        self.specs = [group.spec for group in self.config.kv_cache.groups]
        self.shadows = [ShadowMemory(spec.block_size) for spec in self.specs]
        self.with_tokens = [
            number
            for number, spec in enumerate(self.specs)
            if not isinstance(spec, (MambaSpec, CrossAttentionSpec))
        ]

    # Admission.

    @rule(data=st.data(), prompt=PROMPTS, salt=st.sampled_from([None, None, None, "s"]))
    def arrive(self, data: st.DataObject, prompt: list[int], salt: str | None) -> None:
        """A new request asks for admission; too many, and the oldest waiting one gives up."""
        if len(self.requests) >= MAX_REQUESTS:
            waiting = [t for t in self.requests if not t.holds_blocks]
            if not waiting:
                return
            self.requests.remove(waiting[0])
        self.admit(data, self.make_request(prompt, salt))

    @precondition(lambda self: self.some(holding=False))
    @rule(data=st.data())
    def retry(self, data: st.DataObject) -> None:
        """A request that was refused or preempted asks again."""
        self.admit(data, self.pick(data, holding=False))

    def admit(self, data: st.DataObject, tracked: Tracked) -> None:
        """Look up, then allocate with the hit or without, with external tokens or without."""
        hit = self.look_up_all(tracked) if data.draw(OFTEN) else None
        hit_tokens = hit.hit_length_tokens if hit is not None else 0
        rest = len(tracked.tokens) - hit_tokens
        external = data.draw(st.sampled_from([0, 0, 0, 1, rest])) if rest > 1 else 0
        loading = external > 0 and data.draw(st.booleans())
        new = 0 if loading else rest - external
        if new and not data.draw(OFTEN):
            new = data.draw(st.integers(1, new))
        before = self.manager.snapshot()
        must_fit = not data.draw(OFTEN)
        answer = self.manager.allocate_slots(
            tracked.request,
            new,
            num_new_computed_tokens=hit_tokens,
            new_computed_blocks=hit.blocks if hit is not None and hit_tokens else None,
            num_external_computed_tokens=external,
            delay_cache_blocks=loading,
            num_encoder_tokens=NUM_ENCODER_TOKENS,
            num_lookahead_tokens=data.draw(st.sampled_from([0, 0, 0, 2])),
            full_sequence_must_fit=must_fit,
            has_scheduled_reqs=False,
        )
        if answer is None:
            event("refusal")
            if must_fit:
                self.expect_nothing_changed(before)
            return
        computed = hit_tokens + external + new
        tracked.holds_blocks = True
        tracked.loading_tokens = computed if loading else 0
        tracked.request.status = RequestStatus.RUNNING
        last = min(computed, len(tracked.tokens) - 1 + (new > 0))
        skip_at = min(hit_tokens + external, len(tracked.tokens) - 1) if external else hit_tokens
        self.write_all(tracked, hit_tokens, computed, released_before=skip_at)
        tracked.request.num_computed_tokens = last

    def look_up_all(self, tracked: Tracked) -> PrefixHit:
        """A look-up, compared with the enumeration, its content read back."""
        before = self.manager.snapshot()
        answer = self.manager.get_computed_blocks(tracked.request)
        most = len(tracked.tokens) - 1
        expected: tuple[int, list[list[int]]] = (0, [[] for _ in self.specs])
        if self.config.enable_caching:
            oracle = type(self).hit_oracle
            expected = oracle(self.config, before, tracked.request, most)
        got = (answer.hit_length_tokens, answer.blocks.to_lists())
        oracles.expect_equal("KV-COORD-5", "the longest hit", expected, got)
        if answer.hit_length_tokens:
            event("hit")
        for number in self.with_tokens:
            blocks = answer.blocks.to_lists()[number]
            length = answer.hit_length_tokens
            self.expect_content(tracked, number, blocks, length, f"hit in group {number}")
        return answer

    def expect_content(
        self, tracked: Tracked, number: int, blocks: Sequence[int], length: int, what: str
    ) -> None:
        """What the token after `length` tokens attends to is there, and is right."""
        first = first_needed_token(self.specs[number], length)
        size = self.specs[number].block_size
        for position in range(first, length):
            if blocks[position // size] == NULL_BLOCK:
                raise InvariantViolation(
                    "what_is_read_is_there",
                    "KV-GRP-2",
                    f"{what} of {tracked}: token {position} is still read but its block is null",
                )
        identities = [tracked.identity(position) for position in range(length)]
        self.shadows[number].expect(blocks, identities, f"{what} of {tracked}", "KV-HASH-1")

    def write_all(
        self, tracked: Tracked, start: int, end: int, *, released_before: int, draft: bool = False
    ) -> None:
        """Tokens `start` … `end - 1` are in the cache now, wherever they have a slot.

        Only tokens before `released_before` may have lost theirs already.
        """
        lists = self.manager.get_blocks(tracked.request).to_lists()
        for number in self.with_tokens:
            size = self.specs[number].block_size
            for position in range(start, end):
                is_null = lists[number][position // size] == NULL_BLOCK
                if is_null and position < released_before:
                    continue
                identity = ("draft",) if draft else tracked.identity(position)
                self.shadows[number].write(lists[number], position, identity)

    # Running.

    @precondition(lambda self: self.some(holding=True))
    @rule(data=st.data(), drafts=DRAFTS, accepted=st.integers(0, 2))
    def run_on(self, data: st.DataObject, drafts: list[int], accepted: int) -> None:
        """A chunk, or a decode step with drafts of which some are accepted."""
        tracked = self.pick(data, holding=True)
        request = tracked.request
        room = self.config.max_model_len_tokens - len(tracked.tokens)
        pending = len(tracked.tokens) - request.num_computed_tokens
        if pending == 0 and room > 0:
            self.append(tracked, [data.draw(TOKENS)])
            pending, room = 1, room - 1
        if pending == 0:
            return
        chunk = pending if data.draw(OFTEN) else data.draw(st.integers(1, pending))
        drafts = drafts[:room] if chunk == pending else []
        if self.manager.allocate_slots(request, chunk + len(drafts)) is None:
            event("refusal")
            return
        start = request.num_computed_tokens
        self.write_all(tracked, start, start + chunk, released_before=start)
        end = start + chunk + len(drafts)
        self.write_all(tracked, start + chunk, end, released_before=start, draft=True)
        kept = drafts[:accepted]
        self.append(tracked, kept)
        self.write_all(tracked, start + chunk, start + chunk + len(kept), released_before=start)
        request.num_computed_tokens = start + chunk + len(kept)

    @precondition(lambda self: self.some(holding=True, loading=True))
    @rule(data=st.data())
    def finish_load(self, data: st.DataObject) -> None:
        """The external tokens arrived: register their blocks."""
        tracked = self.pick(data, holding=True, loading=True)
        self.manager.cache_blocks(tracked.request, tracked.loading_tokens)
        tracked.loading_tokens = 0

    @precondition(lambda self: self.some(holding=True))
    @rule(data=st.data())
    def skip_early(self, data: st.DataObject) -> None:
        """An engine may release what fell out of the window at any time."""
        tracked = self.pick(data, holding=True)
        self.manager.remove_skipped_blocks(tracked.request, tracked.request.num_computed_tokens)

    # Release and maintenance.

    @precondition(lambda self: any(t.holds_blocks for t in self.requests))
    @rule(data=st.data(), preempt=st.booleans(), pop=st.booleans())
    def release(self, data: st.DataObject, preempt: bool, pop: bool) -> None:
        """Finish or preempt a request; at once, or with its blocks returned later."""
        tracked = data.draw(st.sampled_from([t for t in self.requests if t.holds_blocks]))
        before = self.manager.snapshot()
        lists = self.manager.get_blocks(tracked.request).to_lists()
        if pop:
            self.popped.extend(self.manager.pop_blocks_for_free(tracked.request))
        else:
            self.manager.free(tracked.request)
            expected = oracles.queue_after_release(before, [blocks[::-1] for blocks in lists])
            got = self.manager.snapshot().free_queue
            oracles.expect_equal("KV-POOL-7", "free queue after the release", expected, got)
        tracked.holds_blocks, tracked.loading_tokens = False, 0
        tracked.request.num_computed_tokens = 0
        tracked.request.num_preemptions += 1
        tracked.request.status = RequestStatus.PREEMPTED
        if not preempt:
            self.requests.remove(tracked)

    @rule(data=st.data(), what=st.sampled_from(["evict", "step", "step", "return", "reset"]))
    def maintain(self, data: st.DataObject, what: str) -> None:
        """What engines do now and then besides running requests."""
        if what == "evict":
            ids = st.integers(0, self.config.kv_cache.num_blocks - 1)
            self.manager.evict_blocks(data.draw(st.lists(ids, max_size=3)))
        elif what == "step":
            self.manager.new_step_starts()
        elif what == "return":
            returned, self.popped = self.popped[::-1], []
            self.manager.free_blocks(returned)
        else:
            idle = self.manager.num_free_blocks == self.config.kv_cache.num_blocks - 1
            answer = self.manager.reset_prefix_cache()
            oracles.expect_equal("KV-POOL-11", "reset succeeds", idle, answer)

    def expect_nothing_changed(self, before: Snapshot) -> None:
        """Refused because the whole sequence would not fit: nothing was released (KV-MGR-5).

        The step after that check may refuse too, and has released by then; for a request that holds
        nothing, there is nothing to release either way.
        """
        oracles.expect_equal("KV-MGR-5", "state after a refusal", before, self.manager.snapshot())

    # Always.

    @invariant()
    def what_attention_reads_is_there(self) -> None:
        for tracked in getattr(self, "requests", []):
            if not tracked.holds_blocks:
                continue
            lists = self.manager.get_blocks(tracked.request).to_lists()
            length = tracked.request.num_computed_tokens
            for number in self.with_tokens:
                self.expect_content(tracked, number, lists[number], length, f"group {number}")

    @invariant()
    def events_tell_what_is_cached(self) -> None:
        if hasattr(self, "manager"):
            self.fold.take_in(self.manager.take_events())
            self.fold.expect_state(self.manager.snapshot(), int_hashes=False)

    def teardown(self) -> None:
        """Once everything is released, the pool is whole, and a request that fits is admitted."""
        if not hasattr(self, "manager"):
            return
        for tracked in self.requests:
            self.manager.free(tracked.request)
        self.manager.free_blocks(self.popped[::-1])
        total = self.config.kv_cache.num_blocks - 1
        oracles.expect_equal("KV-POOL-15", "free at the end", total, self.manager.num_free_blocks)


def mixed_machine(
    implementation: Implementation, hit_oracle: HitOracle, **attributes: Any
) -> type[MixedMachine]:
    """The machine for one implementation and one statement of the longest hit."""
    return type(
        "MixedMachineFor" + implementation.capabilities.name,
        (MixedMachine,),
        {"implementation": implementation, "hit_oracle": staticmethod(hit_oracle), **attributes},
    )
