"""The one model of a scheduler: what an engine knows of a request, and what may happen to it.

A manager hears of it by the arguments of its calls alone. Whoever drives one keeps a `Seat` for
each request, as the formal model (spec/tla) does, asks for slots with `Seat.asks`, and goes on with
the seat that the answer makes of it. A seat is a value: explorations keep many.

The driver of `kvspec replay` and `kvspec bench` are timed and see prompts of 100,000 tokens: they
keep their counts in the manager's own requests, and move those by `admitted` and `preempted`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from kvspec.errors import KVSpecError
from kvspec.request import Request, RequestStatus

EMPTY, WAITING, PREEMPTED, RUNNING, LOADING = "empty", "waiting", "preempted", "running", "loading"
"""Nobody is there; new; freed and comes again; computes; waits for external tokens."""

STATUS_OF_PHASE: Mapping[str, str] = MappingProxyType(
    {
        EMPTY: "WAITING",
        WAITING: "WAITING",
        PREEMPTED: "PREEMPTED",
        RUNNING: "RUNNING",
        LOADING: "RUNNING",
    }
)


class TransitionError(KVSpecError):
    """No scheduler does this to a request in this phase: the driver is wrong, not the manager."""

    def __init__(self, what: str, phase: str) -> None:
        super().__init__(f"a request that is {phase} can't be {what}")
        self.what = what
        self.phase = phase


class Seat(NamedTuple):
    """A request as its scheduler sees it.

    `num_prompt`: tokens that it came with. `num_loading`: tokens that are computed once its load
    is done.
    """

    phase: str = EMPTY
    tokens: tuple[int, ...] = ()
    num_prompt: int = 0
    num_computed: int = 0
    num_loading: int = 0

    @classmethod
    def of(cls, prompt: Sequence[int]) -> Seat:
        """A request that arrives."""
        return cls(WAITING, tuple(prompt), len(prompt))

    @property
    def status(self) -> str:
        """What the scheduler says of the request."""
        return STATUS_OF_PHASE[self.phase]

    @property
    def holds_blocks(self) -> bool:
        """Whether it was granted anything since it last began."""
        return self.phase in (RUNNING, LOADING)

    @property
    def num_pending(self) -> int:
        """Tokens that it has and that are not computed."""
        return len(self.tokens) - self.num_computed

    def asks(self, num_new_tokens: int, **more: Any) -> dict[str, Any]:
        """The arguments with which it asks for slots, legal or not."""
        return {
            "num_computed_tokens": self.num_computed,
            "status": self.status,
            "num_new_tokens": num_new_tokens,
            **more,
        }

    def appended(self, tokens: Sequence[int]) -> Seat:
        """With more tokens: sampled ones, or drafts that were right."""
        self._must_be("given tokens", WAITING, PREEMPTED, RUNNING)
        return self._replace(tokens=(*self.tokens, *tokens))

    def told_again(self, tokens: Sequence[int], num_prompt: int) -> Seat:
        """With other tokens behind those that are computed."""
        self._must_be("told again", WAITING, PREEMPTED, RUNNING)
        return self._replace(tokens=tuple(tokens), num_prompt=num_prompt)

    def granted(
        self, num_new: int, *, num_hit: int = 0, num_external: int = 0, later: bool = False
    ) -> Seat:
        """It got its slots, and has computed the new tokens. `later`: external ones are to come.

        After a load of everything the last token is still computed again.
        """
        self._must_be("granted slots", WAITING, PREEMPTED, RUNNING)
        computed = self.num_computed + num_hit + num_external + num_new
        return self._replace(
            phase=LOADING if later else RUNNING,
            num_computed=min(computed, len(self.tokens) - (num_new == 0)),
            num_loading=computed if later else 0,
        )

    def loaded(self) -> Seat:
        """The external tokens came."""
        self._must_be("loaded", LOADING)
        return self._replace(phase=RUNNING, num_loading=0)

    def set_back(self, num_computed: int) -> Seat:
        """Tokens turned out void, and are computed again in the blocks it has."""
        self._must_be("set back", RUNNING, LOADING)
        return self._replace(phase=RUNNING, num_computed=num_computed, num_loading=0)

    def preempted(self) -> Seat:
        """It gave everything back and comes again, with the tokens it has."""
        self._must_be("preempted", RUNNING, LOADING)
        return Seat(PREEMPTED, self.tokens, self.num_prompt)

    def _must_be(self, what: str, *phases: str) -> None:
        if self.phase not in phases:
            raise TransitionError(what, self.phase)


def admitted(request: Request, num_hit_tokens: int) -> None:
    """The engine's own request starts behind its hit."""
    request.num_computed_tokens = num_hit_tokens
    request.status = RequestStatus.RUNNING


def preempted(request: Request) -> None:
    """The engine's own request begins anew."""
    request.num_computed_tokens = 0
    request.status = RequestStatus.PREEMPTED
    request.num_preemptions += 1
