"""The monitor's arguments, page and memory; managers without states; no false alarm."""

from __future__ import annotations

import copy
import gc
import json
import os
import re
import shutil
import subprocess
import sys
import tracemalloc
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from typing import Any

import pytest

import kvcheck
from examples.own_manager.final import MyImplementation, MyManager
from kvcheck.judge.inside_programs import inside_programs
from kvcheck.play.random_programs import random_programs
from kvcheck.play.steps import Program
from kvcheck.play.verdicts import Level, first_violation
from kvcheck.records.select import shipped_records
from kvcheck.records.trace import replay_trace
from kvcheck.rules.bench import Bench
from kvcheck.rules.notation.playing import Play
from kvcheck.watch import Monitor
from kvcheck.watch.writing import UnrecordableError
from kvref.implementation import ReferenceImplementation
from kvspec.config import KVCacheConfig, KVCacheGroup, ManagerConfig
from kvspec.errors import InvalidArgumentError, MonitorViolation
from kvspec.interface import Implementation, KVCacheManager
from kvspec.policy import Policy
from kvspec.record import Header
from kvspec.record_file import read_header
from kvspec.request import RequestInput
from kvspec.specs import FullAttentionSpec
from tests.cases import Case, cases, words
from tests.commands import kvspec, python
from tests.mistakes import mistaken
from tests.monitor.test_twins import Engine, config
from tests.programs import SCENARIOS
from tests.source import ROOT
from tests.stand_ins import LeaksTheFirst

REFERENCE = ReferenceImplementation()


def test_copies_are_not_watched() -> None:
    monitor = kvcheck.monitor(REFERENCE.create(config()))
    clone = REFERENCE.clone(monitor)
    assert not isinstance(clone, Monitor)
    request = REFERENCE.make_request(monitor, RequestInput("r", range(6)))
    monitor.allocate_slots(request, 6)
    assert clone.num_free_blocks == 9
    assert not isinstance(copy.deepcopy(monitor), Monitor)


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"every": 0}, "every"),
        ({"every": True}, "every"),
        ({"every": 1.5}, "every"),
        ({"history": 0}, "history"),
        ({"on_violation": "log"}, "on_violation"),
        ({"manager": object()}, "manager"),
    ],
)
def test_arguments_out_of_their_domain_are_refused(arguments: dict[str, Any], field: str) -> None:
    given = {"manager": REFERENCE.create(config()), **arguments}
    with pytest.raises(InvalidArgumentError) as found:
        kvcheck.monitor(**given)
    assert found.value.field == field


def test_importing_the_package_does_not_import_it() -> None:
    code = (
        "import sys, kvcheck; before = 'kvcheck.watch' in sys.modules; kvcheck.monitor;"
        " print(before, sorted({'hypothesis', 'click', 'rich', 'kvref'} & set(sys.modules)))"
    )
    done = python("-c", code, check=True)
    assert done.stdout == "False []\n"
    with pytest.raises(AttributeError, match="no attribute 'observe'"):
        _ = kvcheck.observe  # type: ignore[attr-defined]  # that is the point


TEXT = (ROOT / "docs/monitor.md").read_text(encoding="utf-8")
(EXAMPLE,) = re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


