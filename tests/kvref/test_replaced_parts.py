"""kvref built from other parts, as the broken twins of the tests are: it has them everywhere."""

from __future__ import annotations

import pytest

from kvcheck.rules.specs import full, sliding
from kvref.block_pool import BlockPool
from kvref.groups.full_attention import FullAttentionGroup
from kvref.groups.sliding_window import SlidingWindowGroup
from kvref.hybrid import HybridCoordinator
from kvref.implementation import ReferenceImplementation
from kvref.manager import ReferenceManager
from kvspec.audit import unwrapped
from tests.contract.builders import make_config


class OtherPool(BlockPool):
    """The pool by another name."""


class OtherGroup(FullAttentionGroup):
    """Full attention by another name."""


class OtherHybrid(HybridCoordinator):
    """The coordinator of several groups by another name."""


CONFIG = make_config(specs=[full(4), sliding(4, 8)])


@pytest.mark.parametrize("is_restored", [False, True])
def test_a_manager_has_the_parts_that_were_put_in_place(is_restored: bool) -> None:
    """Replace only the named groups; a twin that is not used would prove nothing."""
    others = ReferenceImplementation(
        OtherPool, group_classes=[(FullAttentionGroup, OtherGroup)], hybrid_class=OtherHybrid
    )
    manager = others.create(CONFIG)
    if is_restored:
        manager = others.restore(CONFIG, manager.snapshot())
    inner = unwrapped(manager)
    assert isinstance(inner, ReferenceManager)
    assert type(inner.pool) is OtherPool
    assert [type(group) for group in inner.groups] == [OtherGroup, SlidingWindowGroup]
    assert type(inner.coordinator) is OtherHybrid


def test_a_manager_has_the_real_parts_otherwise() -> None:
    inner = unwrapped(ReferenceImplementation().create(CONFIG))
    assert isinstance(inner, ReferenceManager)
    assert type(inner.pool) is BlockPool
    assert [type(group) for group in inner.groups] == [FullAttentionGroup, SlidingWindowGroup]
    assert type(inner.coordinator) is HybridCoordinator
