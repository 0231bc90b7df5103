"""Every argument of every call, with each bad value of its type: refused, named, nothing changes.

Calls, arguments and their types are those of `kvspec.interface` and `kvspec.batched`. Counts beyond
all there can be, most of them legal, end as they do in kvref (KV-ERR-6).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import partial
from inspect import Parameter
from itertools import product
from typing import Any

import pytest

from kvcheck.discovery import find_implementation
from kvcheck.rules.specs import chunked, cross, encoder_only, full, mamba, sliding
from kvcheck.rules.steps import rows_of
from kvspec.batched import BatchedManager, StepOutput, StepPlan, StepResult
from kvspec.blocks import KVCacheBlocks
from kvspec.errors import InvalidArgumentError, InvariantViolation, KVSpecError
from kvspec.interface import Implementation, KVCacheManager
from kvspec.sequential import batched_of
from kvspec.specs import (
    CrossAttentionSpec,
    EncoderOnlyAttentionSpec,
    LayerSpec,
    SinkFullAttentionSpec,
)
from kvspec.tier import Tier
from tests.contract import hostile as no
from tests.contract.builders import admit, everything, make_config, new_request

CONFIGS: dict[str, dict[str, Any]] = {
    "full": {},
    "without_caching": {"enable_caching": False},
    "full_and_sliding": {"specs": [full(4), sliding(8, 6)]},
    "chunked": {"specs": [chunked(4, 8)]},
    "three": {"specs": [full(4), sliding(8, 6), mamba(4)]},
    "aligned_mamba": {"specs": [full(4), mamba(4, "align", drafts=1)]},
    "cross": {"specs": [full(4), cross(4)], "enable_caching": False},
}
MOODS = ("shrinks", "grows", "more", "fewer")
NO_HANDLE: tuple[int, ...] = (-1, -(2**63), 2**63 - 1, 2**31, 99)
NO_TOKENS: tuple[Any, ...] = (
    *(None, 7, "1", range(2**70), range(-(2**70), 0)),
    *([1, one] for one in (*no.NO_INT, -1)),
)


class World:
    """Two requests hold blocks, two wait, all registered; `gone` is a handle that was released."""

    def __init__(
        self,
        made: Implementation,
        num_blocks: int = 20,
        *,
        clock: Callable[[], int] = lambda: 0,
        **options: Any,
    ) -> None:
        options = {"enable_events": True, "log_stats": True, "residency_sample_rate": 1.0} | options
        config = make_config(num_blocks, **options)
        self.made, self.num_groups = made, len(config.kv_cache.groups)
        self.manager = made.create(config, check_invariants=False, clock=clock)
        self.batched = batched_of(made, self.manager)
        texts = (range(9), range(20, 25), range(9), range(8), [1])
        named = zip("abcde", texts, strict=True)
        self.requests = [new_request(made, self.manager, name, text) for name, text in named]
        *handles, self.gone = (self.batched.register(each) for each in self.requests)
        self.running, self.waiting = handles[:2], handles[2:]
        for request in self.requests[:2]:
            admit(self.manager, request)
            made.append_tokens(self.manager, request, [7])
        self.batched.unregister([self.gone])
        self.tier: Any = None
        with suppress(KVSpecError):  # not of every configuration
            self.tier = made.make_tier(self.manager, 6)  # type: ignore[attr-defined] # both have it
            blocks = self.manager.get_blocks(self.requests[0]).to_lists()
            for group, ids in enumerate(blocks):
                self.tier.computed(self.requests[0], group, 0, ids[:2])
                self.tier.taken(ids[:2])
            self.tier.hold(self.requests[0], 0, 8)

    def members(self) -> object:
        return [
            (r.num_computed_tokens, r.num_preemptions, r.status, list(r.token_ids))
            for r in self.requests
        ]

    def state(self) -> object:
        tier = None if self.tier is None else self.tier.snapshot()
        return self.manager.snapshot(), self.batched.num_pending_deltas(), tier, self.members()


@dataclass(frozen=True)
class Argument:
    """An argument of a call, or a member of a plan, an output or a request."""

    owner: str
    call: str
    name: str
    annotation: str
    needed: tuple[str, ...]

    @property
    def field(self) -> str:
        """The name in errors: calls that are made as steps name the plan's fields (KV-BATCH-2)."""
        renamed = {
            "admit.handles": "new", "free.handles": "finished", "preempt.handles": "preempted",
            "decode.handles": "decoding", "decode.num_new_tokens": "decode_tokens",
        }  # fmt: skip
        return renamed.get(f"{self.call}.{self.name}", self.name)

    def make(self, world: World, value: Any, turn: int = 0) -> Any:
        """Make the call with this value; `turn`: of which request, where one is asked for."""
        if self.owner == "plan":
            members: dict[str, Any] = {**self._beside(world), self.name: value}
            return world.batched.step(StepPlan(**members))
        if self.owner == "output":
            plan = StepPlan(decoding=world.running)
            return world.batched.step(plan, StepOutput(**{self.name: value}))
        if self.owner == "request":
            return self._with_member(world, value, turn)
        given = {name: self._legal(world, name, turn) for name in self.needed}
        if self.name == "new_computed_blocks":
            given["num_new_computed_tokens"] = 4
        if self.owner == "tokens":
            world.made.append_tokens(world.manager, world.requests[turn], value)
            return None
        return getattr(getattr(world, self.owner), self.call)(**{**given, self.name: value})

    def _beside(self, world: World) -> dict[str, Any]:
        if self.name in ("prefill_tokens", "max_new_tokens"):
            is_new = self.name == "max_new_tokens"
            return {"new": world.waiting} if is_new else {"prefilling": world.running}
        both = {"decoding": world.running, "new": world.waiting}
        return {} if self.annotation == "Ints" else both

    def _with_member(self, world: World, value: Any, turn: int) -> object:
        """Set a member that is the scheduler's, which may refuse it, and use the request."""
        request = world.requests[turn]
        before = getattr(request, self.name)
        setattr(request, self.name, value)
        try:
            with pytest.raises(KVSpecError):
                world.manager.allocate_slots(request, 1)
            return world.batched.step(
                StepPlan(new=[turn]) if turn in world.waiting else StepPlan(decoding=[turn])
            )
        finally:
            setattr(request, self.name, before)

    def _legal(self, world: World, name: str, turn: int) -> Any:
        handles = world.waiting if self.call in ("admit", "unregister") else world.running
        return {
            "request": world.requests[turn], "group": 0, "handles": handles, "token_ids": [1, 2],
            "num_tokens": [1, 1] if self.owner == "batched" else 4, "plan": StepPlan(),
            "total_computed_tokens": 0, "num_local_tokens": 0, "num_external_tokens": 4, "first": 0,
            "blocks": [1],
        }.get(name, 1)  # fmt: skip

    def bad(self, world: World) -> Iterator[tuple[Any, str]]:
        """Yield values that the type or the call excludes, and the entry that the error names."""
        match self.annotation:
            case "Ints" | "Ints | int":
                yield from self._bad_ints(world)
            case "int" | "int | None":
                beyond = {"group": (9,), "block_id": (20,), "handle": (*NO_HANDLE, world.gone, [])}
                yield from whole(set_apart(no.NO_COUNT, self.annotation))
                yield from whole(beyond.get(self.name, ()))
            case "StepPlan":
                yield from whole((None, {}, "plan", StepPlan, StepOutput()))
            case "StepOutput | None":
                yield from whole((7, {}, StepPlan(), rows_of(1)))
            case "Array" | "Array | None":
                yield from whole(set_apart((*no.NO_ROWS, None), self.annotation))
            case "Sequence[Array | None] | None":
                rest: list[Any] = [None] * (world.num_groups - 1)
                yield from (([slots, *rest], "[0]") for slots in no.NO_SLOTS)
                wrong = ((), [None, None, *rest], 7, "", {}, iter([None, *rest]), *no.UNREADABLE)
                yield from whole(wrong)
            case "tokens":
                yield from whole(NO_TOKENS)
            case "status":
                yield from whole((None, 1, "waiting", "", []))
            case "Request":
                bare = type(world.requests[0])
                yield from whole((*no.BAD["Request"], bare.__new__(bare)))
                yield from whole(world.requests[:3] if self.call == "register" else ())
            case "KVCacheBlocks":
                yield from whole((None, 7, "", [], *map(no.hits_of, (None, 7, *no.UNREADABLE))))
                yield from whole(no.hits_of((ids,)) for ids in no.NO_IDS)
            case annotation:
                yield from whole(no.BAD[annotation])

    def _bad_ints(self, world: World) -> Iterator[tuple[Any, str]]:
        """Yield bad numbers, of which the second is named, and what is no array of two numbers."""
        yield from whole(no.NO_INTS)
        yield from ((value, "any") for value in no.RANGES)
        if self.name == "handles" or (self.annotation == "Ints" and self.owner == "plan"):
            is_new = self.name == "new" or self.call in ("admit", "unregister")
            good = (world.waiting if is_new else world.running)[0]
            unknown = (*NO_HANDLE, world.gone, *([] if self.call == "list_lengths" else [good]))
            yield from (([good, one], "[1]") for one in (*no.NO_INT, *unknown))
            yield from ((array("q", [good, one]), "[1]") for one in unknown)
            yield from ((value, "any") for value in (no.Growing(good, 1000), [good] * 10))
            yield no.GrowsWhenRead([good] * 10), "any"
            yield from ((no.Moody([good, world.gone], mood), "any") for mood in MOODS)
            return
        yield from ((no.Moody([1, -1], mood), "any") for mood in MOODS)
        is_token = self.name == "token_ids"
        least = 0 if self.call in ("append", "rewind") else 1
        beyond: Iterable[int] = (-1,) if is_token else range(-1, least)
        for one in (*no.NO_INT, *beyond, *(() if is_token else (2**53,))):
            if not (is_token and isinstance(one, no.Liar) and one >= 0):
                yield [1, one], "[1]"
        yield from whole(([1], [1, 1, 1], array("i"), []))
        yield array("q", [least - 1, 1]), "[0]"
        if not is_token:
            yield from ((one, "any") for one in (*no.LIARS, *beyond, 2**53, 2**99))


