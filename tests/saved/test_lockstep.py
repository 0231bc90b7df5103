"""Random programs in which managers are saved and loaded: both continue alike."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import kvfast
from kvcheck.mistakes.registry import find
from kvcheck.play import steps as st
from kvcheck.play.checks import CompareCheck, EventCheck
from kvcheck.play.performing import perform
from kvcheck.play.runner import Check, Runner
from kvcheck.play.steps import Program
from kvfast._implementation import FastImplementation
from kvref.implementation import ReferenceImplementation
from kvspec.audit import unwrapped
from kvspec.columns import columns_of
from kvspec.config import ManagerConfig
from kvspec.errors import InvariantViolation
from kvspec.interface import Implementation, KVCacheManager
from kvspec.saved import load, save
from kvspec.snapshot import Snapshot
from tests.lockstep.test_lockstep import small_programs
from tests.mistakes import of_kvfast


class Files:
    """Two implementations whose restored managers are those that the other one saved."""

    def __init__(self, folder: Path, *, crossed: bool) -> None:
        self.folder = folder
        self.crossed = crossed
        self.managers: dict[str, KVCacheManager] = {}
        self.num_loaded = 0

    def wrap(self, name: str, inner: Implementation, other: str) -> Any:
        files, source = self, other if self.crossed else name

        class Filed:
            def __getattr__(self, member: str) -> Any:
                return getattr(inner, member)

            def create(self, config: ManagerConfig, **options: Any) -> KVCacheManager:
                files.managers[name] = inner.create(config, **options)
                return files.managers[name]

            def clone(self, manager: KVCacheManager) -> KVCacheManager:
                files.managers[name] = inner.clone(manager)
                return files.managers[name]

            def restore(self, config: ManagerConfig, snapshot: Snapshot) -> KVCacheManager:
                path = files.folder / source
                save(unwrapped(files.managers[source]), path)
                manager = load(inner, path, config=config)
                assert manager.snapshot() == snapshot
                files.managers[name] = manager
                files.num_loaded += 1
                return manager

        return Filed()


def with_files(program: Program) -> Program:
    steps = list(program.steps)
    for at in range(len(steps), 0, -10):
        steps.insert(at, st.Copy(restored=True))
    return replace(program, steps=tuple(steps))


def run(folder: Path, subject: Implementation, *, crossed: bool, most: int) -> int:
    num_loaded = 0
    for program in islice(small_programs(), most):
        if program.config.registry.custom:
            continue
        files = Files(folder, crossed=crossed)
        fast = files.wrap("subject", subject, "oracle")
        ref = files.wrap("oracle", ReferenceImplementation(), "subject")
        runner = Runner(with_files(program), fast, ref)
        checks: list[Check] = [CompareCheck(exact_ids=True), EventCheck()]
        runner.checks = checks
        perform(runner, with_files(program).steps)
        num_loaded += files.num_loaded
    return num_loaded


@pytest.mark.rule("KV-MGR-20")
@pytest.mark.parametrize("build", ["compiled", "uncompiled"])
@pytest.mark.parametrize("crossed", [True, False])
def test_loaded_managers_go_on_alike(tmp_path: Path, build: str, crossed: bool) -> None:
    if build == "compiled" and not kvfast.compiled:
        pytest.skip("no compiled build of kvfast here")
    assert run(tmp_path, FastImplementation(build), crossed=crossed, most=12) > 40


@pytest.mark.rule("KV-MGR-20")
def test_columns_are_those_of_the_snapshot() -> None:
    for program in islice(small_programs(), 60):
        fast = FastImplementation("uncompiled")
        runner = Runner(program, fast, ReferenceImplementation())
        perform(runner, program.steps)
        inner: Any = unwrapped(runner.subject.player.manager)
        assert inner.columns() == columns_of(runner.oracle.player.manager.snapshot())  # type: ignore[union-attr]  # there is one


@pytest.mark.parametrize("mistake", ["SharedKeysTurnInColumns", "TheQueueIsSavedFromItsEnd"])
def test_programs_find_mistakes_about_files(tmp_path: Path, mistake: str) -> None:
    with pytest.raises((InvariantViolation, AssertionError)):
        run(tmp_path, find(mistake, of_kvfast()).make(), crossed=True, most=30)
