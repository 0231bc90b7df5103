"""Hostile calls on a clone of a manager, drawn by the interface's own signatures, each judged.

A call may raise a typed error of the contract, or `Foreign`, which an object of the caller raised.
Anything else is a finding, and so are a broken invariant, a state that an error changed, and tokens
and hashes of a request that part.
"""

from __future__ import annotations

import re
import traceback
from array import array
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from functools import partial
from inspect import Parameter
from random import Random
from types import MappingProxyType
from typing import Any

import numpy as np

import kvref
from kvcheck.play.difference import first_difference
from kvcheck.play.runner import Runner
from kvspec.audit import unwrapped
from kvspec.batched import BatchedManager, StepOutput, StepPlan
from kvspec.blocks import KVCacheBlocks
from kvspec.errors import InvariantViolation, KVSpecError
from kvspec.interface import KVCacheManager
from kvspec.invariants import check_snapshot
from kvspec.request import RequestInput, RequestStatus
from kvspec.tier import Tier
from tests.contract import hostile as no
from tests.fuzz.drawing import tamper

SMALL = (0, 1, 1, 2, 3, 4, 5, 6, 8, 9, 12, 16, 17, 32, 48, 64)
HUGE = (2**20, 2**31 - 1, 2**31, 2**32 + 1, 2**40, 2**53 - 1, 2**62, 2**64 + 3, 10**30, -(2**70))
MOODS = ("grows", "shrinks", "more", "fewer", "endless", "raises", "acts")
NEVER = (MemoryError, SystemError, RecursionError)
SIGNATURE = re.compile(r"argument|positional|keyword")
LIKE_A_LIST = re.compile(r"kvfast/_core/views\.py$|_collections_abc\.?\w*>?$")
CORE = re.compile(r"(?:^|/)(?:kvfast|kvspec)/")


class Finding(Exception):  # noqa: N818 (a result that ends a story)
    """A defect; `key` is the same for the same cause."""

    def __init__(self, key: str, text: str) -> None:
        super().__init__(key, text)
        self.key, self.text = key, text


def is_allowed(error: BaseException) -> bool:
    if isinstance(error, NEVER):
        return False
    if isinstance(error, no.Foreign):
        return True
    if isinstance(error, KVSpecError):  # nothing here leaves a manager spoilt
        return type(error).__name__ not in ("InvariantViolation", "SpoiltError")
    if isinstance(error, TypeError) and SIGNATURE.search(str(error)):
        return True
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    if LIKE_A_LIST.search(files[-1]):
        return isinstance(error, TypeError | ValueError | IndexError)
    # What an object of the caller raised, or Python without the core's help, is none of its doing.
    is_posing = "'Posing'" in str(error)
    return is_posing or files[-1] == no.__file__ or not any(map(CORE.search, files))


def described(error: BaseException) -> tuple[str, str]:
    """Return the key of an exception, and its traceback."""
    last = [f for f in traceback.extract_tb(error.__traceback__) if CORE.search(f.filename)]
    where = f" in {last[-1].filename.rpartition('/')[2]} {last[-1].name}" if last else ""
    return f"{type(error).__name__}{where}", "".join(traceback.format_exception(error)[-12:])


CALLS: Mapping[str, Mapping[str, tuple[Parameter, ...]]] = MappingProxyType(
    {
        "manager": no.calls_of(KVCacheManager),
        "batched": no.calls_of(BatchedManager),
        "tier": no.calls_of(Tier),
    }
)


