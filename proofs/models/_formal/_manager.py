"""kvref's manager and a scheduler that may do anything legal, which Manager must equal."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from kvref.request import ReferenceRequest
from kvspec.config import ManagerConfig
from kvspec.request import RequestStatus
from kvspec.snapshot import Snapshot
from proofs.models._formal._cache import CacheBounds, OneManager, Text, cache_value, texts
from proofs.models._formal._values import Move

EMPTY, PREEMPTED, LOADING, RUNNING = "empty", "preempted", "loading", "running"


@dataclass(frozen=True)
class ManagerBounds(CacheBounds):
    """As the constants of Manager. `watermark` counts blocks; a step may have any size."""

    min_prompt: int = 1
    max_prompt: int = 2
    watermark: int = 0
    must_fit: bool = False
    lookahead: int = 0
    max_loaded: int = 0
    max_popped: int = 0

    @property
    def constants(self) -> dict[str, Any]:
        """Constants of the TLA+ module."""
        return {
            **super().constants,
            "StepTokens": self.max_tokens,
            "MinPrompt": self.min_prompt,
            "MaxPrompt": self.max_prompt,
            "Watermark": self.watermark,
            "MustFit": self.must_fit,
            "Lookahead": self.lookahead,
            "MaxLoaded": self.max_loaded,
            "MaxPopped": self.max_popped,
        }

    def config(self) -> ManagerConfig:
        """Add the watermark as a share of all blocks, slightly rounded up (KV-MGR-9)."""
        share = self.watermark and (self.watermark + 0.5) / self.num_blocks
        return replace(super().config(), watermark=share)


class Seat(NamedTuple):
    """A request as its scheduler sees it. `prompt`: how long it is, if retention asks for that."""

    phase: str = EMPTY
    tokens: Text = ()
    prompt: int = 0
    computed: int = 0


class ManagerState(NamedTuple):
    """A manager, its requests, and the blocks of each deferred free that are still out."""

    snapshot: Snapshot
    seats: tuple[Seat, ...]
    popped: tuple[tuple[int, ...], ...] = ()

    def with_seat(self, number: int, seat: Seat) -> ManagerState:
        """Return the state with this seat replaced."""
        return self._replace(seats=(*self.seats[:number], seat, *self.seats[number + 1 :]))


class ManagerSide:
    """kvref's manager, which `bounds` limits."""

    module = "Manager"

    def __init__(self, bounds: ManagerBounds) -> None:
        self.bounds = bounds
        self.constants = bounds.constants
        self.contents = bounds.contents()
        self.kvref = OneManager(bounds)

    def moves(self) -> Iterator[Move]:
        """Yield every move, possible or not."""
        bounds = self.bounds
        for r in range(1, bounds.num_requests + 1):
            for prompt in texts(bounds.num_tokens, bounds.min_prompt, bounds.max_prompt):
                yield from (Move("Admit", (r, prompt, left)) for left in range(len(prompt)))
                for loaded in range(1, bounds.max_loaded + 1):
                    yield Move("LoadLater", (r, prompt, loaded))
                    for left in range(len(prompt)):
                        yield Move("LoadNow", (r, prompt, loaded, left))
            for action in ("Resume", "Compute"):
                yield from (Move(action, (r, left)) for left in range(bounds.max_tokens))
            yield from (Move("Generate", (r, token)) for token in range(bounds.num_tokens))
            loading = ("Arrived", "FailLoad") if bounds.max_loaded else ()
            for action in ("FreeRequest", "Preempt", "GiveUp", "Pop", "Skip", *loading):
                yield Move(action, (r,))
        for action in ("ReturnAll", "ReturnLast"):
            yield from (Move(action, (i,)) for i in range(1, bounds.max_popped + 1))
        yield from (Move("Evict", (block,)) for block in range(1, bounds.num_blocks))
        yield Move("EvictAll")
        yield Move("ResetCache")

    def first(self) -> ManagerState:
        """Return the state without requests."""
        return ManagerState(self.kvref.manager.snapshot(), (Seat(),) * self.bounds.num_requests)

    def value(self, state: ManagerState) -> dict[str, Any]:
        """Return the state as the model has it."""
        return {
            **cache_value(self.bounds, state.snapshot, self.contents),
            "seats": tuple(seat._asdict() for seat in state.seats),
            "popped": state.popped,
        }

    def after(self, state: ManagerState, move: Move) -> ManagerState | None:
        """Return the state after a move; None where the move is impossible."""
        if move.action in ("Evict", "EvictAll", "ResetCache"):
            return self._of_pool(state, move)
        number, *rest = move.arguments
        if move.action in ("ReturnAll", "ReturnLast"):
            return self._return(state, number - 1, move.action == "ReturnAll")
        seat = state.seats[number - 1]
        if move.action in ("Admit", "Resume"):
            return self._start(state, number - 1, seat, *rest)
        if move.action in ("LoadNow", "LoadLater"):
            return self._load(state, number - 1, seat, *rest)
        phases = {"GiveUp": PREEMPTED, "Arrived": LOADING, "FailLoad": LOADING}
        if seat.phase != phases.get(move.action, RUNNING):
            return None
        if move.action in ("Compute", "Generate"):
            return self._continue(state, number - 1, seat, move.action, *rest)
        return self._of_request(state, number - 1, seat, move.action)

    def _request(self, number: int, tokens: Text, prompt: int) -> ReferenceRequest:
        request = self.kvref.request(self.bounds.names()[number], tokens)
        request.num_prompt_tokens = prompt or len(tokens)
        return request

    def _of_pool(self, state: ManagerState, move: Move) -> ManagerState | None:
        cached = [block for block, keys in enumerate(state.snapshot.block_keys) if keys]
        if move.action == "ResetCache":
            manager = self.kvref.restored(state.snapshot)
            manager.reset_prefix_cache()
        else:
            blocks = list(move.arguments) or cached
            is_possible = set(blocks) <= set(cached) and (move.arguments or len(cached) > 1)
            if not is_possible:
                return None
            manager = self.kvref.restored(state.snapshot)
            manager.evict_blocks(blocks)
        return state._replace(snapshot=manager.snapshot())

    def _return(self, state: ManagerState, i: int, everything: bool) -> ManagerState | None:
        """Return all of a popped list or only its last block, in reverse order."""
        if i >= len(state.popped):
            return None
        blocks = state.popped[i]
        if not everything and len(blocks) == 1:
            return None
        cut = 0 if everything else len(blocks) - 1
        manager = self.kvref.restored(state.snapshot)
        manager.free_blocks(blocks[cut:][::-1])
        kept = (blocks[:cut],) if cut else ()
        popped = (*state.popped[:i], *kept, *state.popped[i + 1 :])
        return state._replace(snapshot=manager.snapshot(), popped=popped)

    def _start(
        self, state: ManagerState, number: int, seat: Seat, *rest: Any
    ) -> ManagerState | None:
        """Start a prompt or a preempted request, and leave some of its tokens for later."""
        *prompt, left = rest
        tokens = prompt[0] if prompt else seat.tokens
        if seat.phase != (EMPTY if prompt else PREEMPTED) or left >= len(tokens):
            return None
        length = seat.prompt
        if prompt:
            length = len(tokens) if self.bounds.retention is not None else 0
        manager = self.kvref.restored(state.snapshot)
        request = self._request(number, tokens, length)
        request.num_computed_tokens = 0
        request.status = RequestStatus.WAITING if prompt else RequestStatus.PREEMPTED
        hit = manager.get_computed_blocks(request)
        new = len(tokens) - left - hit.hit_length_tokens
        if new < 1:
            return None
        granted = manager.allocate_slots(
            request,
            new,
            num_new_computed_tokens=hit.hit_length_tokens,
            new_computed_blocks=hit.blocks if hit.hit_length_tokens else None,
            num_lookahead_tokens=self.bounds.lookahead,
            full_sequence_must_fit=self.bounds.must_fit,
        )
        if granted is not None:
            seat = Seat(RUNNING, tokens, length, len(tokens) - left)
        return state._replace(snapshot=manager.snapshot()).with_seat(number, seat)

    def _load(
        self,
        state: ManagerState,
        number: int,
        seat: Seat,
        prompt: Text,
        loaded: int,
        left: int | None = None,
    ) -> ManagerState | None:
        """Admit hits and external tokens, which are loaded at once with others, or later."""
        if seat.phase != EMPTY:
            return None
        length = len(prompt) if self.bounds.retention is not None else 0
        manager = self.kvref.restored(state.snapshot)
        request = self._request(number, prompt, length)
        request.num_computed_tokens = 0
        request.status = RequestStatus.WAITING
        hit = manager.get_computed_blocks(request)
        brought = hit.hit_length_tokens + loaded
        new = 0 if left is None else len(prompt) - left - brought
        if brought > len(prompt) or (left is not None and new < 1):
            return None
        granted = manager.allocate_slots(
            request,
            new,
            num_new_computed_tokens=hit.hit_length_tokens,
            new_computed_blocks=hit.blocks if hit.hit_length_tokens else None,
            num_external_computed_tokens=loaded,
            delay_cache_blocks=left is None,
            num_lookahead_tokens=self.bounds.lookahead,
            full_sequence_must_fit=self.bounds.must_fit,
        )
        if granted is not None:
            seat = Seat(LOADING if left is None else RUNNING, prompt, length, brought + new)
        return state._replace(snapshot=manager.snapshot()).with_seat(number, seat)

    def _continue(
        self, state: ManagerState, number: int, seat: Seat, action: str, argument: int
    ) -> ManagerState | None:
        """Compute the remaining tokens but some, or one that was just generated."""
        tokens, left = seat.tokens, argument
        if action == "Generate":
            if seat.computed < len(tokens) or len(tokens) == self.bounds.max_tokens:
                return None
            tokens, left = (*tokens, argument), 0
        new = len(tokens) - left - seat.computed
        if new < 1:
            return None
        manager = self.kvref.restored(state.snapshot)
        request = self._request(number, tokens, seat.prompt)
        request.num_computed_tokens = seat.computed
        request.status = RequestStatus.RUNNING
        granted = manager.allocate_slots(request, new, num_lookahead_tokens=self.bounds.lookahead)
        computed = seat.computed if granted is None else seat.computed + new
        after = state._replace(snapshot=manager.snapshot())
        return after.with_seat(number, seat._replace(tokens=tokens, computed=computed))

    def _of_request(
        self, state: ManagerState, number: int, seat: Seat, action: str
    ) -> ManagerState | None:
        """Finish or preempt a request, or release its skipped blocks."""
        if action == "Pop" and len(state.popped) == self.bounds.max_popped:
            return None
        manager = self.kvref.restored(state.snapshot)
        request = self._request(number, seat.tokens, seat.prompt)
        after, popped = Seat(), state.popped
        if action == "Pop":
            popped = (*popped, manager.pop_blocks_for_free(request))
        elif action == "Arrived":
            manager.cache_blocks(request, seat.computed)
            after = seat._replace(phase=RUNNING, computed=min(seat.computed, len(seat.tokens) - 1))
        elif action == "Skip":
            manager.remove_skipped_blocks(request, seat.computed)
            after = seat
        else:
            manager.free(request)
            if action == "Preempt":
                after = Seat(PREEMPTED, seat.tokens, seat.prompt)
        return ManagerState(manager.snapshot(), state.seats, popped).with_seat(number, after)
