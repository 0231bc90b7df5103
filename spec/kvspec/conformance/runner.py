"""Running a program: steps become operations of a record, and every answer is checked.

The scheduler's side (what was computed, what is pending, who waits) is kept here, once, from the
answers of the *subject*. With an *oracle* the same operations run on it too; block ids in arguments
(hits, popped blocks, evicted blocks) are then each side's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from kvspec.config import ManagerConfig
from kvspec.conformance import steps as st
from kvspec.conformance.illegal_operations import ILLEGAL_OPERATIONS
from kvspec.errors import InvariantViolation, KVSpecError
from kvspec.golden.player import Outcome, Player
from kvspec.golden.state import View, look
from kvspec.interface import Implementation

NUM_ENCODER_TOKENS = 3


@dataclass(eq=False)
class Tracked:
    """A request as its scheduler sees it."""

    name: str
    salt: str | None
    lora: str | None
    tokens: list[int]
    num_computed: int = 0
    num_preemptions: int = 0
    status: str = "WAITING"
    holds_blocks: bool = False
    loading_tokens: int = 0

    @property
    def state(self) -> str:
        """waiting, running, or loading external tokens."""
        if not self.holds_blocks:
            return "waiting"
        return "loading" if self.loading_tokens else "running"


@dataclass
class Side:
    """One implementation that the operations run on."""

    player: Player
    popped: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, implementation: Implementation, program: st.Program, *, audit: bool) -> Side:
        """A fresh manager for the program's configuration."""
        manager = implementation.create(program.config, check_invariants=audit)
        return cls(Player(implementation, manager))

    def blocks(self, request: Tracked) -> list[list[int]]:
        """The request's block lists."""
        return self.player.manager.get_blocks(self.player.requests[request.name]).to_lists()


@dataclass(frozen=True)
class Performed:
    """One operation on the subject: what was asked, what came, and the state around it."""

    name: str
    request: Tracked | None
    arguments: Mapping[str, Any]
    outcome: Outcome
    before: View
    after: View
    oracle: Outcome | None = None
    oracle_after: View | None = None


class Check(Protocol):
    """Looks at every operation; raises InvariantViolation."""

    def after_operation(self, runner: Runner, done: Performed) -> None:
        """One operation was performed."""

    def after_step(self, runner: Runner) -> None:
        """A whole step was performed: what was scheduled is computed now."""


