"""Objects from `__new__` alone, or made twice, are refused before their memory is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kvspec.errors import InvalidArgumentError
from kvspec.interface import Implementation
from kvspec.request import RequestInput
from tests.contract.builders import make_config
from tests.lockstep.test_lockstep import fast

__all__ = ["fast"]  # the fixture


def made(implementation: Implementation) -> tuple[Any, Any, Any]:
    manager = implementation.create(make_config(40), check_invariants=False)
    request = implementation.make_request(manager, RequestInput("r", range(9)))
    return manager, implementation.batched(manager), request  # type: ignore[attr-defined]  # kvfast


def bare_of(thing: Any) -> Any:
    kind: Any = type(thing)
    return kind.__new__(kind)


@pytest.mark.rule("KV-ERR-2")
def test_what_was_not_made_is_refused(fast: Implementation) -> None:
    manager, batch, request = made(fast)
    bare, bare_batch = bare_of(manager), bare_of(batch)
    calls: tuple[Callable[[], object], ...] = (
        lambda: bare.num_free_blocks,
        lambda: bare.usage,
        lambda: bare.none_hash,
        lambda: bare.get_computed_blocks(request),
        lambda: bare.allocate_slots(request, 9),
        lambda: bare.evict_blocks([1]),
        lambda: bare.clone(),
        lambda: bare.snapshot(),
        lambda: bare.columns(),
        lambda: fast.append_tokens(bare, request, [1]),
        lambda: bare_batch.register(request),
        lambda: bare_batch.decode([0]),
        lambda: bare_batch.num_pending_deltas(),
        lambda: type(batch)(bare, fast.capabilities, bare).register(request),
    )
    for call in calls:
        with pytest.raises(InvalidArgumentError):
            call()


@pytest.mark.rule("KV-ERR-2")
def test_nothing_is_made_twice(fast: Implementation) -> None:
    manager, batch, request = made(fast)
    manager.allocate_slots(request, 9)
    before = manager.snapshot()
    calls: tuple[Callable[[], object], ...] = (
        lambda: manager.__init__(manager.plan, None),
        lambda: batch.__init__(manager, fast.capabilities, manager),
        lambda: request.__init__(request.input, manager.hasher, 4),
        lambda: manager.hasher.__init__("sha256", None),
        lambda: manager.__init__(manager.plan, None, manager.columns()),
    )
    for call in calls:
        with pytest.raises(InvalidArgumentError):
            call()
    assert manager.snapshot() == before
