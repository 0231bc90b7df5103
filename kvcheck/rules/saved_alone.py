"""Continue from a snapshot or a file in the midst of whole steps (KV-MGR-20).

A saved state has the block lists under the ids of their requests, and none of what whole steps
keep of registered ones. So a manager that is restored gets new requests under the same ids,
registered under the same handles, and reports all of their blocks again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast

from kvcheck.play.keeping import Kept
from kvcheck.rules.batch_sides import Side
from kvcheck.rules.single_calls import Engine
from kvspec.audit import unwrapped
from kvspec.following import FollowingImplementation
from kvspec.interface import Feature, KVCacheManager
from kvspec.request import Request, RequestInput
from kvspec.saved import load, save
from kvspec.sequential import SequentialManager, batched_of

OWNED = ("num_computed_tokens", "num_preemptions", "status", "num_in_flight_tokens")
"""Members of a request that its scheduler sets."""


def can_be_saved(engine: Engine) -> bool:
    """Check that both sides support it; lives of blocks (KV-STAT-6) would begin anew."""
    needed = {Feature.SNAPSHOT, Feature.RESTORE}
    return needed <= engine.features and not engine.config.residency_sample_rate


def load_again(
    side: Side,
    inputs: Mapping[int, RequestInput],
    kept: Mapping[int, Kept],
    *,
    from_file: bool = False,
) -> None:
    """Replace the side's manager by one that is loaded from its state.

    `inputs`: of all registered requests, by their handles, which they keep.
    """
    old = {handle: side.batched.request_of(handle) for handle in inputs}
    is_loop = isinstance(side.batched, SequentialManager)
    config = side.manager.config
    side.manager = unwrapped(_from_file(side) if from_file else _from_snapshot(side))
    side.batched = (SequentialManager if is_loop else batched_of)(side.implementation, side.manager)
    gaps = []
    for handle in range(max(old, default=-1) + 1):
        if handle in old:
            made = _made_again(side, old[handle], inputs[handle], kept.get(handle))
            side.batched.register(made)
        else:
            given = RequestInput(f"gap {handle}", [1])
            first = Kept(config, given) if config.given_hash_bytes else None
            gaps.append(side.batched.register(side.made(given, first)))
    side.batched.unregister(gaps)


def _from_snapshot(side: Side) -> KVCacheManager:
    return side.implementation.restore(side.manager.config, side.manager.snapshot())


def _from_file(side: Side) -> KVCacheManager:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "state"
        save(side.manager, path)
        return load(side.implementation, path, config=side.manager.config, check_invariants=False)


def _made_again(side: Side, old: Request, given: RequestInput, kept: Kept | None) -> Request:
    if kept is None:
        new = side.implementation.make_request(side.manager, given)
        more = list(old.token_ids)[new.num_tokens :]
        side.implementation.append_tokens(side.manager, new, more)
    else:
        known = replace(
            kept.first,
            num_tokens=old.num_tokens,
            num_prompt_tokens=old.num_prompt_tokens,
            hashes=tuple(old.block_hashes),
        )
        following = cast(FollowingImplementation, side.implementation)
        new = following.make_followed(side.manager, known)
    for name in OWNED:
        if hasattr(old, name):
            setattr(new, name, getattr(old, name))
    return new