def whole(values: Iterable[Any]) -> Iterator[tuple[Any, str]]:
    return ((value, "") for value in values)


def set_apart(values: Sequence[Any], annotation: str) -> list[Any]:
    """Return what is bad even where None is not."""
    return [each for each in values if each is not None or "None" not in annotation]


def arguments() -> Iterator[Argument]:
    for owner, interface in (
        ("manager", KVCacheManager), ("batched", BatchedManager), ("tier", Tier),
    ):  # fmt: skip
        for call, parameters in no.calls_of(interface).items():
            needed = tuple(each.name for each in parameters if each.default is Parameter.empty)
            for each in parameters:
                yield Argument(owner, call, each.name, each.annotation, needed)
    for owner, cls in (("plan", StepPlan), ("output", StepOutput)):
        for member in fields(cls):
            yield Argument(owner, "step", member.name, str(member.type), ())
    for name, kind in (("computed_tokens", "int"), ("preemptions", "int")):
        yield Argument("request", "", f"num_{name}", kind, ())
    yield Argument("request", "", "status", "status", ())
    yield Argument("tokens", "append_tokens", "token_ids", "tokens", ())


ARGUMENTS = tuple(arguments())


@pytest.mark.rule("KV-ERR-2", "KV-ERR-3", "KV-ERR-6", "KV-MGR-8", "KV-REQ-1", "KV-REQ-3")
@pytest.mark.rule("KV-BATCH-2", "KV-BATCH-3", "KV-BATCH-4", "KV-BATCH-9", "KV-BATCH-10")
@pytest.mark.rule("KV-BATCH-11", "KV-BATCH-12", "KV-TIER-8")
@pytest.mark.parametrize("argument", ARGUMENTS, ids=lambda a: f"{a.owner}.{a.call}-{a.name}")
def test_a_bad_value_is_refused_and_changes_nothing(
    implementation: Implementation, argument: Argument
) -> None:
    for options in CONFIGS.values():
        world = World(implementation, **options)
        if argument.owner == "tier" and world.tier is None:
            continue
        clone, before = implementation.clone(world.manager), world.state()
        is_named = argument.owner in ("batched", "plan", "output")
        turns = (0, 2) if "request" in argument.needed or argument.owner == "request" else (0,)
        for turn, (value, entry) in product(turns, argument.bad(world)):
            with pytest.raises(KVSpecError) as caught:
                pytest.fail(f"{argument.make(world, value, turn)!r} to {value!r} {options}")
            error: Any = caught.value
            assert not isinstance(error, InvariantViolation), (value, options)
            if is_named and isinstance(error, InvalidArgumentError):
                field, exact = error.field, argument.field + entry
                is_like = entry == "any" and field.startswith((argument.field, "plan"))
                assert is_like or field == exact, (field, value, options)
            assert world.state() == before, (value, options)
        assert everything(world.manager) == everything(clone)


