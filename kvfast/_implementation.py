"""kvfast as an `Implementation`: managers, requests, copies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from importlib.metadata import version
from types import ModuleType
from typing import TYPE_CHECKING, cast

from kvfast import _build
from kvfast.configuration import KIND_OF_TYPE, plan_of
from kvfast.fleet.index import FastIndex
from kvfast.hit_rate import HitRateWindow
from kvfast.offload import FastOffload
from kvfast.tier import FastTier
from kvspec.audit import AuditedManager, audited, audited_batch, unwrapped
from kvspec.batched import BatchedManager
from kvspec.checks.restorable import check_rest, check_restorable
from kvspec.columns import Columns, columns_of
from kvspec.config import HASH_FUNCTIONS, ManagerConfig
from kvspec.editions import NEWEST
from kvspec.errors import InvalidArgumentError
from kvspec.fleet import MOST_WAITING, PrefixIndex
from kvspec.following import FollowedInput
from kvspec.interface import Capabilities, Feature, KVCacheManager
from kvspec.offload import ALL_PARTS, OffloadCapabilities, OffloadConfig, OffloadManager
from kvspec.planning import Planner
from kvspec.request import Request, RequestInput
from kvspec.sequential import SequentialManager
from kvspec.snapshot import Snapshot
from kvspec.tier import Tier

if TYPE_CHECKING:
    from kvfast._core.manager import FastManager

FEATURES = frozenset(Feature) - {Feature.PLANNING}


class FastImplementation:
    """See `kvspec.interface.Implementation` for what each call promises.

    `build`: "compiled", "uncompiled", or None for the compiled one where there is one.
    """

    def __init__(self, build: str | None = None) -> None:
        if build not in (None, "compiled", "uncompiled"):
            raise InvalidArgumentError("build", build, "compiled, uncompiled or None")
        load: Callable[[str], ModuleType] = _build.load
        if build is not None:
            load = _build.loader_of(build)
        self._managers = load("manager")
        self._requests = load("request")
        self._following = load("following")
        self._many = load("many")
        self._batches = load("batch")

    @cached_property
    def capabilities(self) -> Capabilities:
        """All features except planning."""
        return Capabilities(
            name="kvfast",
            version=version("kvspec"),
            spec_types=frozenset(KIND_OF_TYPE),
            hash_functions=frozenset(HASH_FUNCTIONS),
            features=FEATURES,
            edition=NEWEST,
        )

    def create(
        self,
        config: ManagerConfig,
        *,
        check_invariants: bool = True,
        clock: Callable[[], int] | None = None,
    ) -> KVCacheManager:
        """Make a manager with a fresh pool, by default audited after every call, O(pool)."""
        manager = self._managers.FastManager(plan_of(config), clock)
        return audited(manager) if check_invariants else manager

    def make_request(self, manager: KVCacheManager, request: RequestInput) -> Request:
        """Make a request with the hashes of its prompt's full blocks (KV-REQ-1)."""
        inner = self._own(manager)
        made: Request = self._requests.make_request(request, inner.hasher, _hash_size(inner))
        return made

    def make_requests(
        self,
        manager: KVCacheManager,
        inputs: Iterable[RequestInput],
        *,
        num_threads: int | None = None,
    ) -> list[Request]:
        """Make the requests, in order, by threads that hash at the same time.

        Compiled, long prompts are hashed without the GIL. Any thread may make requests, also while
        another one uses the manager. None: as many threads as there are processors. The first
        illegal input in order raises, InvalidArgumentError as in `make_request`; so does a number
        of threads below 1 (`num_threads`).
        """
        inner = self._own(manager)
        made: list[Request] = self._many.hash_many(
            inputs, inner.hasher, _hash_size(inner), num_threads=num_threads
        )
        return made

    def make_followed(self, manager: KVCacheManager, given: FollowedInput) -> Request:
        """Make a request whose tokens and hashes the engine keeps (KV-REQ-6)."""
        inner = self._own(manager)
        made: Request = self._following.make_followed(given, inner.hasher, _hash_size(inner))
        return made

    def follow(
        self,
        manager: KVCacheManager,
        request: Request,
        num_tokens: int,
        hashes: Sequence[bytes] = (),
        *,
        num_prompt_tokens: int | None = None,
    ) -> None:
        """Set the counts and add the hashes of newly full blocks (KV-REQ-7, KV-REQ-8)."""
        self._own(manager).follow(request, num_tokens, hashes, num_prompt_tokens)

    def append_tokens(
        self, manager: KVCacheManager, request: Request, token_ids: Sequence[int]
    ) -> None:
        """Append tokens and hash the blocks they complete (KV-REQ-2)."""
        self._own(manager).append_tokens(request, token_ids)

    def make_hit_rate_window(self, max_requests: int = 1000) -> HitRateWindow:
        """Make an empty window (KV-STAT-4)."""
        return HitRateWindow(max_requests)

    @property
    def planner(self) -> Planner | None:
        """Planning is not on the way of any token: kvref's serves."""
        return None

    def clone(self, manager: KVCacheManager) -> KVCacheManager:
        """Make an independent copy, including queued events and statistics (KV-MGR-20)."""
        copy: KVCacheManager = self._own(manager).clone()
        return audited(copy) if isinstance(manager, AuditedManager) else copy

    def restore(self, config: ManagerConfig, snapshot: Snapshot) -> KVCacheManager:
        """Make a manager in the state of `snapshot`, audited (KV-MGR-20)."""
        plan = plan_of(config)
        check_restorable(plan.config, snapshot)
        return audited(self.restore_columns(plan.config, columns_of(snapshot)))

    def restore_columns(self, config: ManagerConfig, columns: Columns) -> KVCacheManager:
        """Make a manager in the state of columns, not audited (KV-MGR-20)."""
        plan = plan_of(config)
        check_rest(plan.config, columns.rest)
        manager: KVCacheManager = self._managers.FastManager(plan, None, columns)
        return manager

    def batched(self, manager: KVCacheManager) -> BatchedManager:
        """Return whole steps over arrays (KV-BATCH-1).

        An audited manager's state is checked after each. Any other wrapper of a manager, such as a
        monitor, sees single calls: those that define a step.
        """
        inner = self._own(manager)
        is_audited = isinstance(manager, AuditedManager) and manager.inner is inner
        if manager is not inner and not is_audited:
            return SequentialManager(self, manager)
        batch: BatchedManager = self._batches.FastBatch(inner, self.capabilities, manager)
        return audited_batch(batch, cast(AuditedManager, manager)) if is_audited else batch

    def make_tier(self, manager: KVCacheManager, num_blocks: int) -> Tier:
        """Make an empty host tier for this manager (KV-TIER-8)."""
        inner = self._own(manager)
        return FastTier(inner.config, num_blocks, inner.turn)

    @property
    def offload_capabilities(self) -> OffloadCapabilities:
        return ALL_PARTS

    def make_offload(self, config: OffloadConfig) -> OffloadManager:
        """Make an empty first tier (KV-TIER-24)."""
        return FastOffload(config)

    def make_prefix_index(
        self, *, removed_event_per: str = "copy", max_waiting: int = MOST_WAITING
    ) -> PrefixIndex:
        """Make an empty index of the engines of a fleet (KV-FLEET-9)."""
        return FastIndex(removed_event_per=removed_event_per, max_waiting=max_waiting)

    def _own(self, manager: KVCacheManager) -> FastManager:
        """Return the manager inside, if this implementation made it."""
        inner = unwrapped(manager)
        if not isinstance(inner, self._managers.FastManager):
            raise InvalidArgumentError("manager", manager, "made by this implementation's create")
        found: FastManager = inner
        return found


def _hash_size(manager: FastManager) -> int:
    """Return the tokens of a hash block; 0 if nothing is hashed."""
    return manager.config.hash_block_size_tokens or 0 if manager.config.enable_caching else 0
