"""A story played: lines of Python on managers, requests and batches of one build, each judged.

A line may raise a typed error of the contract, or `Foreign`, which an object of the caller raised.
Anything else is a finding, and so are a broken invariant, a state that an error changed, and tokens
and hashes of a request that part. What no document names is only asked not to harm the process: its
lines stand in `inside(…)`, and no invariant is asked for after the first of them.
"""

from __future__ import annotations

import gc
import re
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass, replace
from random import Random
from types import CodeType
from typing import Any

import kvref
from kvfast._build import is_compiled
from kvfast._implementation import FastImplementation
from kvspec.audit import unwrapped
from kvspec.batched import StepPlan
from kvspec.errors import InvariantViolation, KVSpecError
from kvspec.invariants import check_snapshot
from kvspec.request import RequestInput, RequestStatus
from kvspec.snapshot import Snapshot
from tests.fuzz.judge import described, differing, is_allowed
from tests.fuzz.names import KNOWN
from tests.fuzz.values import Act

DIRECT = re.compile(r"(?:\w+ = )?[mb]\d+\.\w+\(")
NAMES = re.compile(r"\b[mb]\d+\b")
STORY = "<story>"


@dataclass(frozen=True)
class Finding:
    """What is wrong, at which line (from 0) of the story; `key` is the same for the same cause."""

    line: int
    key: str
    text: str


