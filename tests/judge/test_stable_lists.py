"""A manager that puts its own copy in place of a request's, as a radix tree does."""

from __future__ import annotations

from dataclasses import replace

from kvcheck.play.steps import Admit, Arrive, Program, Release, Run
from kvcheck.play.verdicts import Level, Violation, first_violation
from kvspec.config import KVCacheConfig, KVCacheGroup, ManagerConfig
from kvspec.interface import Feature
from kvspec.specs import FullAttentionSpec
from tests.judge.minimal import MinimalImplementation, MinimalManager, MinimalRequest, minimal

GROUP = KVCacheGroup(("layer",), FullAttentionSpec(2, 1, 8, "float16"))
CONFIG = ManagerConfig(KVCacheConfig(12, (GROUP,)), 64)
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


class SharesDuplicates(MinimalManager):
    """A full block gives way to the block that is found for its prefix."""

    def register(self, request: MinimalRequest, num_tokens: int) -> None:
        super().register(request, num_tokens)
        blocks = self.lists[request.request_id]
        for index, prefix in enumerate(self.prefixes(request)):
            if len(prefix) <= num_tokens and index < len(blocks):
                self.replace(blocks, index, self.stand_in(prefix))

    def stand_in(self, prefix: tuple[int, ...]) -> int:
        return self.block_of[prefix]

    def replace(self, blocks: list[int], index: int, other: int) -> None:
        old = blocks[index]
        if old == other or not self.references.get(other):
            return
        blocks[index] = other
        self.references[other] += 1
        self.references[old] -= 1
        if not self.references[old]:
            self.free_ids.insert(0, old)


class SharesAnything(SharesDuplicates):
    """The block that gives way is replaced by one with other content."""

    def stand_in(self, prefix: tuple[int, ...]) -> int:
        other = [block for found, block in self.block_of.items() if found != prefix]
        return other[0] if other and prefix[:1] == (0,) else self.block_of[prefix]


def verdict(manager_class: type[MinimalManager], *features: Feature) -> Violation | None:
    """What level safety says of the program."""
    subject = minimal(manager_class)
    assert isinstance(subject, MinimalImplementation)
    can = subject.capabilities
    subject.capabilities = replace(can, features=can.features | set(features))
    return first_violation(Program(CONFIG, STEPS), subject, Level.SAFETY)


def test_a_block_with_the_same_content_may_take_the_place_of_another() -> None:
    """Who promises no stable lists has nothing to answer for."""
    assert verdict(MinimalManager) is None
    assert verdict(SharesDuplicates) is None


def test_who_promises_stable_lists_is_judged_by_them() -> None:
    found = verdict(SharesDuplicates, Feature.STABLE_LISTS)
    assert found is not None
    assert (found.rule, found.name) == ("KV-GRP-1", "a_list_only_grows_or_turns_null")


def test_a_block_with_other_content_is_found_all_the_same() -> None:
    found = verdict(SharesAnything)
    assert found is not None
    assert found.rule in ("KV-HASH-1", "KV-POOL-17")
