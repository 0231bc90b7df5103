"""A state machine over one full-attention group: legal calls as a scheduler makes them, and others.

Everything an implementation answers is compared with the oracles; every slot it hands out is
written in shadow memory and read back; illegal calls must change nothing.

    machine = manager_machine(implementation)
    run_state_machine_as_test(machine)
"""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st
from hypothesis.stateful import (
    initialize,
    invariant,
    precondition,
    rule,
)

from kvspec.config import ManagerConfig
from kvspec.conformance import oracles
from kvspec.conformance.illegal import ILLEGAL_CALLS, IllegalCall, Situation
from kvspec.conformance.machine_base import (
    DRAFTS,
    MAX_REQUESTS,
    OFTEN,
    PROMPTS,
    TOKENS,
    MachineBase,
    Tracked,
    single_group_configs,
)
from kvspec.errors import InvariantViolation, KVSpecError
from kvspec.interface import Implementation
from kvspec.request import RequestStatus
from kvspec.stats import PrefixCacheStats


class ManagerMachine(MachineBase):
    """Rules are calls; see the module. `implementation` is set by `manager_machine`."""

    @initialize(config=single_group_configs())
    def create(self, config: ManagerConfig) -> None:
        self.start(config)

    # Admission.

    @rule(data=st.data(), prompt=PROMPTS, salt=st.sampled_from([None, None, None, "s"]))
    def arrive(self, data: st.DataObject, prompt: list[int], salt: str | None) -> None:
        """A new request asks for admission; too many, and the oldest waiting one gives up."""
        if len(self.requests) >= MAX_REQUESTS:
            waiting = [t for t in self.requests if not t.holds_blocks]
            if not waiting:
                return
            self.requests.remove(waiting[0])
        tracked = self.make_request(prompt[: self.config.max_model_len_tokens - 1], salt)
        self.admit(data, tracked)

    @precondition(lambda self: self.some(holding=False))
    @rule(data=st.data())
    def retry(self, data: st.DataObject) -> None:
        """A request that was refused or preempted asks again."""
        self.admit(data, self.pick(data, holding=False))

    def admit(self, data: st.DataObject, tracked: Tracked) -> None:
        """Look up, then allocate with the hit or without, with external tokens or without."""
        request = tracked.request
        hit = self.look_up(tracked) if data.draw(OFTEN) else []
        hit_tokens = len(hit) * self.block_size
        rest = len(tracked.tokens) - hit_tokens
        external = data.draw(st.sampled_from([0, 0, 0, 1, rest])) if rest > 1 else 0
        loading = external > 0 and data.draw(st.booleans())
        new = 0 if loading else rest - external
        if new and not data.draw(OFTEN):
            new = data.draw(st.integers(1, new))
        done = self.allocate(
            tracked,
            new,
            hit=hit,
            num_external_computed_tokens=external,
            delay_cache_blocks=loading,
            num_lookahead_tokens=data.draw(st.sampled_from([0, 0, 0, 2])),
            reserved_blocks=data.draw(st.sampled_from([0, 0, 0, 0, 1])),
            full_sequence_must_fit=not data.draw(OFTEN),
            has_scheduled_reqs=data.draw(st.booleans()),
        )
        if done:
            computed = hit_tokens + external + new
            tracked.holds_blocks = True
            tracked.loading_tokens = computed if loading else 0
            self.write(tracked, hit_tokens, computed)
            # A load of everything still leaves the last token to be computed again.
            request.num_computed_tokens = min(computed, len(tracked.tokens) - 1 + (new > 0))
            request.status = RequestStatus.RUNNING

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
        done = self.allocate(
            tracked,
            chunk + len(drafts),
            num_external_computed_tokens=0,
            num_lookahead_tokens=0,
            reserved_blocks=0,
            full_sequence_must_fit=False,
            has_scheduled_reqs=True,
        )
        if not done:
            return
        start = request.num_computed_tokens
        self.write(tracked, start, start + chunk)
        blocks = self.blocks_of(tracked)
        for offset, draft in enumerate(drafts):
            self.shadow.write(blocks, start + chunk + offset, ("draft", draft))
        kept = drafts[:accepted]
        self.append(tracked, kept)
        self.write(tracked, start + chunk, start + chunk + len(kept))
        request.num_computed_tokens = start + chunk + len(kept)

    @precondition(lambda self: self.some(holding=True, loading=True))
    @rule(data=st.data())
    def finish_load(self, data: st.DataObject) -> None:
        """The external tokens arrived: register their blocks."""
        tracked = self.pick(data, holding=True, loading=True)
        self.manager.cache_blocks(tracked.request, tracked.loading_tokens)
        tracked.loading_tokens = 0

    # Release.

    @precondition(lambda self: any(t.holds_blocks for t in self.requests))
    @rule(data=st.data(), preempt=st.booleans(), pop=st.booleans())
    def release(self, data: st.DataObject, preempt: bool, pop: bool) -> None:
        """Finish or preempt a request; at once, or with its blocks returned later."""
        tracked = data.draw(st.sampled_from([t for t in self.requests if t.holds_blocks]))
        before = self.manager.snapshot()
        blocks = self.blocks_of(tracked)
        if pop:
            popped = self.manager.pop_blocks_for_free(tracked.request)
            oracles.expect_equal("KV-MGR-13", "popped blocks", tuple(blocks), popped)
            self.popped.extend(popped)
        else:
            self.manager.free(tracked.request)
            self.expect_queue(before, blocks[::-1])
        tracked.holds_blocks, tracked.loading_tokens = False, 0
        if preempt:
            tracked.request.num_computed_tokens = 0
            tracked.request.num_preemptions += 1
            tracked.request.status = RequestStatus.PREEMPTED
        else:
            self.requests.remove(tracked)

    @precondition(lambda self: bool(self.popped))
    @rule(data=st.data())
    def return_popped(self, data: st.DataObject) -> None:
        """Return some of the popped blocks, the last popped first."""
        count = data.draw(st.integers(1, len(self.popped)))
        before = self.manager.snapshot()
        returned = self.popped[-count:][::-1]
        del self.popped[-count:]
        self.manager.free_blocks(returned)
        self.expect_queue(before, returned)

    # Cache.

    @rule(data=st.data(), what=st.sampled_from(["evict", "evict", "stats", "reset"]))
    def maintain(self, data: st.DataObject, what: str) -> None:
        """What engines do now and then besides running requests."""
        if what == "evict":
            ids = st.integers(0, self.config.kv_cache.num_blocks - 1)
            self.evict(data.draw(st.lists(ids, max_size=2)))
        elif what == "reset":
            self.reset()
        else:
            taken = self.manager.make_prefix_cache_stats()
            oracles.expect_equal("KV-STAT-1", "statistics", self.stats, taken)
            self.stats = PrefixCacheStats()

    def evict(self, victims: list[int]) -> None:
        """Drop the identity of a few blocks; nothing moves."""
        before = self.manager.snapshot()
        self.manager.evict_blocks(victims)
        after = self.manager.snapshot()
        left = [key for victim in victims for key in after.block_keys[victim]]
        oracles.expect_equal("KV-POOL-10", "keys of evicted blocks", [], left)
        oracles.expect_equal("KV-POOL-10", "free queue", before.free_queue, after.free_queue)

    def reset(self) -> None:
        """Succeeds only on an idle pool."""
        idle = self.manager.num_free_blocks == self.config.kv_cache.num_blocks - 1
        answer = self.manager.reset_prefix_cache()
        oracles.expect_equal("KV-POOL-11", "reset succeeds", idle, answer)
        if idle:
            left = dict(self.manager.snapshot().lookup_order)
            oracles.expect_equal("KV-POOL-11", "keys after a reset", {}, left)
            self.stats = replace(self.stats, reset=True)

    # What nobody may do.

    @precondition(lambda self: bool(self.requests))
    @rule(data=st.data(), illegal=st.sampled_from(ILLEGAL_CALLS))
    def break_the_rules(self, data: st.DataObject, illegal: IllegalCall) -> None:
        """An illegal call raises a typed error and changes nothing."""
        tracked = data.draw(st.sampled_from(self.requests))
        situation = Situation(self.manager, tracked.request, tracked.holds_blocks, self.block_size)
        if not illegal.applies(situation):
            return
        before = self.manager.snapshot()
        try:
            illegal.call(situation)
        except InvariantViolation:
            raise
        except KVSpecError:
            pass
        else:
            raise InvariantViolation(
                "illegal_calls_raise", illegal.rule, f"{illegal.name} was accepted"
            )
        oracles.expect_equal(
            "KV-ERR-2", f"state after {illegal.name}", before, self.manager.snapshot()
        )

    # Always.

    @invariant()
    def computed_tokens_are_where_they_were_written(self) -> None:
        for tracked in getattr(self, "requests", []):
            if tracked.holds_blocks:
                positions = range(tracked.request.num_computed_tokens)
                self.shadow.expect(
                    self.blocks_of(tracked),
                    [tracked.identity(position) for position in positions],
                    f"request {tracked.request.request_id}",
                    "KV-POOL-17",
                )

    @invariant()
    def events_tell_what_is_cached(self) -> None:
        if hasattr(self, "manager"):
            self.fold.take_in(self.manager.take_events())
            self.fold.expect_state(self.manager.snapshot(), int_hashes=self.config.int_event_hashes)

    @invariant()
    def free_and_used_blocks_are_all_blocks(self) -> None:
        if hasattr(self, "manager"):
            counts = self.manager.snapshot().ref_counts
            used = sum(1 for count in counts if count > 0)
            total = self.config.kv_cache.num_blocks - 1
            oracles.expect_equal(
                "KV-POOL-15", "free blocks", total - used, self.manager.num_free_blocks
            )
            usage = 1.0 - self.manager.num_free_blocks / total
            oracles.expect_equal("KV-POOL-12", "usage", usage, self.manager.usage)

    def teardown(self) -> None:
        """Once everything is released, the pool is whole again."""
        if not hasattr(self, "manager"):
            return
        for tracked in self.requests:
            self.manager.free(tracked.request)
        self.manager.free_blocks(self.popped[::-1])
        total = self.config.kv_cache.num_blocks - 1
        oracles.expect_equal("KV-POOL-15", "free at the end", total, self.manager.num_free_blocks)


def manager_machine(implementation: Implementation, *, audit: bool = True) -> type[ManagerMachine]:
    """The machine for one implementation."""
    return type(
        "ManagerMachineFor" + implementation.capabilities.name,
        (ManagerMachine,),
        {"implementation": implementation, "audit": audit},
    )