GROUPS: dict[str, Sequence[LayerSpec]] = {
    "full": [full(4)],
    "sink": [SinkFullAttentionSpec(4, 1, 8, "float16", sink_len=8)],
    "sliding": [sliding(4, 6)],
    "chunked": [chunked(4, 8)],
    "mamba": [mamba(4, "all", drafts=2)],
    "mamba_one_state": [mamba(256, "none", drafts=1)],
    "aligned": [mamba(4, "align")],
    "aligned_drafting": [mamba(4, "align", drafts=2)],
    "cross": [full(4), cross(4)],
    "cross_alone": [cross(4)],
    "encoder_only": [encoder_only(4)],
    "full_and_sliding": [full(4), sliding(8, 6)],
    "full_and_aligned": [full(4), mamba(8, "align", drafts=1)],
    "large_blocks": [sliding(2**52, 2**53 - 1)],
    "many_drafts": [mamba(2**40, "all", drafts=2**12)],
}
MOST = 2**53 - 1
IDS = ("group", "block_id", "handle", "num_blocks")
LARGE = (2**31 - 1, 2**31, 2**32, 2**40, MOST)


class Side:
    """One of two implementations; its world is made anew after a call that was legal."""

    def __init__(self, made: Implementation, specs: Sequence[LayerSpec]) -> None:
        uncached = CrossAttentionSpec | EncoderOnlyAttentionSpec
        has_caching = not any(isinstance(spec, uncached) for spec in specs)
        self.new = partial(
            World, made, 64, specs=specs, max_model_len_tokens=256, enable_caching=has_caching
        )
        self.world = self.new()

    def outcome(self, call: Callable[[World, int], object], turn: int) -> object:
        world, before = self.world, self.world.state()
        try:
            answer: Any = call(world, turn)
        except InvariantViolation:
            raise
        except KVSpecError:
            assert world.state() == before
            return "illegal"
        self.world = self.new()
        if isinstance(answer, StepResult):
            answer = answer.num_scheduled_tokens.tolist(), answer.hit_tokens.tolist()
        return answer, world.state()


