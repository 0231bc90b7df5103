"""A manager that puts its own copy in place of a request's, as a radix tree does."""

from __future__ import annotations

from typing import Any

from examples.own_manager.final import MyManager
from kvcheck.play.steps import Admit, Arrive, Program, Release, Run
from kvcheck.play.verdicts import Level, Violation, first_violation
from kvspec.base import BaseRequest
from kvspec.blocks import KVCacheBlocks
from kvspec.config import KVCacheConfig, KVCacheGroup, ManagerConfig
from kvspec.interface import Feature
from kvspec.policy import Policy
from kvspec.specs import FullAttentionSpec
from tests.judge.minimal import minimal

GROUP = KVCacheGroup(("layer",), FullAttentionSpec(2, 1, 8, "float16"))
CONFIG = ManagerConfig(KVCacheConfig(12, (GROUP,)), 64, policy=Policy(lookups_counted="asked"))
STEPS = (
    Arrive((0, 0, 0)),
    Arrive((0, 0, 0)),
    Arrive((1, 1, 1)),
    Admit(who=2),
    Admit(chunk_tokens=1),  # the first block of r0 is not full, and so nobody's copy
    Admit(),
    Run(),
    Run(),
    Release(),
)


class SharesDuplicates(MyManager):
    """A full block gives way to the block that was found for its prefix."""

    def allocate_slots(
        self, request: BaseRequest, num_new_tokens: int, **options: Any
    ) -> KVCacheBlocks | None:
        before = dict(self.cached)
        result = super().allocate_slots(request, num_new_tokens, **options)
        table = self.tables.get(request.request_id, [])
        for index, block in enumerate(table):
            key = self.content(request, index)
            if self.cached.get(key) == block and len(key) == (index + 1) * self.block_size:
                self.replace(table, index, self.stand_in(key, before.get(key, block)))
        return result

    def stand_in(self, key: tuple[int, ...], known: int) -> int:
        self.cached[key] = known
        return known

    def replace(self, table: list[int], index: int, other: int) -> None:
        old = table[index]
        if old == other or not self.num_users[other]:
            return
        table[index] = other
        self.num_users[other] += 1
        self.num_users[old] -= 1
        if not self.num_users[old]:
            self.free_blocks.append(old)


class SharesAnything(SharesDuplicates):
    """The block that gives way is replaced by one with other content."""

    def stand_in(self, key: tuple[int, ...], known: int) -> int:
        other = [block for found, block in self.cached.items() if found != key]
        return other[0] if other and key[:1] == (0,) else super().stand_in(key, known)


def verdict(manager_class: type[MyManager], *features: Feature) -> Violation | None:
    subject = minimal(manager_class, frozenset(features))
    return first_violation(Program(CONFIG, STEPS), subject, Level.SAFETY)


def test_a_block_with_the_same_content_may_take_the_place_of_another() -> None:
    assert verdict(MyManager) is None
    assert verdict(SharesDuplicates) is None


def test_who_promises_stable_lists_is_judged_by_them() -> None:
    found = verdict(SharesDuplicates, Feature.STABLE_LISTS)
    assert found is not None
    assert (found.rule, found.name) == ("KV-GRP-1", "a_list_only_grows_or_turns_null")


def test_a_block_with_other_content_is_found_all_the_same() -> None:
    found = verdict(SharesAnything)
    assert found is not None
    assert found.rule in ("KV-HASH-1", "KV-POOL-17")