class World:
    """What the lines of one story see and leave."""

    def __init__(self, build: str, *, strict: bool) -> None:
        self.implementation = FastImplementation(build)
        self.build = build
        self.strict = strict
        self.is_inside = False
        self.is_acting = False
        self.inputs: list[tuple[Any, Any, RequestInput]] = []
        self.wrong: list[Exception] = []
        self.names: dict[str, Any] = dict(KNOWN)
        for tool in (
            self.create, self.request, self.requests, self.foreign, self.admit, self.go_on,
            self.hit, self.plan, self.some, self.clone, self.restore, self.batched, self.tier,
            self.inside, self.raw, self.do, self.threads, self.forget,
        ):  # fmt: skip
            self.names[tool.__name__] = tool

    # What the lines call.

    def create(self, config: Any, clock: Any = None) -> Any:
        """A manager without an audit: `play` does that."""
        return self.implementation.create(config, check_invariants=False, clock=clock)

    def request(self, manager: Any, name: Any, prompt: Any, **members: Any) -> Any:
        """A request of this manager."""
        given = RequestInput(name, prompt, **members)
        made = self.implementation.make_request(manager, given)
        self.inputs.append((manager, made, given))
        return made

    def requests(self, manager: Any, prompts: Any, num_threads: Any = 2) -> Any:
        """The last of some requests that were made by threads."""
        given = [RequestInput(f"many{i}", prompt) for i, prompt in enumerate(prompts)]
        made = self.implementation.make_requests(manager, given, num_threads=num_threads)
        self.inputs += [(manager, *both) for both in zip(made, given, strict=True)]
        return made[-1]

    def foreign(self, kind: str, manager: Any) -> Any:
        """A request of the other build or of kvref."""
        maker: Any = kvref.implementation()
        if kind != "kvref" and is_compiled():
            maker = FastImplementation("uncompiled" if self.build == "compiled" else "compiled")
        theirs = maker.create(manager.config, check_invariants=False)
        return maker.make_request(theirs, RequestInput("foreign", [1] * 20))

    def hit(self, manager: Any, request: Any) -> dict[str, Any]:
        """The arguments of `allocate_slots` after a look-up."""
        found = manager.get_computed_blocks(request)
        return {
            "num_new_computed_tokens": found.hit_length_tokens,
            "new_computed_blocks": found.blocks,
        }

    def admit(self, manager: Any, request: Any, most: int = 10**6) -> Any:
        """Look up and allocate, as a scheduler does it; go on where that was done before."""
        if any(len(ids) for ids in manager.get_blocks(request).groups):
            return self.go_on(manager, request, 0)
        request.num_computed_tokens = 0
        hit = self.hit(manager, request)
        length = hit["num_new_computed_tokens"]
        room = manager.config.max_model_len_tokens - length
        num_tokens = max(1, min(most, request.num_tokens - length, room))
        answer = manager.allocate_slots(request, num_tokens, **hit)
        if answer is not None:
            request.num_computed_tokens = length + num_tokens
            request.status = RequestStatus.RUNNING
        return answer

    def go_on(self, manager: Any, request: Any, num_tokens: int, lookahead: int = 0) -> Any:
        """Append tokens, up to the longest sequence, and allocate slots for what is left."""
        longest = manager.config.max_model_len_tokens
        room = max(0, min(num_tokens, longest - request.num_tokens))
        manager.append_tokens(request, [request.num_tokens % 7] * room)
        if not any(len(ids) for ids in manager.get_blocks(request).groups):
            return self.admit(manager, request, longest)
        left = max(1, min(request.num_tokens, longest) - request.num_computed_tokens)
        answer = manager.allocate_slots(request, left, num_lookahead_tokens=lookahead)
        if answer is not None:
            request.num_computed_tokens += left
        return answer

    def plan(self, batch: Any, seed: int, **members: Any) -> StepPlan:
        """A plan that is legal for most states of the requests, with other members if given."""
        random = Random(seed)
        found: dict[str, list[int]] = {"finished": [], "preempted": [], "decoding": [], "new": []}
        for handle in range(16):
            try:
                request = batch.request_of(handle)
            except KVSpecError:
                continue
            held = any(len(ids) for ids in batch.manager.get_blocks(request).groups)
            kinds = ("finished", "preempted", "decoding", "decoding", "decoding", "")
            kind = random.choice(
                kinds if held or request.num_computed_tokens else ("new", "new", "")
            )
            if kind:
                found[kind].append(handle)
        return StepPlan(**{"decode_tokens": random.choice((1, 2)), **found, **members})

    def some(self, batch: Any, seed: int) -> list[int]:
        """Handles of registered requests."""
        random, found = Random(seed), []
        for handle in range(8):
            with suppress(KVSpecError):
                batch.request_of(handle)
                found.append(handle)
        return random.sample(found, random.randint(0, len(found)))

    def clone(self, manager: Any) -> Any:
        """A copy."""
        return self.implementation.clone(manager)

    def restore(self, config: Any, snapshot: Any) -> Any:
        """A manager in this state; the audit around it would hide the compiled class."""
        return unwrapped(self.implementation.restore(config, snapshot))

    def batched(self, manager: Any) -> Any:
        """Whole steps on the manager."""
        return self.implementation.batched(manager)

    def tier(self, manager: Any, num_blocks: Any) -> Any:
        """A host tier."""
        return self.implementation.make_tier(manager, num_blocks)

    def inside(self, act: Act) -> object:
        """Call what no document names. It may refuse in any way."""
        self.is_inside = True
        try:
            return act()
        except self.never:
            raise
        except Exception:
            return None

    def raw(self, act: Act) -> object:
        """An object that was made in a way that no document names; None if it can't be."""
        try:
            return act()
        except Exception:
            return None

    def do(self, act: Act) -> None:
        """Call the core from within an object that it was given."""
        if self.is_acting:
            return
        self.is_acting = True
        try:
            act()
        except Exception as error:
            self.wrong.append(error)
        finally:
            self.is_acting = False

    def threads(self, *acts: Act) -> None:
        """Call the core from several threads at a time."""

        def run(act: Act) -> None:
            for _ in range(3):
                try:
                    act()
                except Exception as error:
                    self.wrong.append(error)

        before = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        started = [threading.Thread(target=run, args=(act,)) for act in acts]
        for thread in started:
            thread.start()
        for thread in started:
            thread.join()
        sys.setswitchinterval(before)

    def forget(self, name: str) -> None:
        """Let an object die, as far as nobody else holds it."""
        gone = self.names.pop(name, None)
        self.inputs = [entry for entry in self.inputs if entry[0] is not gone]
        gc.collect()

    # Playing and judging.

    def play(self, line: str) -> str | None:
        """Run a line; what is wrong then, as a text that begins with its key and a line feed."""
        before = self._states(line) if self.strict and DIRECT.match(line) else {}
        failed = False
        try:
            exec(_compiled(line), self.names)
        except Exception as error:
            failed = True
            self.wrong.append(error)
        wrong = [error for error in self.wrong if not self.is_allowed(error)]
        self.wrong.clear()
        if wrong:
            return described(wrong[0])
        try:
            for name, state in self._states(line).items():
                check_snapshot(self.names[name].manager.config if name[0] == "b" else
                               self.names[name].config, state)  # fmt: skip
                if failed and name in before and before[name] != state:
                    call = line.partition("(")[0].rpartition(".")[2]
                    return f"changed by a refused {call}\n{differing(before[name], state)}"
        except InvariantViolation as violation:
            return f"invariant {violation.invariant}\n{violation}"
        except Exception as error:
            return described(error)
        return None

    @property
    def never(self) -> tuple[type[Exception], ...]:
        """What says that the core is broken; inside, plain Python multiplies bytes, too."""
        if self.is_inside and self.build == "uncompiled":
            return (SystemError, RecursionError)
        return (MemoryError, SystemError, RecursionError)

    def is_allowed(self, error: Exception) -> bool:
        """Whether a line may raise it; inside, anything but what says that the core is broken."""
        if isinstance(error, self.never):
            return False
        return self.is_inside or is_allowed(error)

    def _states(self, line: str) -> dict[str, Snapshot]:
        """Snapshots of the managers that a line names."""
        if self.is_inside or "lambda" in line:
            return {}
        named = {name: self.names[name] for name in NAMES.findall(line) if name in self.names}
        return {
            name: (it.manager if name[0] == "b" else it).snapshot() for name, it in named.items()
        }

    def end(self) -> str | None:
        """What is wrong at the end: all managers, and what requests are made of."""
        if self.is_inside:
            return None
        named = " ".join(name for name in self.names if re.fullmatch(r"m\d+", name))
        found = self.play(f"({', '.join(named.split())},)") if named else None
        for manager, request, given in self.inputs if found is None else ():
            found = found or self._parted(manager, request, given)
        return found

    def _parted(self, manager: Any, request: Any, given: RequestInput) -> str | None:
        """Whether the hashes of a request are those of its tokens."""
        try:
            tokens = list(request.token_ids)
            if not tokens:  # a prompt that was emptied while it was read
                return None
            again = self.implementation.make_request(
                manager, replace(given, prompt_token_ids=tokens)
            )
            if len(tokens) != request.num_tokens or list(again.block_hashes) != list(
                request.block_hashes
            ):
                return f"tokens and hashes part\nof request {request.request_id!r}"
        except Exception as error:
            return described(error)
        return None


def play(build: str, lines: list[str], *, strict: bool = True, at: Any = None) -> Finding | None:
    """Play a story up to its first finding; `at(i)` is told before line i."""
    world = World(build, strict=strict)
    for number, line in enumerate(lines):
        if at is not None:
            at(number)
        found = world.play(line)
        if found:
            return Finding(number, *_parts(found))
    if at is not None:
        at(len(lines))
    found = world.end()
    return Finding(len(lines), *_parts(found)) if found else None


def _parts(found: str) -> tuple[str, str]:
    key, _, text = found.partition("\n")
    return key, text


def _compiled(line: str) -> CodeType:
    return compile(line, STORY, "exec")
