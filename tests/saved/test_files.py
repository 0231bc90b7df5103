"""Files of states: what is refused and why, and who may read them."""

from __future__ import annotations

import json
import os
from array import array
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import kvfast
import kvref
from kvcheck.mistakes.registry import find
from kvcheck.play import steps as st
from kvcheck.play.checks import CompareCheck, EventCheck
from kvcheck.play.performing import perform
from kvcheck.play.random_programs import random_programs
from kvcheck.play.runner import Check, Runner
from kvcheck.play.steps import Program
from kvfast._implementation import FastImplementation
from kvref.implementation import ReferenceImplementation
from kvspec import _state_file
from kvspec.audit import unwrapped
from kvspec.codec import encode_manager_config
from kvspec.columns import columns_of
from kvspec.config import ManagerConfig
from kvspec.errors import (
    InvalidArgumentError,
    InvariantViolation,
    SavedStateError,
    UnsupportedError,
)
from kvspec.interface import Feature, Implementation, KVCacheManager
from kvspec.policy import Policy
from kvspec.request import RequestInput
from kvspec.saved import load, save
from kvspec.snapshot import Snapshot
from tests.commands import python
from tests.contract.builders import make_config
from tests.mistakes import of_kvfast
from tests.stand_ins import Lacks

IMPLEMENTATIONS: tuple[Implementation, ...] = (kvref.implementation(), kvfast.implementation())


def used(implementation: Implementation, config: ManagerConfig) -> KVCacheManager:
    """Return a manager with a running request, free cached blocks, and a key of two blocks."""
    manager = implementation.create(config)
    for name, tokens in (("a", 9), ("b", 9), ("r", 12)):
        request = implementation.make_request(manager, RequestInput(name, range(tokens)))
        manager.allocate_slots(request, tokens)
        if name != "r":
            manager.free(request)
    return manager


@pytest.fixture
def path(tmp_path: Path) -> Path:
    saved = tmp_path / "cache.state"
    save(used(IMPLEMENTATIONS[0], make_config(9)), saved)
    return saved


def reason(path: Path, **options: Any) -> str:
    found = []
    for implementation in IMPLEMENTATIONS:
        with pytest.raises(SavedStateError) as caught:
            load(implementation, path, **options)
        assert str(path) in str(caught.value)
        assert caught.value.advice in str(caught.value)
        found.append(caught.value.reason)
    assert found[0] == found[1]
    return found[0]


def signed(path: Path, changed: dict[str, Any], **members: Any) -> None:
    """Write a state with a right checksum, of a changed configuration and with other members."""
    config = {**encode_manager_config(make_config(9)), **changed}
    old = columns_of(used(IMPLEMENTATIONS[0], make_config(9)).snapshot())
    with path.open("wb") as file:
        _state_file.write_state(file, config, replace(old, rest=replace(old.rest, **members)))


@pytest.mark.rule("KV-MGR-20")
def test_equal_states_are_equal_bytes(path: Path, tmp_path: Path) -> None:
    other = tmp_path / "fast.state"
    save(used(IMPLEMENTATIONS[1], make_config(9)), other)
    assert other.read_bytes() == path.read_bytes()
    for implementation in IMPLEMENTATIONS:
        loaded = load(implementation, other, config=make_config(9))
        save(loaded, other)
        assert other.read_bytes() == path.read_bytes()


def test_a_file_that_is_cut_off_anywhere_is_refused(path: Path) -> None:
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(SavedStateError) as caught:
            load(IMPLEMENTATIONS[1], path)
        assert caught.value.reason == "cut off"
    assert reason(path) == "cut off"


def test_a_flipped_bit_anywhere_is_found(path: Path) -> None:
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :])
        with pytest.raises(SavedStateError) as caught:
            load(IMPLEMENTATIONS[1], path)
        assert caught.value.reason in ("cut off", "damaged", "no state")
    assert reason(path) in ("cut off", "damaged")


def test_another_version_is_named(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_state_file, "VERSION", 2)
    save(used(IMPLEMENTATIONS[0], make_config(9)), path)
    monkeypatch.undo()
    assert reason(path) == "version"


def test_what_is_no_state_is_refused(path: Path) -> None:
    path.write_text('{"type": "header"}\n')
    assert reason(path) == "no state"
    path.write_bytes(b"")
    assert reason(path) == "cut off"


def test_another_configuration_is_refused_and_what_differs_is_named(path: Path) -> None:
    config = make_config(9)
    others = {
        "num_blocks": make_config(10),
        "policy": replace(config, policy=Policy.vllm_0_24()),
        "hash_function": replace(config, hash_function="xxhash_cbor", trusted_tenants=True),
    }
    for name, other in others.items():
        assert reason(path, config=other) == "configuration"
        with pytest.raises(SavedStateError, match=name):
            load(IMPLEMENTATIONS[0], path, config=other)