def test_the_example_prints_what_it_says(tmp_path: Path) -> None:
    environment = {**os.environ, "KVSPEC_MONITOR_DIR": str(tmp_path)}
    done = python("-c", EXAMPLE, folder=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == re.findall(r"^ *print\(.*\)  # (.*)$", EXAMPLE, re.MULTILINE)
    record = tmp_path / "kvspec-violation-KV-POOL-15.jsonl"
    (command,) = re.findall(r"^\$ kvspec (.*)$", TEXT, re.MULTILINE)
    assert record.name in command
    replay = kvspec(tmp_path, *command.split())
    assert replay.returncode == 1, replay.stderr


@dataclass(frozen=True)
class Held:
    measured: int
    estimated: int


def most_held(steps: tuple[int, int], every: int, history: int) -> tuple[Held, Held]:
    """Return the most memory held during the first of these steps, and during the second."""
    monitor: Monitor = kvcheck.monitor(
        REFERENCE.create(config(), check_invariants=False), every, history=history
    )
    engine = Engine(REFERENCE, monitor)
    engine.run(2)  # what is imported and cached once is not the monitor's
    tracemalloc.start()
    try:
        found = []
        for count in steps:
            measured = 0
            for _ in range(count // 5):
                engine.run(5)
                gc.collect()  # unreachable objects are not held, though not yet freed
                measured = max(measured, tracemalloc.get_traced_memory()[0])
            found.append(Held(measured, monitor.report().peak_memory_bytes))
    finally:
        tracemalloc.stop()
    assert monitor.report().violation is None
    return found[0], found[1]


@pytest.mark.parametrize("every", [10, pytest.param(1, marks=pytest.mark.deep)])
def test_a_longer_run_holds_no_more(every: int) -> None:
    early, late = most_held((60, 100), every, history=40)
    assert late.measured < 1.25 * early.measured
    assert late.estimated < 1.25 * early.estimated


def test_the_measure_sees_what_grows() -> None:
    early, late = most_held((20, 60), 10, history=1_000_000)
    assert late.measured > 2 * early.measured
    assert late.estimated > 2 * early.estimated


@pytest.mark.deep
def test_the_estimate_is_of_the_right_size() -> None:
    _, late = most_held((20, 30), 1, history=100)
    assert late.measured / 3 < late.estimated < late.measured * 3


class Monitored:
    """kvref, or one with a mistake: every manager has a monitor; the last one's is `monitor`."""

    monitor: Monitor

    def __init__(self, every: int, folder: Path, inner: Implementation = REFERENCE) -> None:
        self.every, self.folder, self.inner = every, folder, inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def create(self, config: ManagerConfig, **options: Any) -> KVCacheManager:
        manager = self.inner.create(config, **options | {"check_invariants": False})
        self.monitor = kvcheck.monitor(
            manager, self.every, history=20, on_violation=lambda violation: None, record=self.folder
        )
        return self.monitor


@pytest.mark.parametrize("case", cases(__file__, "watched.txt"), ids=str)
def test_a_monitor_tells_what_is_wrong_and_where(case: Case, tmp_path: Path) -> None:
    (name,), options = words(case.given[0])
    inner = REFERENCE if name == "kvref" else mistaken(name)
    subject = Monitored(options["every"], tmp_path, inner)
    play = Play(Bench(subject, Policy(), audits=False, guards=False))
    for line in case.given[1:]:
        play.line(line)
        found = subject.monitor.report().violation
        if found is not None:
            case.expect([line, f"{found.rule} {found.invariant}, {found.call}: {found.detail}"])
            return
    case.expect(["nothing"])


@pytest.mark.parametrize("every", [1, pytest.param(3, marks=pytest.mark.deep)])
@pytest.mark.parametrize("program", SCENARIOS, ids=lambda program: str(program.name))
def test_no_directed_program_raises_an_alarm(program: Program, every: int, tmp_path: Path) -> None:
    subject = Monitored(every, tmp_path)
    assert first_violation(program, subject, Level.SAFETY) is None
    report = subject.monitor.report()
    assert report.violation is None
    assert report.operations > 0


def test_no_random_program_raises_an_alarm(tmp_path: Path) -> None:
    for program in random_programs(1, 0, 40):
        subject = Monitored(1, tmp_path)
        first_violation(program, subject, Level.SAFETY)
        assert subject.monitor.report().violation is None, program


def test_no_program_of_what_came_later_raises_an_alarm(tmp_path: Path) -> None:
    inside = islice(inside_programs(1, 0, 40), 24)
    drawn = (each for batch in count() for each in random_programs(1, batch, 40))
    rswa = islice((each for each in drawn if has_rswa(each.config)), 4)
    for program in (*inside, *rswa):
        subject = Monitored(1, tmp_path)
        first_violation(program, subject, Level.SAFETY)
        assert subject.monitor.report().violation is None, program


def has_rswa(config: ManagerConfig) -> bool:
    return any(spec.rswa_window for spec in config.managed_specs)


RECORDS = tuple(
    pytest.param(path, id=path.stem)
    for path in sorted(shipped_records().rglob("*.jsonl"))
    if isinstance(header := read_header(path), Header) and header.raises is None
)


@pytest.mark.parametrize("path", RECORDS)
def test_shipped_records_replay_under_a_monitor(path: Path, tmp_path: Path) -> None:
    subject = Monitored(1, tmp_path)
    result = replay_trace(path, subject)
    assert result.mismatch is None, result.mismatch.render()
    assert subject.monitor.report().violation is None


SPEC = FullAttentionSpec(block_size=4, num_kv_heads=1, head_size=8, dtype="float16")
CONFIG = ManagerConfig(
    KVCacheConfig(num_blocks=6, groups=(KVCacheGroup(("layer.0",), SPEC),)), max_model_len_tokens=64
)

SCRIPT = """
import sys
from pathlib import Path
import kvcheck
from examples.own_manager.final import implementation
from kvspec.config import KVCacheConfig, KVCacheGroup, ManagerConfig
from kvspec.request import RequestInput
from kvspec.specs import FullAttentionSpec

spec = FullAttentionSpec(block_size=4, num_kv_heads=1, head_size=8, dtype="float16")
cache = KVCacheConfig(num_blocks=6, groups=(KVCacheGroup(("layer.0",), spec),))
own = implementation()
manager = kvcheck.monitor(own.create(ManagerConfig(cache, max_model_len_tokens=64)))
for name in ("first", "second"):
    request = own.make_request(manager, RequestInput(name, range(10)))
    hit = manager.get_computed_blocks(request)
    manager.allocate_slots(
        request,
        10 - hit.hit_length_tokens,
        num_new_computed_tokens=hit.hit_length_tokens,
        new_computed_blocks=hit.blocks,
    )
    manager.free(request)
print(manager.write_record(Path(sys.argv[1])))
"""


def interpreter(version: str) -> list[str]:
    """Return the command of this Python, also from pyenv without its path; else skip."""
    if version == "{}.{}".format(*sys.version_info):
        return [sys.executable]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = [str(path) for path in pyenv.glob(f"{version}.*/bin/python")]
    for command in (*found, shutil.which(f"python{version}")):
        if command is None:
            continue
        said = subprocess.run([command, "-c", "print(1)"], capture_output=True, check=False)
        if said.returncode == 0:
            return [command]
    pytest.skip(f"no Python {version} here")


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_the_manager_of_the_page_is_watched_on_each_python(version: str, tmp_path: Path) -> None:
    record = tmp_path / "run.jsonl"
    paths = {"PYTHONPATH": f"{ROOT / 'spec'}{os.pathsep}{ROOT}"}
    ran = subprocess.run(
        [*interpreter(version), "-c", SCRIPT, str(record)],
        env={**os.environ, **paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stdout) == (0, "8\n"), ran.stderr
    header = json.loads(record.read_text().splitlines()[0])
    assert (header["version"], header["initial"]) == (2, None)
    result = replay_trace(record, own())
    assert (result.passed, result.compared) == (True, 8)


def own(manager_class: type[MyManager] = MyManager) -> Implementation:
    made = type("Own", (MyImplementation,), {"manager_class": manager_class})()
    found: Implementation = made
    return found


def watching(tmp_path: Path, manager: KVCacheManager, history: int = 500) -> KVCacheManager:
    return kvcheck.monitor(manager, record=tmp_path, history=history)


def test_a_violation_of_such_a_manager_has_a_record(tmp_path: Path) -> None:
    subject = own(LeaksTheFirst)
    manager = watching(tmp_path, subject.create(CONFIG))
    request = subject.make_request(manager, RequestInput("r", range(10)))
    manager.allocate_slots(request, 10)
    with pytest.raises(MonitorViolation) as found:
        manager.free(request)
    assert found.value.rule == "KV-POOL-15"
    assert found.value.record is not None
    assert replay_trace(found.value.record, own(LeaksTheFirst)).passed
    mismatch = replay_trace(found.value.record, own()).mismatch
    assert mismatch is not None
    assert [difference.field for difference in mismatch.differences] == ["num_free_blocks", "usage"]


@pytest.mark.parametrize(("history", "reason"), [(3, "too many calls"), (500, "in use already")])
def test_no_record_begins_where_nobody_knows_the_state(
    tmp_path: Path, history: int, reason: str
) -> None:
    subject = own()
    manager = subject.create(CONFIG)
    request = subject.make_request(manager, RequestInput("r", range(10)))
    if reason == "in use already":
        manager.allocate_slots(request, 10)
    manager = watching(tmp_path, manager, history=history)
    for _ in range(8):
        manager.take_events()
    with pytest.raises(UnrecordableError, match=reason):
        manager.write_record(tmp_path / "r.jsonl")  # type: ignore[attr-defined]  # of the monitor
