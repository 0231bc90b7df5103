"""A manager on the bench, called only for features of its implementation, with helpers."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from kvcheck.play.features import FEATURE_OF_ARGUMENT, FEATURE_OF_OPERATION
from kvcheck.play.left_out import LeftOut
from kvcheck.rules.guard import Guard
from kvcheck.rules.judging import equal, holds, source_of_call
from kvspec.audit import AuditedManager
from kvspec.base import FEATURE_OF_CONTENT
from kvspec.blocks import NULL_BLOCK, KVCacheBlocks, PrefixHit
from kvspec.events import Event
from kvspec.interface import Feature, Implementation, KVCacheManager
from kvspec.request import Request, RequestInput
from kvspec.snapshot import RequestState, Snapshot

ASKED_BY_CONFIGURATION = (Feature.EVENTS, Feature.STATISTICS)

FEATURE_OF_CALL: Mapping[str, Feature] = {
    **{
        name: feature
        for name, feature in FEATURE_OF_OPERATION.items()
        if feature not in ASKED_BY_CONFIGURATION and name != "get_block_ids"
    },
    "get_block": Feature.BLOCK_FACTS,
    "get_unhashed_block_ids": Feature.UNHASHED_BLOCKS,
    "hold_blocks": Feature.HOLDING,
    "snapshot": Feature.SNAPSHOT,
    "take_residency_samples": Feature.RESIDENCY,
}
"""Calls that are not part of the base; events and statistics follow from the configuration."""


@dataclass(frozen=True)
class Everything:
    """Everything that a caller can observe; taking it empties the queues."""

    snapshot: Snapshot
    events: tuple[Event, ...]
    stats: object
    samples: object


class Managed:
    """A manager of `subject`; every call of `kvspec.interface.KVCacheManager` is passed to `real`.

    A call that the subject does not support leaves the check out. `exact`: whether block ids must
    be those that a check spells out; otherwise only null differs from others. `audits`: whether
    invariants are checked after each call. `guards`: whether all that can be seen from outside is
    checked too. `is_shared`: others call the manager between these calls.
    """

    is_shared = False

    def __init__(
        self,
        subject: Implementation,
        real: KVCacheManager,
        *,
        exact: bool = True,
        audits: bool = False,
        guards: bool = False,
    ) -> None:
        self.subject = subject
        self.real = real
        self.exact = exact
        self.guards = guards
        self.inputs: dict[int, RequestInput] = {}
        self.audit = AuditedManager(real) if audits else None
        self.guard: Guard | None = None
        if guards:
            features = subject.capabilities.features
            self.guard = Guard(real, self._described, features)  # type: ignore[abstract]  # made of the interface

    def _described(self, request: Request) -> RequestInput | None:
        return self.inputs.get(id(request))

    @property
    def calls(self) -> KVCacheManager:
        if self.guard is not None and not self.is_shared:
            return self.guard
        if self.audit is None:
            return self.real
        if self.is_shared:
            self.audit.audit_state()
        return cast(KVCacheManager, self.audit)

    def _need(self, feature: Feature) -> None:
        if feature not in self.subject.capabilities.features:
            raise LeftOut(feature)

    def __getattr__(self, name: str) -> Any:
        if name in FEATURE_OF_CALL:
            self._need(FEATURE_OF_CALL[name])
        return getattr(self.calls, name)

    def allocate_slots(self, request: Request, num_new_tokens: Any = 1, **arguments: Any) -> Any:
        """Allocate, if the subject supports what the arguments ask for."""
        for name, feature in FEATURE_OF_ARGUMENT.items():
            if arguments.get(name, 0) != 0:
                self._need(feature)
        if _is_draft(request, num_new_tokens, arguments.get("num_new_computed_tokens", 0)):
            self._need(Feature.DRAFTING)
        return self.calls.allocate_slots(request, num_new_tokens, **arguments)

    # Calls of a scheduler.

    def request(self, name: str, tokens: Sequence[int], **content: Any) -> Any:
        return self.make_request(RequestInput(name, list(tokens), **content))

    def make_request(self, made_from: Any) -> Any:
        """Make a request, if the subject supports what identifies its content."""
        for name, feature in FEATURE_OF_CONTENT.items():
            if getattr(made_from, name, None):
                self._need(feature)
        made = self.subject.make_request(self.real, made_from)
        self.inputs[id(made)] = made_from
        return made

    def append(self, request: Request, tokens: Sequence[int]) -> None:
        self.subject.append_tokens(self.real, request, tokens)

    def look_up(self, request: Request) -> PrefixHit:
        """Look up the hit and count the look-up."""
        hit: PrefixHit = self.get_computed_blocks(request)
        self._count(request, hit)
        return hit

    def _count(self, request: Request, hit: PrefixHit) -> None:
        """Count a look-up where that is done at admission (KV-POL-18)."""
        if self.real.config.policy.lookups_counted == "admitted":
            self.record_prefix_cache_stats(request, hit.hit_length_tokens)

    def admit(
        self, request: Request, num_new_tokens: int | None = None, **arguments: Any
    ) -> KVCacheBlocks | None:
        """Look up, allocate (by default all that is left), and count it as computed."""
        hit = self.get_computed_blocks(request)
        rest = request.num_tokens - hit.hit_length_tokens
        new = rest if num_new_tokens is None else num_new_tokens
        granted: KVCacheBlocks | None = self.allocate_slots(
            request,
            new,
            num_new_computed_tokens=hit.hit_length_tokens,
            new_computed_blocks=hit.blocks,
            **arguments,
        )
        if granted is not None:
            self._count(request, hit)
            request.num_computed_tokens = hit.hit_length_tokens + new
        return granted

    def run(self, request: Request, num_new_tokens: int = 1, rejected: int = 0) -> list[list[int]]:
        """Run a step that must be granted, and reject its last tokens; return its blocks."""
        granted = self.allocate_slots(request, num_new_tokens)
        holds(granted is not None, f"{num_new_tokens} more tokens of {request.request_id} fit")
        request.num_computed_tokens += num_new_tokens - rejected
        lists: list[list[int]] = granted.to_lists()
        return lists

    def started(self, name: str, tokens: Sequence[int], **content: Any) -> Any:
        request = self.request(name, tokens, **content)
        granted = self.admit(request)
        holds(granted is not None, f"the {len(tokens)} tokens of {name} fit")
        return request

    def preempt(self, request: Request) -> None:
        """Preempt a request as a scheduler does (KV-MGR-17)."""
        self.free(request)
        request.num_computed_tokens = 0
        request.num_preemptions += 1

    def clone(self) -> Managed:
        self._need(Feature.CLONE)
        return self.copy_of(self.subject.clone(self.real))

    def copy_of(self, real: KVCacheManager) -> Managed:
        audits = self.audit is not None
        found = Managed(self.subject, real, exact=self.exact, audits=audits, guards=self.guards)
        found.inputs = self.inputs
        return found

    # Queries.

    def lists(self, request: Request) -> list[list[int]]:
        return [list(blocks) for blocks in self.real.get_blocks(request).to_lists()]

    def blocks(self, request: Request, group: int = 0) -> list[int]:
        return self.lists(request)[group]

    def queue(self) -> list[int]:
        return list(self.snapshot().free_queue)

    def references(self) -> dict[int, int]:
        return {b: count for b, count in enumerate(self.snapshot().ref_counts) if count}

    def cached(self) -> set[int]:
        return {block for block, keys in enumerate(self.snapshot().block_keys) if keys}

    def counts(self, request: Request) -> tuple[int | None, ...]:
        """Count per group the leading blocks handed to the cache; None: no entry (KV-GRP-1)."""
        state: RequestState | None = self.snapshot().requests.get(request.request_id)
        none = (None,) * len(self.real.config.kv_cache.groups)
        return none if state is None else tuple(state.num_cached_blocks)

    def cached_count(self, request: Request) -> int | None:
        return self.counts(request)[0]

    def has_taken_blocks(self, request: Request, group: int = 0) -> bool:
        """Check that an align-mode Mamba group remembers that the request took blocks."""
        state = self.snapshot().requests[request.request_id].mamba[group]
        return state is not None and bool(state.has_allocated)

    def null_positions(self, request: Request, group: int = 0) -> list[int]:
        return [i for i, block in enumerate(self.blocks(request, group)) if block == 0]

    def cached_positions(self, request: Request, group: int = 0) -> list[int]:
        """Return the positions in the request's list whose block carries a key."""
        cached = self.cached()
        return [i for i, block in enumerate(self.blocks(request, group)) if block in cached]

    def need(
        self,
        request: Request,
        num_tokens: int,
        *,
        computed: int = 0,
        encoder: int = 0,
        capped: bool = False,
    ) -> int:
        """Return the free blocks that the request needs for slots of these tokens (KV-MGR-18)."""
        needed: int = self.get_num_blocks_to_allocate(
            request,
            num_tokens=num_tokens,
            total_computed_tokens=computed,
            num_tokens_main_model=num_tokens,
            num_encoder_tokens=encoder,
            apply_admission_cap=capped,
        )
        return needed

    def visible(self) -> object:
        if Feature.SNAPSHOT in self.subject.capabilities.features:
            return self.real.snapshot()
        return self.real.num_free_blocks

    # Comparison of block lists.

    def same(self, got: Any, expected: Any, what: str = "") -> None:
        """Compare block lists: their ids if `exact`, otherwise only their length and null entries.

        So a check whose worked example names ids also binds at level behaviour.
        """
        what = what or source_of_call(sys._getframe(1))
        told, wanted = plain(got), plain(expected)
        if not self.exact:
            told, wanted = without_ids(told), without_ids(wanted)
        equal(told, wanted, what)

    def everything(self) -> Everything:
        return Everything(
            self.snapshot(),
            self.take_events(),
            self.make_prefix_cache_stats(),
            self.take_residency_samples(),
        )


def _is_draft(request: Request, num_new_tokens: Any, num_hit: Any) -> bool:
    try:
        return bool(request.num_computed_tokens + num_hit + num_new_tokens > request.num_tokens)
    except (AttributeError, TypeError):  # no request, no number: the manager checks that
        return False


def plain(blocks: Any) -> Any:
    if isinstance(blocks, KVCacheBlocks):
        return blocks.to_lists()
    return [plain(each) for each in blocks] if isinstance(blocks, list | tuple) else blocks


def without_ids(blocks: Any) -> Any:
    """Return where the lists have blocks other than null."""
    if isinstance(blocks, list):
        return [without_ids(each) for each in blocks]
    return blocks if blocks is None else blocks != NULL_BLOCK