def test_who_cannot_restore_is_refused_before_the_file_is_read(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError):
        load(Lacks(Feature.RESTORE), tmp_path / "none")


@pytest.mark.rule("KV-MGR-20")
def test_a_state_of_other_blocks_than_it_says_is_refused_at_once(path: Path) -> None:
    """Sign a file of 2^53 - 1 blocks: nothing of that size is allocated."""
    signed(path, {"num_blocks": 2**53 - 1}, num_blocks=2**53 - 1)
    assert reason(path) == "damaged"


@pytest.mark.rule("KV-MGR-20")
def test_a_state_that_breaks_an_invariant_is_damaged(path: Path) -> None:
    requests = used(IMPLEMENTATIONS[0], make_config(9)).snapshot().requests
    r = replace(requests["r"], num_cached_blocks=(7,))
    signed(path, {}, requests={**requests, "r": r})
    assert reason(path) == "damaged"


@pytest.mark.parametrize("planted", ["a link", "a pipe", "a second name"])
def test_what_others_put_beside_a_state_is_not_written_to(tmp_path: Path, planted: str) -> None:
    victim, partial = tmp_path / "victim", tmp_path / ".cache.state.partial"
    victim.write_text("keep me")
    if planted == "a link":
        partial.symlink_to(victim)
    elif planted == "a pipe":
        os.mkfifo(partial)
    else:
        partial.hardlink_to(victim)
    manager = used(IMPLEMENTATIONS[0], make_config(9))
    with pytest.raises(OSError, match=r"cache\.state"):
        save(manager, tmp_path / "cache.state")
    assert victim.read_text() == "keep me"
    assert not (tmp_path / "cache.state").exists()


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("free_queue", [1, 2]),
        ("free_queue", [99]),
        ("ref_counts", [0, 9]),
        ("ref_counts", [0, 9, 9, 9, 9, 9, 9, 9, 9]),
        ("covered_tokens", [7] * 9),
        ("key_blocks", [8, 1, 1, 1]),
        ("key_groups", [3]),
        ("rings", [2, 0, 99]),
        ("rings", [2, 0, 0]),
        ("rings", [9]),
    ],
)
def test_kvfast_takes_no_columns_that_do_not_fit(column: str, value: list[int]) -> None:
    """Refuse them also unchecked: an id outside the pool would index outside an array."""
    fast: Any = IMPLEMENTATIONS[1]
    manager = used(fast, make_config(9)).inner  # type: ignore[attr-defined]  # audited
    columns = manager.columns()
    old = getattr(columns, column)
    changed = value if len(value) == len(old) or column in ("free_queue", "rings") else None
    if changed is None:
        changed = [*value, *old.tolist()[len(value) :]]
    code = memoryview(old).format
    with pytest.raises(InvalidArgumentError):
        fast.restore_columns(manager.config, replace(columns, **{column: array(code, changed)}))


def killed(folder: Path, rounds: int, *more: str) -> dict[str, int]:
    done = python("-m", "tests.saved.killed", str(folder), str(rounds), *more, check=True)
    found: dict[str, int] = json.loads(done.stdout)
    return found


@pytest.mark.rule("KV-MGR-20")
def test_every_killed_writer_leaves_a_whole_state(tmp_path: Path) -> None:
    found = killed(tmp_path, 40)
    assert found["half beside it"] > 5, "hardly any was killed while it wrote"
    assert found["whole"] == 44
    assert set(found) == {"half beside it", "whole"}


def test_a_writer_in_place_is_found(tmp_path: Path) -> None:
    found = killed(tmp_path, 20, "--in-place")
    assert found.get("cut off", 0) > 0


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
    for program in islice(random_programs(7, 0, 60), most):
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
    for program in islice(random_programs(7, 0, 60), 60):
        fast = FastImplementation("uncompiled")
        runner = Runner(program, fast, ReferenceImplementation())
        perform(runner, program.steps)
        inner: Any = unwrapped(runner.subject.player.manager)
        assert inner.columns() == columns_of(runner.oracle.player.manager.snapshot())  # type: ignore[union-attr]  # there is one


@pytest.mark.parametrize("mistake", ["SharedKeysTurnInColumns", "TheQueueIsSavedFromItsEnd"])
def test_programs_find_mistakes_about_files(tmp_path: Path, mistake: str) -> None:
    with pytest.raises((InvariantViolation, AssertionError)):
        run(tmp_path, find(mistake, of_kvfast()).make(), crossed=True, most=30)
