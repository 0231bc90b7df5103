"""The bench of an example: small managers and requests, and how an answer is judged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kvcheck.play.difference import WrongAnswer
from kvspec.blocks import KVCacheBlocks
from kvspec.config import KVCacheConfig, KVCacheGroup, ManagerConfig
from kvspec.errors import InvariantViolation, KVSpecError, UnsupportedError
from kvspec.interface import Feature, Implementation, KVCacheManager
from kvspec.planning import Planner
from kvspec.policy import Policy
from kvspec.request import Request, RequestInput
from kvspec.requirements import lacking
from kvspec.specs import FullAttentionSpec, LayerSpec


class LeftOut(Exception):  # noqa: N818 (nobody erred)
    """The example needs what the subject says it lacks."""


def full(block_size: int = 4, **members: Any) -> FullAttentionSpec:
    """A small full-attention layer."""
    return FullAttentionSpec(block_size, 1, 8, "float16", **members)


@dataclass(frozen=True)
class Bench:
    """An implementation under its declared choices. `rule`: what a wrong answer breaks.

    `oracle`: what random examples compare with, if anything.
    """

    subject: Implementation
    policy: Policy
    rule: str
    oracle: Implementation | None = None

    def about(self, rule: str) -> Bench:
        """The same bench, where a wrong answer breaks another rule."""
        return replace(self, rule=rule)

    # What there is to try.

    def need(self, *features: Feature) -> None:
        """Leave the example out unless the subject has these."""
        lacks = [
            feature for feature in features if feature not in self.subject.capabilities.features
        ]
        if lacks:
            raise LeftOut(", ".join(lacks))

    @property
    def planner(self) -> Planner:
        """The subject's planning functions."""
        self.need(Feature.PLANNING)
        planner = self.subject.planner
        if planner is None:
            raise self.wrong("the planner", "one, since the capabilities name it", None)
        return planner

    def config(self, num_blocks: int, *specs: LayerSpec, **options: Any) -> ManagerConfig:
        """A configuration; without specs for one full-attention group of block size 4.

        `eagle_groups`: the numbers of the groups that are flagged.
        """
        flagged = options.pop("eagle_groups", ())
        groups = tuple(
            KVCacheGroup((f"layer.{number}",), spec, is_eagle_group=number in flagged)
            for number, spec in enumerate(specs or (full(),))
        )
        usual = {"max_model_len_tokens": 1000, "hash_seed": "0", "policy": self.policy}
        usual["trusted_tenants"] = True  # for examples with another hash function
        return ManagerConfig(KVCacheConfig(num_blocks, groups), **{**usual, **options})

    def create(
        self, config: ManagerConfig, clock: Callable[[], int] | None = None
    ) -> KVCacheManager:
        """A manager; the example is left out if the subject says that it cannot serve this."""
        lacks = lacking(config, self.subject.capabilities, hashes_matter=True)
        if config.registry.custom:
            self.need(Feature.CUSTOM_SPECS)
        if lacks:
            raise LeftOut(", ".join(lacks))
        if clock is None:
            return self.subject.create(config)
        try:
            return self.subject.create(config, clock=clock)
        except UnsupportedError as error:  # a clock cannot travel to another process
            raise LeftOut(str(error)) from None

    def has(self, feature: Feature) -> bool:
        """Whether the subject has this."""
        return feature in self.subject.capabilities.features

    def visible(self, manager: KVCacheManager) -> object:
        """What a caller sees without changing it."""
        return manager.snapshot() if self.has(Feature.SNAPSHOT) else manager.num_free_blocks

    def manager(
        self,
        num_blocks: int,
        *specs: LayerSpec,
        clock: Callable[[], int] | None = None,
        **options: Any,
    ) -> KVCacheManager:
        """A manager for `config` of the same arguments."""
        return self.create(self.config(num_blocks, *specs, **options), clock)

    def request(
        self, manager: KVCacheManager, name: str, tokens: Sequence[int], **content: Any
    ) -> Request:
        """A request with these prompt tokens."""
        return self.subject.make_request(manager, RequestInput(name, list(tokens), **content))

    def admit(
        self, manager: KVCacheManager, request: Request, new: int | None = None, **arguments: Any
    ) -> KVCacheBlocks | None:
        """Look up, allocate (all that is left unless told otherwise), count it as computed."""
        hit = manager.get_computed_blocks(request)
        rest = request.num_tokens - hit.hit_length_tokens if new is None else new
        granted = manager.allocate_slots(
            request,
            rest,
            num_new_computed_tokens=hit.hit_length_tokens,
            new_computed_blocks=hit.blocks,
            **arguments,
        )
        if granted is not None:
            request.num_computed_tokens = hit.hit_length_tokens + rest
        return granted

    def run(self, manager: KVCacheManager, request: Request, new: int = 1) -> list[list[int]]:
        """One more step of a request under way, which must not be refused; its new blocks."""
        granted = manager.allocate_slots(request, new)
        if granted is None:
            raise self.wrong(f"{new} more tokens of {request.request_id}", "granted", None)
        request.num_computed_tokens += new
        return granted.to_lists()

    def started(
        self, manager: KVCacheManager, name: str, tokens: Sequence[int], **content: Any
    ) -> Request:
        """A request that is admitted with all its tokens."""
        request = self.request(manager, name, tokens, **content)
        if self.admit(manager, request) is None:
            raise self.wrong(f"{len(tokens)} tokens of {name}", "granted", None)
        return request

    # How it is judged.

    def wrong(self, what: str, expected: object, got: object) -> InvariantViolation:
        """The violation that an answer is."""
        return WrongAnswer("answers_as_the_rule_says", self.rule, what, expected, got)

    def equal(self, what: str, expected: object, got: object) -> None:
        """The answer is what the rule says."""
        if expected != got:
            raise self.wrong(what, expected, got)

    def holds(self, what: str, fact: bool) -> None:
        """The rule says that this is so."""
        if not fact:
            raise InvariantViolation("the_rule_holds", self.rule, f"not so: {what}")

    def raises(
        self,
        what: str,
        error: type[KVSpecError],
        call: Callable[..., object],
        *arguments: Any,
        field: str | None = None,
        **named: Any,
    ) -> KVSpecError:
        """The call ends with this error, naming this field; the error."""
        expected = error.__name__ + (f" of {field}" if field else "")
        try:
            answer = call(*arguments, **named)
        except error as caught:
            if field is not None and getattr(caught, "field", None) != field:
                raise self.wrong(what, expected, caught) from caught
            return caught
        except LeftOut:
            raise
        except Exception as other:  # of another type: the wrong answer
            raise self.wrong(what, expected, other) from other
        raise self.wrong(what, expected, answer)
