"""The one model of a scheduler: an engine's knowledge of a request, and its transitions.

A manager learns of it only by the arguments of its calls. A driver keeps a `Seat` for each request,
as the formal model (spec/tla) does, asks for slots with `Seat.asks`, and continues with the seat
that follows from the result. A seat is a value: explorations keep many.

The drivers of `kvspec replay` and `kvspec bench` are timed and see prompts of 100,000 tokens: they
keep their counts in the manager's own requests, and change those by `admitted` and `preempted`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from kvspec.errors import KVSpecError
from kvspec.request import Request, RequestStatus

EMPTY, WAITING, PREEMPTED, RUNNING, LOADING = "empty", "waiting", "preempted", "running", "loading"
"""No request; new; freed and to return; computing; waiting for external tokens."""

STATUS_OF_PHASE: Mapping[str, str] = {
    EMPTY: "WAITING",
    WAITING: "WAITING",
    PREEMPTED: "PREEMPTED",
    RUNNING: "RUNNING",
    LOADING: "RUNNING",
}


class TransitionError(KVSpecError):
    """No scheduler does this to a request in this phase: the driver is wrong, not the manager."""

    def __init__(self, what: str, phase: str) -> None:
        super().__init__(f"a request that is {phase} can't be {what}")
        self.what = what
        self.phase = phase


class Seat(NamedTuple):
    """A request as its scheduler sees it.

    `num_prompt`: tokens that it arrived with. `num_loading`: tokens that are computed once its load
    is done.
    """

    phase: str = EMPTY
    tokens: tuple[int, ...] = ()
    num_prompt: int = 0
    num_computed: int = 0
    num_loading: int = 0

    @classmethod
    def of(cls, prompt: Sequence[int]) -> Seat:
        return cls(WAITING, tuple(prompt), len(prompt))

    @property
    def status(self) -> str:
        return STATUS_OF_PHASE[self.phase]

    @property
    def holds_blocks(self) -> bool:
        """Whether it was granted blocks since it last began."""
        return self.phase in (RUNNING, LOADING)

    @property
    def num_pending(self) -> int:
        """Count its tokens that are not computed."""
        return len(self.tokens) - self.num_computed

    def asks(self, num_new_tokens: int, **more: Any) -> dict[str, Any]:
        """Return the arguments with which it asks for slots, legal or not."""
        return {
            "num_computed_tokens": self.num_computed,
            "status": self.status,
            "num_new_tokens": num_new_tokens,
            **more,
        }

    def appended(self, tokens: Sequence[int]) -> Seat:
        self._must_be("given tokens", WAITING, PREEMPTED, RUNNING)
        return self._replace(tokens=(*self.tokens, *tokens))

    def told_again(self, tokens: Sequence[int], num_prompt: int) -> Seat:
        """Replace the tokens behind those that are computed."""
        self._must_be("given other tokens", WAITING, PREEMPTED, RUNNING)
        return self._replace(tokens=tuple(tokens), num_prompt=num_prompt)

    def granted(
        self, num_new: int, *, num_hit: int = 0, num_external: int = 0, later: bool = False
    ) -> Seat:
        """Grant slots and compute the new tokens. `later`: external ones will arrive.

        After a load of all tokens the last one is still computed again.
        """
        self._must_be("granted slots", WAITING, PREEMPTED, RUNNING)
        computed = self.num_computed + num_hit + num_external + num_new
        return self._replace(
            phase=LOADING if later else RUNNING,
            num_computed=min(computed, len(self.tokens) - (num_new == 0)),
            num_loading=computed if later else 0,
        )

    def loaded(self) -> Seat:
        self._must_be("loaded", LOADING)
        return self._replace(phase=RUNNING, num_loading=0)

    def set_back(self, num_computed: int) -> Seat:
        """Set back void tokens, which are computed again in the same blocks."""
        self._must_be("set back", RUNNING, LOADING)
        return self._replace(phase=RUNNING, num_computed=num_computed, num_loading=0)

    def preempted(self) -> Seat:
        self._must_be("preempted", RUNNING, LOADING)
        return Seat(PREEMPTED, self.tokens, self.num_prompt)

    def _must_be(self, what: str, *phases: str) -> None:
        if self.phase not in phases:
            raise TransitionError(what, self.phase)


def admitted(request: Request, num_hit_tokens: int) -> None:
    """Start the engine's own request behind its hit."""
    request.num_computed_tokens = num_hit_tokens
    request.status = RequestStatus.RUNNING


def preempted(request: Request) -> None:
    request.num_computed_tokens = 0
    request.status = RequestStatus.PREEMPTED
    request.num_preemptions += 1
