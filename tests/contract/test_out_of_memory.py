"""A call that an exception ends has changed nothing, or no later call is served."""

from __future__ import annotations

import importlib.util

import pytest

from kvcheck.discovery import find_implementation
from kvref.manager import ReferenceManager
from kvspec.errors import InvalidArgumentError, SpoiltError
from kvspec.interface import Implementation
from kvspec.invariants import check_snapshot
from kvspec.turn import Turn
from tests.commands import python
from tests.contract.builders import MakeManager, MakeRequest, admit, new_manager, new_request

NEEDS = pytest.mark.skipif(
    importlib.util.find_spec("_testcapi") is None, reason="this Python has no _testcapi"
)


@NEEDS
@pytest.mark.rule("KV-ERR-8")
@pytest.mark.parametrize(
    "build", ["kvref", "kvfast", pytest.param("kvfast-uncompiled", marks=pytest.mark.deep)]
)
def test_every_allocation_may_fail(build: str) -> None:
    # One that hangs ends here, and not with the process of the tests.
    ran = python("-m", "tests.contract.without_memory", build, timeout=600)
    assert ran.returncode == 0, ran.stderr[-2000:]
    seen = dict(line.split(" ", 1) for line in ran.stdout.splitlines() if "{" in line)
    assert len(seen) >= 25
    assert "MemoryError" in seen["step"]
    assert "as before" in seen["allocate_slots"]


class NothingIsSpoilt(Turn):
    def changes(self) -> None:
        pass


@pytest.mark.rule("KV-ERR-8")
@pytest.mark.parametrize(
    ("build", "is_broken"), [("kvref", False), ("kvref", True), ("kvfast-uncompiled", False)]
)
def test_a_change_that_broke_off_is_the_last(
    monkeypatch: pytest.MonkeyPatch, build: str, is_broken: bool
) -> None:
    implementation = find_implementation(build)
    manager = implementation.create(new_manager(implementation).config, check_invariants=False)
    if is_broken:
        assert isinstance(manager, ReferenceManager)
        manager.turn = NothingIsSpoilt()
    request = new_request(implementation, manager, "a", range(9))
    admit(manager, request)

    def fails(*_: object) -> None:
        raise KeyboardInterrupt

    inner = manager if isinstance(manager, ReferenceManager) else manager.core  # type: ignore[attr-defined]  # kvfast's
    monkeypatch.setattr(inner.pool, "release", fails)
    with pytest.raises(KeyboardInterrupt):
        manager.free(request)
    if is_broken:  # which a look at the state finds
        with pytest.raises(Exception, match="KV-POOL"):
            check_snapshot(manager.config, manager.snapshot())
        return
    for _ in range(2):
        with pytest.raises(SpoiltError) as caught:
            manager.get_blocks(request)
        assert caught.value.cause == "KeyboardInterrupt"
    with pytest.raises(SpoiltError):
        _ = manager.usage
    request.num_computed_tokens = 0
    assert admit(new_manager(implementation), request) is not None


class Clock:
    def __init__(self) -> None:
        self.answer: object = 5

    def __call__(self) -> int:
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer  # type: ignore[return-value] # wrong on purpose


@pytest.mark.rule("KV-STAT-6", "KV-POOL-15")
@pytest.mark.parametrize("answer", [ZeroDivisionError(), "noon", 1.5, None, True], ids=repr)
def test_a_clock_that_fails_leaks_nothing(
    make_manager: MakeManager, make_request: MakeRequest, answer: object
) -> None:
    clock = Clock()
    manager = make_manager(12, clock=clock, residency_sample_rate=1.0)
    old, new = (make_request(manager, name, range(9)) for name in ("old", "new"))
    admit(manager, old)
    before = manager.snapshot()
    clock.answer = answer
    error = ZeroDivisionError if isinstance(answer, BaseException) else InvalidArgumentError
    with pytest.raises(error):
        manager.allocate_slots(new, 9)
    with pytest.raises(error):
        manager.evict_blocks([1])
    assert manager.snapshot() == before
    clock.answer = 9
    manager.evict_blocks([1])
    assert [sample.lifetime_ns for sample in manager.take_residency_samples()] == [4]
    manager.free(old)
    assert manager.num_free_blocks == 11


@pytest.mark.rule("KV-STAT-6")
def test_a_manager_is_not_made_with_a_clock_that_fails(implementation: Implementation) -> None:
    clock = Clock()
    clock.answer = "noon"
    with pytest.raises(InvalidArgumentError) as caught:
        new_manager(implementation, clock=clock, residency_sample_rate=1.0)
    assert caught.value.field == "clock()"
