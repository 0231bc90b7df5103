"""The reference as an `Implementation`: managers, requests, copies."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import cached_property
from importlib.metadata import version

from kvref.block_pool import BlockPool
from kvref.configuration import spec_types
from kvref.fleet import ReferenceIndex
from kvref.following import followed, make_followed
from kvref.manager import ReferenceManager
from kvref.offload import ReferenceOffload
from kvref.planning.planner import ReferencePlanner
from kvref.request import make_request
from kvref.state import restore_snapshot
from kvref.stats import ReferenceHitRateWindow
from kvref.tier import ReferenceTier
from kvref.tree import ReferenceTree
from kvspec.audit import audited, unwrapped
from kvspec.batched import BatchedManager
from kvspec.checks.restorable import check_restorable
from kvspec.config import HASH_FUNCTIONS, ManagerConfig
from kvspec.editions import NEWEST
from kvspec.errors import InvalidArgumentError
from kvspec.fleet import MOST_WAITING, PrefixIndex
from kvspec.following import FollowedInput
from kvspec.interface import Capabilities, Feature, HitRateWindow, KVCacheManager
from kvspec.offload import ALL_PARTS, OffloadCapabilities, OffloadConfig, OffloadManager
from kvspec.planning import Planner
from kvspec.request import Request, RequestInput
from kvspec.sequential import SequentialManager
from kvspec.snapshot import Snapshot
from kvspec.tier import Tier
from kvspec.tree import PrefixTree, TreeCapabilities, TreeConfig
from kvspec.turn import Turn

FEATURES = frozenset(Feature)
"""All features: one that the reference lacked would be a gap in the contract."""


class ReferenceImplementation:
    """The reference, with the calls that `kvspec.interface.Implementation` describes.

    `pool_class` is for tests, which substitute a broken one and expect the checks to find it.
    """

    def __init__(self, pool_class: type[BlockPool] = BlockPool) -> None:
        self.pool_class = pool_class

    @cached_property
    def capabilities(self) -> Capabilities:
        """Capabilities: every block type and every call."""
        return Capabilities(
            name="kvref",
            version=version("kvspec"),
            spec_types=spec_types(),
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
        """Make a manager with a fresh pool, by default audited."""
        manager = ReferenceManager(config, clock, self.pool_class)
        return audited(manager) if check_invariants else manager

    def make_request(self, manager: KVCacheManager, request: RequestInput) -> Request:
        """Make a request with the hashes of its prompt (KV-HASH-4)."""
        inner = _reference(manager)
        if inner.config.given_hash_bytes:
            raise InvalidArgumentError("manager", inner.config.hash_function, "one that hashes")
        return make_request(request, inner.hasher, _hash_block_size(inner))

    def make_followed(self, manager: KVCacheManager, given: FollowedInput) -> Request:
        """Make a request whose tokens the engine keeps (KV-REQ-6)."""
        inner = _reference(manager)
        if not inner.config.given_hash_bytes:
            raise InvalidArgumentError(
                "manager", inner.config.hash_function, "one that is given hashes"
            )
        return make_followed(given, inner.hasher, _hash_block_size(inner))

    def follow(
        self,
        manager: KVCacheManager,
        request: Request,
        num_tokens: int,
        hashes: Sequence[bytes] = (),
        *,
        num_prompt_tokens: int | None = None,
    ) -> None:
        """Set new counts, and the hashes of newly full blocks (KV-REQ-7, KV-REQ-8)."""
        inner = _reference(manager)
        inner.turn.run(
            lambda: followed(inner.own(request)).follow(num_tokens, hashes, num_prompt_tokens)
        )

    def append_tokens(
        self, manager: KVCacheManager, request: Request, token_ids: Sequence[int]
    ) -> None:
        """Append tokens and hash the blocks they complete (KV-REQ-2)."""
        inner = _reference(manager)
        inner.turn.run(lambda: inner.own(request).extend(token_ids))

    def make_hit_rate_window(self, max_requests: int = 1000) -> HitRateWindow:
        """Make an empty window (KV-STAT-4)."""
        return ReferenceHitRateWindow(max_requests)

    @property
    def planner(self) -> Planner | None:
        """The planning functions; they keep no state."""
        return ReferencePlanner()

    def clone(self, manager: KVCacheManager) -> KVCacheManager:
        """Make an independent copy, including queued events and statistics (KV-MGR-20).

        Both share the hasher, so that both accept requests made for either.
        """
        inner = _reference(manager)
        memo: dict[int, object] = {id(inner.hasher): inner.hasher}
        if inner.residency is not None:
            memo[id(inner.residency.clock)] = inner.residency.clock
        memo[id(inner.turn)] = Turn()
        return inner.turn.run(copy.deepcopy, manager, memo)

    def restore(self, config: ManagerConfig, snapshot: Snapshot) -> KVCacheManager:
        """Make a manager in the state of `snapshot`, audited (KV-MGR-20)."""
        manager = ReferenceManager(config, pool_class=self.pool_class)
        check_restorable(manager.config, snapshot)
        manager.hasher.none_hash = snapshot.none_hash
        restore_snapshot(snapshot, manager.pool, manager.groups, manager.popped)
        return audited(manager)

    def batched(self, manager: KVCacheManager) -> BatchedManager:
        """Return whole steps by the loop that defines them (KV-BATCH-1)."""
        _reference(manager)
        return SequentialManager(self, manager)

    def make_tier(self, manager: KVCacheManager, num_blocks: int) -> Tier:
        """Make an empty host tier for this manager (KV-TIER-8)."""
        inner = _reference(manager)
        return ReferenceTier(inner.config, num_blocks, inner.turn)

    @property
    def offload_capabilities(self) -> OffloadCapabilities:
        return ALL_PARTS

    def make_offload(self, config: OffloadConfig) -> OffloadManager:
        """Make an empty first tier (KV-TIER-24)."""
        return ReferenceOffload(config)

    @property
    def tree_capabilities(self) -> TreeCapabilities:
        """All parts, all orders, sessions, and mirrors."""
        return TreeCapabilities(has_sessions=True, has_host=True)

    def make_tree(self, config: TreeConfig) -> PrefixTree:
        """Make an empty tree of prefixes (KV-TREE-33)."""
        return ReferenceTree(config)

    def make_prefix_index(
        self, *, removed_event_per: str = "copy", max_waiting: int = MOST_WAITING
    ) -> PrefixIndex:
        """Make an empty index of the engines of a fleet (KV-FLEET-9)."""
        return ReferenceIndex(removed_event_per=removed_event_per, max_waiting=max_waiting)


def _hash_block_size(manager: ReferenceManager) -> int:
    """Return the tokens of a hash; 0 with caching off."""
    config = manager.config
    return config.hash_block_size_tokens or 0 if config.enable_caching else 0


def _reference(manager: KVCacheManager) -> ReferenceManager:
    """Return the reference manager inside `manager`."""
    inner = unwrapped(manager)
    if not isinstance(inner, ReferenceManager):
        raise InvalidArgumentError("manager", manager, "made by this implementation's create")
    return inner