class Runner:
    """Performs steps. `operations` lists what was asked, for a record."""

    def __init__(
        self,
        program: st.Program,
        subject: Implementation,
        oracle: Implementation | None = None,
        checks: Sequence[Check] = (),
        *,
        audit: bool = False,
    ) -> None:
        self.subject = Side.of(subject, program, audit=audit)
        self.oracle = None if oracle is None else Side.of(oracle, program, audit=False)
        self.config: ManagerConfig = self.subject.player.manager.config
        self.checks = checks
        self.requests: list[Tracked] = []
        self.num_made = 0
        self.operations: list[tuple[str, str | None, dict[str, Any]]] = []
        self.view = look(self.subject.player.manager)

    def run(self, steps: Sequence[st.Step]) -> None:
        """All steps, then the end: everything is released and the pool is whole."""
        for step in steps:
            STEPS[type(step)](self, step)
            for check in self.checks:
                check.after_step(self)
        for request in [r for r in self.requests if r.holds_blocks]:
            self.do("free", request)
            request.holds_blocks = False
        self.return_popped(len(self.subject.popped))
        for check in self.checks:
            check.after_step(self)

    def do(
        self,
        name: str,
        request: Tracked | None = None,
        arguments: Mapping[str, Any] | None = None,
        own: Callable[[Side], Mapping[str, Any]] = lambda side: {},
        *,
        may_fail: bool = False,
    ) -> tuple[Any, Any]:
        """One operation on both sides; the subject's result and the oracle's.

        `own` gives the arguments that hold block ids, for each side. An error that the scheduler
        did not ask for is the implementation's fault.
        """
        request_id = request.name if request is not None else None
        asked = {**(arguments or {}), **own(self.subject)}
        outcome = self.subject.player.perform(name, request_id, asked)
        self.operations.append((name, request_id, asked))
        before, self.view = self.view, look(self.subject.player.manager)
        expected = expected_after = None
        if self.oracle is not None:
            theirs = {**(arguments or {}), **own(self.oracle)}
            expected = self.oracle.player.perform(name, request_id, theirs)
            expected_after = look(self.oracle.player.manager)
        if outcome.error is not None and not may_fail:
            raise_as_violation(name, outcome.error)
        done = Performed(name, request, asked, outcome, before, self.view, expected, expected_after)
        for check in self.checks:
            check.after_operation(self, done)
        return outcome.result, None if expected is None else expected.result

    def pick(self, who: int, *states: str) -> Tracked | None:
        """Request number `who` among those in one of these states."""
        fitting = [request for request in self.requests if request.state in states]
        return fitting[who % len(fitting)] if fitting else None

    # Steps.

    def arrive(self, step: st.Arrive) -> None:
        request = Tracked(f"r{self.num_made}", step.salt, step.lora, list(step.prompt))
        self.num_made += 1
        arguments: dict[str, Any] = {"prompt_token_ids": list(step.prompt)}
        if step.salt is not None:
            arguments["cache_salt"] = step.salt
        if step.lora is not None:
            arguments["lora"] = {"name": step.lora, "id": 1}
        if step.items:
            keys = ("identifier", "offset", "length")
            arguments["mm_features"] = [dict(zip(keys, item, strict=True)) for item in step.items]
        if step.skip_reading:
            arguments["skip_reading_prefix_cache"] = True
        self.do("new_request", request, arguments)
        self.requests.append(request)

    def admit(self, step: st.Admit) -> None:
        request = self.pick(step.who, "waiting")
        if request is None:
            return
        hits: dict[int, list[list[int]]] = {}
        hit_tokens = 0
        if step.look_up:
            arguments = {"num_preemptions": request.num_preemptions}
            ours, theirs = self.do("get_computed_blocks", request, arguments)
            hit_tokens = ours["num_computed_tokens"]
            hits[id(self.subject)] = ours["blocks"]
            if self.oracle is not None:
                hits[id(self.oracle)] = theirs["blocks"]
        rest = len(request.tokens) - hit_tokens
        external = min(step.external_tokens, rest)
        loading = external > 0 and (step.load_later or external == rest)
        new = 0 if loading else rest - external
        if step.chunk_tokens is not None:
            new = min(new, step.chunk_tokens)
        if new == 0 and external == 0:
            return
        granted, _ = self.do(
            "allocate_slots",
            request,
            {
                "num_computed_tokens": 0,
                "status": request.status,
                "num_new_tokens": new,
                "num_new_computed_tokens": hit_tokens,
                "num_external_computed_tokens": external,
                "delay_cache_blocks": loading,
                "num_lookahead_tokens": step.lookahead_tokens,
                "num_encoder_tokens": NUM_ENCODER_TOKENS,
                "full_sequence_must_fit": step.must_fit,
                "reserved_blocks": step.reserved_blocks,
                "has_scheduled_reqs": step.others_scheduled,
            },
            lambda side: {"new_computed_blocks": hits.get(id(side)) if hit_tokens else None},
        )
        if granted is None:
            return
        computed = hit_tokens + external + new
        request.holds_blocks, request.status = True, "RUNNING"
        request.loading_tokens = computed if loading else 0
        # After a load of everything the last token is still computed again.
        request.num_computed = min(computed, len(request.tokens) - 1 + (new > 0))

    def run_on(self, step: st.Run) -> None:
        request = self.pick(step.who, "running")
        if request is None:
            return
        pending = len(request.tokens) - request.num_computed
        room = self.config.max_model_len_tokens - len(request.tokens)
        if pending == 0 and room > 0:
            self.append(request, [step.token])
            pending, room = 1, room - 1
        if pending == 0:
            return
        chunk = pending if step.chunk_tokens is None else max(1, min(pending, step.chunk_tokens))
        drafts = step.drafts[: max(room, 0)] if chunk == pending else ()
        granted, _ = self.do(
            "allocate_slots",
            request,
            {
                "num_computed_tokens": request.num_computed,
                "status": request.status,
                "num_new_tokens": chunk + len(drafts),
            },
        )
        if granted is None:
            return
        kept = list(drafts[: step.accepted])
        if kept:
            self.append(request, kept)
        request.num_computed += chunk + len(kept)

    def append(self, request: Tracked, tokens: list[int]) -> None:
        self.do("append_tokens", request, {"token_ids": tokens})
        request.tokens.extend(tokens)

    def finish_load(self, step: st.FinishLoad) -> None:
        request = self.pick(step.who, "loading")
        if request is not None:
            self.do("cache_blocks", request, {"num_computed_tokens": request.loading_tokens})
            request.loading_tokens = 0

    def skip(self, step: st.Skip) -> None:
        request = self.pick(step.who, "running")
        if request is not None:
            arguments = {"total_computed_tokens": request.num_computed}
            self.do("remove_skipped_blocks", request, arguments)

    def release(self, step: st.Release) -> None:
        request = self.pick(step.who, "running", "loading")
        if request is None:
            return
        if step.later:
            ours, theirs = self.do("pop_blocks_for_free", request)
            self.subject.popped.extend(ours)
            if self.oracle is not None:
                self.oracle.popped.extend(theirs)
        else:
            self.do("free", request)
        request.holds_blocks, request.loading_tokens, request.num_computed = False, 0, 0
        request.num_preemptions += 1
        request.status = "PREEMPTED"
        if not step.again:
            self.requests.remove(request)

    def return_popped(self, count: int) -> None:
        count = min(count, len(self.subject.popped))
        if count == 0:
            return
        self.do("free_blocks", None, {}, lambda side: {"block_ids": side.popped[-count:][::-1]})
        for side in (self.subject, self.oracle):
            if side is not None:
                del side.popped[-count:]

    def evict(self, step: st.Evict) -> None:
        """Named by content, since two sides may keep it in different blocks."""
        if not self.requests or not self.config.kv_cache.groups:
            return
        request = self.requests[step.who % len(self.requests)]
        group = step.group % len(self.config.kv_cache.groups)
        ours = self.blocks_of_content(self.subject, request, group, step.index)
        if ours:
            self.do(
                "evict_blocks",
                None,
                {},
                lambda side: {
                    "block_ids": self.blocks_of_content(side, request, group, step.index)
                },
            )

    def blocks_of_content(self, side: Side, request: Tracked, group: int, index: int) -> list[int]:
        """The block that is cached for the request's block `index`, free or not; none if none."""
        spec = self.config.registry.resolve(self.config.kv_cache.groups[group].spec)
        factor = self.config.dcp_world_size * self.config.pcp_world_size
        hash_size = self.config.hash_block_size_tokens or 1
        number = (index + 1) * max(1, spec.block_size * factor // hash_size) - 1
        hashes = side.player.requests[request.name].block_hashes
        if number >= len(hashes):
            return []
        key = hashes[number] + group.to_bytes(4, "big")
        return list(side.player.manager.snapshot().lookup_order.get(key, ())[:1])

    def break_rules(self, step: st.Break) -> None:
        """An illegal call raises a typed error and changes nothing (KV-ERR-2)."""
        if not self.requests:
            return
        request = self.requests[step.who % len(self.requests)]
        illegal = ILLEGAL_OPERATIONS[step.call % len(ILLEGAL_OPERATIONS)]
        arguments = illegal.arguments(self, request)
        if arguments is None:
            return
        before = self.view
        on_request = request.name if illegal.on_request else None
        outcome = self.subject.player.perform(illegal.operation, on_request, arguments)
        self.operations.append((illegal.operation, on_request, arguments))
        self.view = look(self.subject.player.manager)
        if not isinstance(outcome.error, KVSpecError):
            got = "was accepted" if outcome.error is None else f"raised {outcome.error!r}"
            raise InvariantViolation(
                "illegal_calls_raise",
                illegal.rule,
                f"{illegal.name}: {illegal.operation}({arguments}) {got}",
            )
        if self.view != before:
            raise InvariantViolation(
                "errors_change_nothing", "KV-ERR-2", f"{illegal.name} changed the state"
            )

    def simply(self, name: str) -> None:
        """An operation without arguments."""
        self.do(name)

    def take(self) -> None:
        self.do("make_prefix_cache_stats")
        self.do("take_new_block_ids")

    def ask(self, step: st.Ask) -> None:
        request = self.pick(step.who, "running", "loading", "waiting")
        if request is None:
            return
        self.do("get_num_common_prefix_blocks", request)
        self.do("get_block_ids", request)
        num_tokens = len(request.tokens)
        arguments = {
            "num_tokens": num_tokens,
            "total_computed_tokens": request.num_computed,
            "num_tokens_main_model": num_tokens,
        }
        self.do("get_num_blocks_to_allocate", request, arguments)
        if self.config.enable_caching and len(self.config.kv_cache.groups) > 1:
            arguments = {"max_cache_hit_length": num_tokens - 1}
            self.do("find_longest_cache_hit_per_group", request, arguments)


STEPS: Mapping[type[st.Step], Callable[[Runner, Any], None]] = {
    st.Arrive: Runner.arrive,
    st.Admit: Runner.admit,
    st.Run: Runner.run_on,
    st.FinishLoad: Runner.finish_load,
    st.Skip: Runner.skip,
    st.Release: Runner.release,
    st.ReturnPopped: lambda runner, step: runner.return_popped(step.count),
    st.Evict: Runner.evict,
    st.Reset: lambda runner, step: runner.simply("reset_prefix_cache"),
    st.NewStep: lambda runner, step: runner.simply("new_step_starts"),
    st.Take: lambda runner, step: runner.take(),
    st.Ask: Runner.ask,
    st.Break: Runner.break_rules,
}


def raise_as_violation(name: str, error: Exception) -> None:
    """A legal call ended with an error: that is the implementation's fault."""
    if isinstance(error, InvariantViolation):
        raise error
    kind = "a typed error" if isinstance(error, KVSpecError) else type(error).__name__
    raise InvariantViolation(
        "legal_calls_succeed", "KV-ERR-1", f"{name} raised {kind}: {error}"
    ) from error
