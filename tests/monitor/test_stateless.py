"""A manager that shows no state is watched, and recorded: that of docs/implement-your-own.md.

Also on the other Pythons that are here: what a protocol asks of a class differs between them.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import kvcheck
from examples.own_manager.final import MyImplementation, MyManager
from kvcheck.records.trace import replay_trace
from kvcheck.watch.writing import UnrecordableError
from kvspec.config import KVCacheConfig, KVCacheGroup, ManagerConfig
from kvspec.errors import InvalidArgumentError, MonitorViolation
from kvspec.interface import Implementation, KVCacheManager
from kvspec.request import RequestInput
from kvspec.specs import FullAttentionSpec
from tests.source import ROOT

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


class Leaks(MyManager):
    def free(self, request: object) -> None:
        self.tables.get(request.request_id, [])[:1] = []  # type: ignore[attr-defined]
        super().free(request)  # type: ignore[arg-type]


def own(manager_class: type[MyManager] = MyManager) -> Implementation:
    made = type("Own", (MyImplementation,), {"manager_class": manager_class})()
    found: Implementation = made
    return found


def watched(tmp_path: Path, manager: KVCacheManager, history: int = 500) -> KVCacheManager:
    return kvcheck.monitor(manager, record=tmp_path, history=history)


def test_a_violation_of_such_a_manager_has_a_record(tmp_path: Path) -> None:
    subject = own(Leaks)
    manager = watched(tmp_path, subject.create(CONFIG))
    request = subject.make_request(manager, RequestInput("r", range(10)))
    manager.allocate_slots(request, 10)
    with pytest.raises(MonitorViolation) as found:
        manager.free(request)
    assert found.value.rule == "KV-POOL-15"
    assert found.value.record is not None
    assert replay_trace(found.value.record, own(Leaks)).passed
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
    manager = watched(tmp_path, manager, history=history)
    for _ in range(8):
        manager.take_events()
    with pytest.raises(UnrecordableError, match=reason):
        manager.write_record(tmp_path / "r.jsonl")  # type: ignore[attr-defined]  # of the monitor


def test_what_has_not_even_the_base_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="must be a KVCacheManager"):
        kvcheck.monitor(object())  # type: ignore[arg-type]