def with_value(argument: Argument, value: int, world: World, turn: int) -> object:
    return argument.make(world, value, turn)


def single(name: str, given: Mapping[str, Any], world: World, turn: int) -> object:
    return getattr(world.manager, name)(world.requests[turn], **given)


def large_calls(specs: Sequence[LayerSpec]) -> Iterator[Callable[[World, int], object]]:
    """Yield calls with one large count, with all of them, and with hits beyond the request.

    Null is refused for blocks beyond the request, even where none of them is read.
    """
    counts = [a for a in ARGUMENTS if a.annotation in ("int", "Ints | int") and a.name not in IDS]
    for argument, count in product(counts, LARGE):
        if argument.owner in ("manager", "plan"):
            yield partial(with_value, argument, count)
    for name in dict.fromkeys(a.call for a in counts if a.owner == "manager"):
        beside = {"group": 0} if name == "cache_partial_block" else {}
        most = dict.fromkeys(
            (a.name for a in counts if (a.owner, a.call) == ("manager", name)), MOST
        )
        yield partial(single, name, beside | most)
        for new in (0, 1) if name == "allocate_slots" else ():
            most |= {"num_new_tokens": new, "num_new_computed_tokens": 0}
            yield partial(single, name, dict(most))
            fewer = ("num_external_computed_tokens", "num_encoder_tokens", "reserved_blocks")
            yield partial(single, name, {**most, **dict.fromkeys(fewer, 0)})
    for length, spec in product((3, 4, 64, 2**12), specs):
        hits = KVCacheBlocks(tuple([0] * length for _ in specs))
        num_hit = min(length * spec.block_size, MOST)
        given = {"num_new_computed_tokens": num_hit, "new_computed_blocks": hits}
        yield partial(single, "allocate_slots", {"num_new_tokens": 1, **given})


@pytest.mark.on("kvfast")
@pytest.mark.rule("KV-ERR-6", "KV-MGR-4", "KV-MGR-7", "KV-MGR-8", "KV-MGR-18")
@pytest.mark.rule("KV-BATCH-2", "KV-BATCH-6", "KV-BATCH-8")
@pytest.mark.parametrize("specs", GROUPS.values(), ids=GROUPS)
def test_large_counts_end_as_in_kvref(
    implementation: Implementation, specs: Sequence[LayerSpec]
) -> None:
    """Compare the compiled build: ints of the uncompiled one have no end either."""
    sides = [Side(made, specs) for made in (find_implementation("kvref"), implementation)]
    for number, call in enumerate(large_calls(specs)):
        for turn in (0, 2):
            found = [side.outcome(call, turn) for side in sides]
            assert found[0] == found[1], (number, call, turn)


@pytest.mark.rule("KV-ERR-6")
def test_the_needs_of_many_groups_are_added_up(implementation: Implementation) -> None:
    """Give 1,100 groups a need of 2^53 blocks each: over 64 bits, refused, and exact."""
    config = make_config(
        64, specs=[sliding(1, 6)] * 1100, max_model_len_tokens=MOST, enable_caching=False
    )
    manager = implementation.create(config)
    request = new_request(implementation, manager, "r", range(12))
    assert manager.allocate_slots(request, 0, num_external_computed_tokens=MOST) is None
    needed = manager.get_num_blocks_to_allocate(
        request, num_tokens=MOST, total_computed_tokens=0, num_tokens_main_model=MOST
    )
    assert needed == 1100 * MOST
