"""Random but legal scenarios: short programs that can be played on any manager.

The same program on two managers in the same state must give the same answers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from hypothesis import strategies as st

from kvcheck.rules.managed import Everything, Managed
from kvcheck.rules.specs import full, mamba, sliding
from kvspec.request import Request, RequestStatus

Step: TypeAlias = tuple[str, int, int]

CONFIGS = (
    {"block_size": 2},
    {"block_size": 2, "use_eagle": True, "watermark": 0.2},
    {"block_size": 2, "enable_caching": False},
    {"specs": [sliding(2, 3)]},
    {"specs": [full(2), sliding(4, 5)]},
    {"specs": [full(2), mamba(4)]},
    {"specs": [full(2), mamba(4, "align", speculative=1)]},
)
"""One group and several, with windows, state, drops, and caching off."""

CALLS = (
    "arrive",
    "arrive",
    "step",
    "step",
    "step",
    "load",
    "finish",
    "preempt",
    "pop",
    "give_back",
    "evict",
    "reset",
    "ask",
)

steps = st.lists(
    st.tuples(st.sampled_from(CALLS), st.integers(0, 30), st.integers(0, 30)),
    min_size=15,
    max_size=40,
)
"""A program: calls, each with two numbers that choose what it is about."""


@dataclass
class Player:
    """Plays programs on one manager, as a scheduler that makes no mistakes."""

    manager: Managed
    requests: list[Request] = field(default_factory=list)
    popped: list[int] = field(default_factory=list)
    num_made: int = 0

    def play(self, program: list[Step]) -> list[tuple[object, Everything]]:
        """Everything that can be seen after each call, with its answer."""
        return [(getattr(self, call)(a, b), self.manager.everything()) for call, a, b in program]

    def on(self, manager: Managed) -> Player:
        """The same scheduler on another manager, with requests of its own."""
        other = Player(manager, [], list(self.popped), self.num_made)
        for request in self.requests:
            twin = manager.request(request.request_id, request.token_ids)
            twin.num_computed_tokens = request.num_computed_tokens
            twin.num_preemptions = request.num_preemptions
            twin.status = request.status
            other.requests.append(twin)
        return other

    def arrive(self, kind: int, length: int) -> object:
        """A new request asks for admission; refused, it goes away."""
        request = self._made(kind, length)
        hit = self.manager.get_computed_blocks(request)
        new = request.num_tokens - hit.hit_length_tokens
        if kind % 3 == 0:
            new = 1 + length % new
        answer = self.manager.allocate_slots(
            request,
            new,
            num_new_computed_tokens=hit.hit_length_tokens,
            new_computed_blocks=hit.blocks,
            num_lookahead_tokens=kind % 2,
            full_sequence_must_fit=kind % 5 == 0,
            has_scheduled_reqs=bool(self.requests),
        )
        if answer is not None:
            self._admitted(request, hit.hit_length_tokens + new)
        return hit, answer

    def load(self, kind: int, length: int) -> object:
        """A request whose first tokens come from elsewhere; they are cached when they arrived."""
        request = self._made(kind, length)
        external = 1 + length % request.num_tokens
        answer = self.manager.allocate_slots(
            request, 0, num_external_computed_tokens=external, delay_cache_blocks=True
        )
        if answer is not None:
            self._admitted(request, external)
            self.manager.cache_blocks(request, external)
        return answer

    def step(self, which: int, token: int) -> object:
        """One request goes on by what is left of its prompt, or by one token."""
        request = self._pick(which)
        if request is None:
            return None
        self.manager.new_step_starts()
        left = request.num_tokens - request.num_computed_tokens
        if left == 0:
            self.manager.append(request, [token % 2])
            left = 1
        answer = self.manager.allocate_slots(request, left)
        if answer is not None:
            request.num_computed_tokens += left
        return answer

    def finish(self, which: int, _: int) -> None:
        """A request is done."""
        request = self._pick(which)
        if request is not None:
            self.manager.free(request)
            self.requests.remove(request)

    def preempt(self, which: int, _: int) -> object:
        """A request gives way and asks again at once."""
        request = self._pick(which)
        if request is None:
            return None
        self.manager.preempt(request)
        self.requests.remove(request)
        request.status = RequestStatus.PREEMPTED
        hit = self.manager.get_computed_blocks(request)
        answer = self.manager.allocate_slots(
            request,
            request.num_tokens - hit.hit_length_tokens,
            num_new_computed_tokens=hit.hit_length_tokens,
            new_computed_blocks=hit.blocks,
        )
        if answer is not None:
            self._admitted(request, request.num_tokens)
        return hit, answer

    def pop(self, which: int, _: int) -> object:
        """A request is done, its blocks come back later."""
        request = self._pick(which)
        if request is None:
            return None
        self.requests.remove(request)
        blocks = self.manager.pop_blocks_for_free(request)
        self.popped.extend(blocks)
        return blocks

    def give_back(self, count: int, _: int) -> None:
        """Some of the popped blocks come back, the last first."""
        count = min(count, len(self.popped))
        returned = self.popped[len(self.popped) - count :][::-1]
        del self.popped[len(self.popped) - count :]
        self.manager.free_blocks(returned)

    def evict(self, one: int, other: int) -> None:
        """Two blocks lose their identity."""
        num_blocks = self.manager.config.kv_cache.num_blocks
        self.manager.evict_blocks([one % num_blocks, other % num_blocks])

    def reset(self, _: int, __: int) -> bool:
        """The cache is reset, if nothing is in use."""
        return self.manager.reset_prefix_cache()

    def ask(self, which: int, num_tokens: int) -> object:
        """Everything that can be asked about a request."""
        request = self._pick(which) or self._made(which, num_tokens)
        need = self.manager.get_num_blocks_to_allocate(
            request,
            num_tokens=num_tokens,
            total_computed_tokens=request.num_computed_tokens,
            num_tokens_main_model=num_tokens,
        )
        return (
            need,
            self.manager.get_num_common_prefix_blocks(request),
            self.manager.get_blocks(request),
            self.manager.get_unhashed_block_ids(request),
            self.manager.get_computed_blocks(request),
            self.manager.take_new_block_ids(),
        )

    def _made(self, kind: int, length: int) -> Request:
        """A request with a prompt like many others."""
        self.num_made += 1
        tokens = [kind // 24] * (1 + length % 9) + [kind % 2] * (kind % 3)
        request: Request = self.manager.request(f"r{self.num_made}", tokens)
        return request

    def _admitted(self, request: Request, num_computed_tokens: int) -> None:
        request.num_computed_tokens = num_computed_tokens
        request.status = RequestStatus.RUNNING
        self.requests.append(request)

    def _pick(self, which: int) -> Request | None:
        return self.requests[which % len(self.requests)] if self.requests else None