class Burst:
    """A clone of the runner's manager, some requests of its own, and calls on them."""

    def __init__(self, random: Random, runner: Runner) -> None:
        player = runner.subject.player
        self.random, self.implementation = random, player.implementation
        self.told: list[str] = []
        self.wrong: list[Exception] = []
        self.is_acting = self.has_acted = False
        self.others = list(player.requests.values())
        self.texts = [request.seat.tokens for request in runner.requests] or [(1, 2, 3)]
        self.manager: Any = unwrapped(player.manager)
        self.look()
        self.use(unwrapped(self.implementation.clone(self.manager)))

    def use(self, manager: Any) -> None:
        """Go on with this manager: two requests hold blocks, if there are any, and one has none."""
        self.manager = manager
        self.own = [self.request(f"own{n}") for n in range(3)]
        for request in self.own[:2]:
            hit = manager.get_computed_blocks(request)
            length = hit.hit_length_tokens
            granted = manager.allocate_slots(
                request,
                max(1, request.num_tokens - length),
                num_new_computed_tokens=length,
                new_computed_blocks=hit.blocks,
            )
            if granted is not None:
                request.num_computed_tokens = max(length + 1, request.num_tokens)
                request.status = RequestStatus.RUNNING
        made: Any = self.implementation
        self.batched = made.batched(manager)
        self.tier: Any = None
        with suppress(KVSpecError):  # not of every configuration
            self.tier = made.make_tier(manager, 6)
        self.handles = [self.batched.register(request) for request in self.own]

    def request(self, name: str) -> Any:
        text = self.random.choice(self.texts)
        tokens = [*text[: self.random.choice((3, 9, 40))], self.random.randrange(9)]
        longest = self.manager.config.max_model_len_tokens
        given = RequestInput(name, tokens[: max(1, longest - 1)])
        return self.implementation.make_request(self.manager, given)

    # Drawing.

    def value(self, annotation: str) -> Any:
        """Draw an argument by its type: mostly a legal one."""
        if self.random.random() < 0.2:
            return self.hostile(annotation)
        random = self.random
        match annotation:
            case "int" | "int | None":
                return random.choice(SMALL)
            case "bool":
                return random.random() < 0.5
            case "Request":
                return random.choice((*self.own, *self.own, *self.others))
            case "Sequence[int]":
                return [
                    random.randrange(1, self.manager.config.kv_cache.num_blocks + 1)
                    for _ in range(random.choice((0, 1, 2, 3, 9)))
                ]
            case "KVCacheBlocks | None" | "KVCacheBlocks":
                hit = self.manager.get_computed_blocks(random.choice(self.own))
                return random.choice((None, hit.blocks))
            case "Ints":
                chosen = random.sample(self.handles, random.randint(0, 3))
                return random.choice((chosen, array("q", chosen), np.array(chosen, np.int32)))
            case "Ints | int" | "Ints | int | None":
                return random.choice((1, 2, [1], [1, 2], [1, 0, 3]))
            case "StepPlan":
                return StepPlan(**self.members(StepPlan))
            case "StepOutput | None":
                return random.choice((None, StepOutput(**self.members(StepOutput))))
            case "Array" | "Array | None":
                return np.zeros((random.choice((0, 1, 3, 20)), 4), np.int32)
            case "Sequence[Array | None] | None":
                groups = self.manager.config.kv_cache.groups
                return [random.choice((None, np.zeros(99, np.int64))) for _ in groups]
        return ()

    def members(self, cls: Any) -> dict[str, Any]:
        some = [each for each in fields(cls) if self.random.random() < 0.35]
        return {each.name: self.value(str(each.type)) for each in some}

    def hostile(self, annotation: str) -> Any:
        """Draw what no caller may pass there, or an object that calls back."""
        random, act = self.random, self.act
        values: Sequence[Any] = ()
        if annotation.startswith(("Ints", "Sequence[int]")):
            numbers = [random.choice((*self.handles, 1, 2)) for _ in range(random.randint(1, 4))]
            # More ids than memory are refused at the first; tokens are not.
            ids = [each for each in no.NO_IDS if each is not no.LONG]
            table = ids if annotation[0] == "S" else [*no.NO_INTS, *no.RANGES]
            values = (
                random.choice(table),
                [*numbers, random.choice((*no.NO_INT, *HUGE))],
                no.Moody(numbers, random.choice(MOODS), act),
                no.Tensor(np.array(numbers), act),
                no.Growing(numbers[0], 50),
                no.GrowsWhenRead(numbers),
                no.Posing(list, act),
                [no.Acting(numbers[0], act)],
            )
        elif annotation.startswith("int"):
            values = (*no.NO_COUNT, *HUGE, no.Acting(3, act), no.Posing(int, act))
        elif annotation == "bool":
            values = (*no.NO_FLAG, no.Posing(bool, act))
        elif annotation == "Request":
            mine = random.choice(self.own)
            kind: Any = type(mine)
            values = (*no.BAD["Request"], no.Posing(kind, act), self.foreign(), kind.__new__(kind))
        elif annotation.startswith("KVCacheBlocks"):
            moody = KVCacheBlocks((no.Moody([1, 2], random.choice(MOODS), act),))
            values = (*no.NO_HITS, moody)
        elif "Array" in annotation:
            rows = np.zeros((9, 4), np.int32)
            values = (
                *no.NO_ROWS,
                *no.NO_SLOTS,
                no.Tensor(rows, act),
                [no.Tensor(rows, act)],
                [random.choice(no.NO_SLOTS)],
            )
        return random.choice((*values, None, 7, "x", object()))

    def foreign(self) -> Any:
        maker = kvref.implementation()
        theirs = maker.create(self.manager.config, check_invariants=False)
        return maker.make_request(theirs, RequestInput("foreign", [1]))

    # Calls.

    def drawn(self) -> tuple[str, Callable[[], object]]:
        """Draw a call: its name, and what makes it."""
        random = self.random
        roll = random.random()
        if roll < 0.06:
            return self.on_a_view()
        if roll < 0.10:
            name = random.choice(("num_computed_tokens", "num_preemptions", "status"))
            value = self.value("int") if name != "status" else random.choice((None, 1, "x"))
            return name, partial(setattr, random.choice(self.own), name, value)
        if roll < 0.16:
            tokens = self.value("Sequence[int]")
            return "append", partial(random.choice(self.own).append, tokens)
        if roll < 0.18:
            tokens = self.value("Sequence[int]")
            return "make_request", lambda: self.implementation.make_request(
                self.manager, RequestInput("new", tokens)
            )
        owner = random.choice(("manager", "manager", "batched", "batched", "tier"))
        owner = owner if owner != "tier" or self.tier else "manager"
        name = random.choice(tuple(CALLS[owner]))
        given = {
            each.name: self.value(str(each.annotation))
            for each in CALLS[owner][name]
            if each.default is Parameter.empty or random.random() < 0.3
        }
        if name == "allocate_slots" and random.random() < 0.5:
            hit = self.manager.get_computed_blocks(self.own[2])
            given |= {"request": self.own[2], "new_computed_blocks": hit.blocks}
            given["num_new_computed_tokens"] = hit.hit_length_tokens
        return name, partial(getattr(getattr(self, owner), name), **given)

    def on_a_view(self) -> tuple[str, Callable[[], object]]:
        """Draw a look at a request's tokens or hashes."""
        request, random = self.random.choice(self.own), self.random
        view: Any = getattr(request, random.choice(("token_ids", "block_hashes")))
        a, b = (random.choice((*SMALL, -1, -5, None, 2**31, -(2**63), 2**70)) for _ in "ab")

        def grow() -> None:
            for _ in view:
                if request.num_tokens < 99:
                    request.append([1] * 9)

        looks: tuple[Callable[[], object], ...] = (
            lambda: view[a],
            lambda: view[a : b : random.choice((None, 1, -1, 0))],
            grow,
            lambda: a in view,
            lambda: view.index(a, b),
            lambda: list(reversed(view)),
            lambda: (hash(request), repr(request), repr(view), view == self.value("Ints")),
        )
        return "a view", random.choice(looks)

    def act(self) -> None:
        """Call the core from within an object that it was given; then a state may change."""
        if not self.is_acting:
            self.is_acting = self.has_acted = True
            try:
                self.drawn()[1]()
            except Exception as error:
                self.wrong.append(error)
            finally:
                self.is_acting = False

    def make(self) -> None:
        """Make one call and judge it. Raises Finding."""
        try:
            name, call = self.drawn()
        except (KVSpecError, no.Foreign):  # of a look-up for an argument
            return
        self.told.append(f"{name} {getattr(call, 'keywords', '')}"[:300])
        before, self.has_acted = self.manager.snapshot(), False
        error: Exception | None = None
        try:
            call()
        except Exception as raised:
            error = raised
            self.wrong.append(raised)
        wrong = [each for each in self.wrong if not is_allowed(each)]
        self.wrong.clear()
        if wrong:
            self.fail(*described(wrong[0]))
        after = self.look()
        if error is not None and not self.has_acted and before != after:
            self.fail(f"changed by a refused {name}", str(first_difference(before, after)))

    def look(self) -> Any:
        try:
            state = self.manager.snapshot()
            check_snapshot(self.manager.config, state)
        except InvariantViolation as violation:
            self.fail(f"invariant {violation.invariant}", str(violation))
        except Exception as error:
            self.fail(*described(error))
        return state

    def fail(self, key: str, text: str) -> None:
        raise Finding(key, "\n".join((*self.told, text)))

    def end(self) -> None:
        """Compare tokens with hashes, and restore a state that is wrong somewhere."""
        for request in self.own:
            tokens = list(request.token_ids)
            if tokens:  # not emptied while they were read
                given = RequestInput("again", tokens)
                again = self.implementation.make_request(self.manager, given)
                if list(again.block_hashes) != list(request.block_hashes):
                    self.fail("tokens and hashes part", f"of request {request.request_id!r}")
        state = self.manager.snapshot()
        member = self.random.choice([each.name for each in fields(state)])
        try:
            wrong = tamper(state, member, self.random.randrange(10**6))
            self.manager = unwrapped(self.implementation.restore(self.manager.config, wrong))
        except Exception as error:
            if not is_allowed(error):
                self.fail(*described(error))
        else:
            self.told.append(f"restored with another {member}")
            self.look()
