"""The host tier at work in examples/tiny_engine: its copies and steps in the order of KV-HAZ-1 … 6.

Streams are recorded, not run: what the host issues is the same on every device.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
import torch

from examples.tiny_engine.engine import Engine
from kvcheck.hazards.lines import Ended, Given, Place, Run
from kvfast.device import HostTier
from kvfast.device.pages.operations import PageOperations
from kvfast.device.tier.offload import Offload
from kvfast.device.tier.swap import Swapper, Transfer
from tests.examples.generating import Schedule
from tests.hazards.recorder import Recorder

SIZE = 4
NUM_SCHEDULES = 5
MAIN, COPIES = "main", "copies"


class TierRecorder(Recorder):
    """Issues the lines of one engine with a host tier."""

    engine: Engine
    waits_for_steps = True
    zeroes_late = False
    forgotten = ("nothing",)  # the copies, by their pools, that nothing waits for
    zeroed_late: tuple[Place, ...] = ()

    def __init__(self) -> None:
        super().__init__(SIZE, "gpu", "host", "spare")
        self.waited = list[str]()
        self.last_step = ""
        self.kinds = Counter[str]()

    def compute(self, kind: str, **members: Any) -> None:
        """Record work on the computing stream, behind the copies that it waits for."""
        self.kinds[kind] += 1
        self.last_step = f"{kind}-{self.num_lines}"
        after, self.waited = tuple(self.waited), []
        self.issue(Run(self.last_step, MAIN, after=after, **members))

    def copy(self, source: tuple[Place, ...], destination: tuple[Place, ...]) -> str:
        """Record a copy on the other stream, behind all steps so far; first fill host places."""
        self.kinds["copies"] += 1
        name = f"copy-{self.num_lines}"
        if destination and destination[0].pool != "gpu":
            self.issue(Given("tier", destination))
        after = (self.last_step,) if self.last_step and self.waits_for_steps else ()
        self.issue(Run(name, COPIES, source, destination, after=after))
        return name

    def step_owners(self, new: Iterable[int]) -> None:
        """Issue what changed hands since the step before."""
        holding = {
            one.request.request_id: {
                block
                for group in self.engine.manager.get_blocks(one.request).groups
                for block in group
                if block
            }
            for one in [*self.engine.running, *self.engine.waiting]
        }
        self.owners(holding, new)


class RecordedEvent:
    """The end of a copy, as the host learns it."""

    def __init__(self, recorder: TierRecorder, name: str, way: tuple[str, ...]) -> None:
        self.recorder, self.name, self.way = recorder, name, way

    def query(self) -> bool:
        return False

    def synchronize(self) -> None:
        self.recorder.issue(Ended(self.name))


class RecordedStreams:
    """Runs work at once, and issues it as a copy of the blocks that `moving` names."""

    def __init__(self, recorder: TierRecorder) -> None:
        self.recorder = recorder
        self.moving: tuple[tuple[Place, ...], tuple[Place, ...]] = ((), ())

    def start(self, work: Callable[[], None], used: Iterable[torch.Tensor]) -> RecordedEvent:
        work()
        way = tuple(places[0].pool for places in self.moving if places)
        return RecordedEvent(self.recorder, self.recorder.copy(*self.moving), way)

    def wait(self, event: Any) -> None:
        if event.way != self.recorder.forgotten:
            self.recorder.waited.append(event.name)


@contextmanager
def recorded(num_spare_blocks: int) -> Iterator[TierRecorder]:
    """Let the engines that are made here issue their lines."""
    recorder = TierRecorder()
    streams = RecordedStreams(recorder)
    moved, copied, zeroed = Swapper._moved, Offload._copy, PageOperations.zero_blocks

    def watched_moved(self: Swapper, source: Any, destination: Any) -> Transfer:
        is_spare = self.device_pools.num_blocks == num_spare_blocks + 1
        pools = {"blocks": "spare" if is_spare else "gpu", "host_blocks": "host"}
        sides = [recorder.places(ids, pools[name]) for name, ids, _ in (source, destination)]
        streams.moving = (sides[0], sides[1])
        return moved(self, source, destination)

    def watched_copied(self: Offload, blocks: Any, host_blocks: Any) -> None:
        form, num = self._form, len(blocks)
        first = self._next

        class Form:
            """Issues the copy to spare blocks on the computing stream."""

            @staticmethod
            def copy_pages(*arguments: Any) -> None:
                form.copy_pages(*arguments)
                spare = [1 + (first + number) % self._num_blocks for number in range(num)]
                recorder.issue(Given("tier", recorder.places(spare, "spare")))
                reads = recorder.places(blocks)
                recorder.compute("save", reads=reads, writes=recorder.places(spare, "spare"))

        self._form = Form  # type: ignore[assignment]
        copied(self, blocks, host_blocks)
        self._form = form

    def watched_zeroed(self: PageOperations, blocks: Any, **options: Any) -> None:
        zeroed(self, blocks, **options)
        ids = [int(block) for block in blocks]
        recorder.step_owners(ids)  # what was in them is copied out by now
        places = recorder.places(ids)
        if places and recorder.zeroes_late:
            recorder.zeroed_late += places
        elif places:
            recorder.compute("zero", writes=places, is_zeroing=True)

    with ExitStack() as stack:
        for target, name, value in (
            (Swapper, "_moved", watched_moved),
            (Offload, "_copy", watched_copied),
            (PageOperations, "zero_blocks", watched_zeroed),
        ):
            stack.enter_context(patch.object(target, name, value))
        tier = partial(HostTier, num_spare_blocks=num_spare_blocks, streams=streams)
        stack.enter_context(patch("examples.tiny_engine.engine.HostTier", tier))
        stack.enter_context(steps_of(recorder))
        yield recorder


@contextmanager
def steps_of(recorder: TierRecorder) -> Iterator[None]:
    compute, step = Engine._compute, Engine.step

    def watched_logits(engine: Engine, inner: Any) -> Any:
        def logits(tokens: Any, spans: Any, step: Any) -> Any:
            reads, writes = list[Place](), list[Place]()
            for one in engine.running:
                span = next((each for each in spans if each.row == one.handle), None)
                if span is None:
                    continue
                end = span.num_tokens + len(one.drafts)
                for group in engine.manager.get_blocks(one.request).groups:
                    for index, block in enumerate(group):
                        begin = min(max(span.num_tokens - span.num_new - index * SIZE, 0), SIZE)
                        upto = min(max(end - index * SIZE, 0), SIZE)
                        if block and begin:
                            reads.append(Place("gpu", block, 0, begin))
                        if block and begin < upto:
                            writes.append(Place("gpu", block, begin, upto))
            late, recorder.zeroed_late = recorder.zeroed_late, ()
            if late:
                recorder.compute("zero", writes=late, is_zeroing=True)
            recorder.compute("step", reads=tuple(reads), writes=tuple(writes))
            return inner(tokens, spans, step)

        return logits

    def watched_compute(self: Engine, plan: Any, result: Any, entries: Any) -> None:
        with patch.object(self.paged, "logits", watched_logits(self, self.paged.logits)):
            compute(self, plan, result, entries)

    def watched_step(self: Engine) -> Any:
        recorder.engine = self
        return step(self)

    with (
        patch.object(Engine, "_compute", watched_compute),
        patch.object(Engine, "step", watched_step),
    ):
        yield


def recorders(num_spare_blocks: int, **mistake: Any) -> Iterator[TierRecorder]:
    """Serve random schedules of engines with a tier, a recorder for each."""
    for seed in range(NUM_SCHEDULES):
        schedule = Schedule(seed)
        if schedule.config.num_host_blocks:
            with recorded(num_spare_blocks) as recorder:
                for name, value in mistake.items():
                    setattr(recorder, name, value)
                schedule.run()
            yield recorder


@pytest.mark.parametrize("num_spare_blocks", [0, 2])
def test_the_tier_has_no_hazard(num_spare_blocks: int) -> None:
    kinds = Counter[str]()
    for recorder in recorders(num_spare_blocks):
        assert recorder.found == []
        kinds += recorder.kinds
    assert min(kinds[kind] for kind in ("step", "zero", "copies")) > 20, kinds
    assert (kinds["save"] > 20) == bool(num_spare_blocks)


@pytest.mark.parametrize(
    ("num_spare_blocks", "mistake", "rule"),
    [
        (0, {"forgotten": ("gpu", "host")}, "KV-HAZ-3"),  # the step overwrites what is copied
        (0, {"forgotten": ("host", "gpu")}, "KV-HAZ-1"),  # the step reads what is not there yet
        (2, {"forgotten": ("spare", "host")}, "KV-HAZ-3"),  # a spare block is used again too soon
        (0, {"waits_for_steps": False}, "KV-HAZ-1"),  # a copy reads beside the step that writes
        (2, {"waits_for_steps": False}, "KV-HAZ-1"),
        (0, {"zeroes_late": True}, "KV-HAZ-6"),  # what was loaded is wiped out
    ],
)
def test_a_missing_wait_is_named_by_its_rule(
    num_spare_blocks: int, mistake: dict[str, Any], rule: str
) -> None:
    first = Counter(
        recorder.found[0].rule
        for recorder in recorders(num_spare_blocks, **mistake)
        if recorder.found
    )
    assert first.most_common(1)[0][0] == rule, first
