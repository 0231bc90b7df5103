"""A tier on a disk whose process is killed at each of its writes: what is found is whole."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import cast

import pytest

from kvcheck.discovery import find_offload
from kvfast.disk import DiskTier
from kvspec.errors import InvalidArgumentError
from kvspec.offload import Found, OffloadConfig, WholeOffloadManager
from tests.source import ROOT

NUM_CHUNKS, NUM_MOMENTS = 3, 40
KEYS = (0, 1, 2, 1, 3, 1, 0, 0)
"""The numbers of the keys that the child stores."""

CHILD = """
import os, signal, sys, types
folder, moment, there, wrong = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
source = open(sys.argv[5], encoding="utf-8").read()
if there:
    assert source.count(there) == 1, there
    source = source.replace(there, wrong)
left = [moment]

def deadly(name):
    right = getattr(os, name)
    def call(*args, **named):
        if left[0] == 0:
            if name == "write":
                right(args[0], args[1][: len(args[1]) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        left[0] -= 1
        return right(*args, **named)
    return call

say = os.write
module = types.ModuleType("disk")
sys.modules["disk"] = module
for name in ("write", "fsync", "replace", "unlink"):
    setattr(os, name, deadly(name))
exec(compile(source, "disk.py", "exec"), module.__dict__)
tier = module.DiskTier(folder, int(sys.argv[6]))
for number, key in enumerate(map(int, sys.argv[7:])):
    tier.store(b"k%d" % key, bytes([number]) * 5000)
    say(1, b"s")
    if number % 2:
        tier.flush()
        say(1, b"f")
"""
"""Dies at the operation `moment`, half of a write done; tells what was stored and flushed."""

MISTAKES = (
    ('f"{key.hex()}.new"', "key.hex()"),
    ("os.replace(temporary", "self._path(key).unlink(missing_ok=True); os.replace(temporary"),
    ("len(self._keys) >= self._num_chunks:", "len(self._keys) >= self._num_chunks - 1:"),
)
"""What stands in kvfast/disk.py, and what stands there by mistake."""


def content(number: int) -> bytes:
    return bytes([number]) * 5000


def kept(num_stores: int) -> dict[bytes, int]:
    """Return the number of the store that each key is from, after so many stores."""
    found: dict[bytes, int] = {}
    for number, name in enumerate(KEYS[:num_stores]):
        key = b"k%d" % name
        found.pop(key, None)
        if len(found) == NUM_CHUNKS:
            found.pop(next(iter(found)))
        found[key] = number
    return found


def problem(folder: Path, moment: int, mistake: tuple[str, str] = ("", "")) -> str:
    """Return what is wrong in the folder of a process that died at this moment, or ""."""
    file = ROOT / "kvfast/disk.py"
    command = [sys.executable, "-c", CHILD, str(folder), str(moment), *mistake, str(file)]
    command += map(str, (NUM_CHUNKS, *KEYS))
    said = subprocess.run(command, stdout=subprocess.PIPE, check=False, cwd=ROOT).stdout.decode()
    num_stored, num_flushed = said.count("s"), said.rpartition("f")[0].count("s")
    before = kept(num_flushed)
    later = [kept(n) for n in range(num_flushed, min(num_stored + 1, len(KEYS)) + 1)]
    tier = DiskTier(folder, NUM_CHUNKS)
    if [path.name for path in folder.iterdir() if path.suffix]:
        return "temporary files stay"
    for number in range(4):
        key = b"k%d" % number
        is_hit, found = tier.lookup(key) == Found.HIT, tier.load(key)
        if is_hit and found is None:
            return f"{key!r} is torn"
        stored = [content(n) for n, name in enumerate(KEYS) if name == number]
        if found is not None and found not in stored:
            return f"{key!r} has what was never stored"
        if found is None and all(key in each for each in later):
            return f"{key!r} was flushed, and is lost"
        is_same = key in before and all(each.get(key) == before[key] for each in later)
        if is_same and found != content(before[key]):
            return f"{key!r} has another content than was flushed"
    return ""


@pytest.mark.parametrize("moment", range(0, NUM_MOMENTS, 8))
def test_a_tier_whose_process_is_killed_is_whole(moment: int, tmp_path: Path) -> None:
    assert problem(tmp_path, moment) == ""


@pytest.mark.deep
def test_a_tier_is_whole_at_every_moment(tmp_path: Path) -> None:
    found = {n: problem(tmp_path / str(n), n) for n in range(NUM_MOMENTS)}
    assert {n: each for n, each in found.items() if each} == {}


@pytest.mark.deep
@pytest.mark.parametrize("mistake", MISTAKES, ids=["in place", "unlinked", "one less"])
def test_a_mistake_is_found_at_some_moment(mistake: tuple[str, str], tmp_path: Path) -> None:
    found = (problem(tmp_path / str(n), n, mistake) for n in range(NUM_MOMENTS))
    assert any(found)


def restarted(name: str, folder: Path) -> list[bytes | None]:
    """Store, flush and stop, with a disk behind the manager; return what a new one loads of it."""
    keys, disk = [b"a", b"b", b"c"], DiskTier(folder, 4)
    manager = find_offload(name).make_offload(OffloadConfig(4, (disk,), write_back=True))
    manager.new_request("r")
    stored = manager.prepare_store(keys, "r")
    assert stored is not None
    content = {place: b"content of " + key for key, place in zip(keys, stored.places, strict=True)}
    manager.complete_store(keys, "r")
    cast(WholeOffloadManager, manager).flush()
    for transfer in manager.end_step():
        for key, place in zip(transfer.keys, transfer.places, strict=True):
            disk.store(key, content[place])
        manager.finish_transfer(transfer.number)
    disk.flush()
    disk = DiskTier(folder, 4)
    manager = find_offload(name).make_offload(OffloadConfig(4, (disk,), write_back=True))
    manager.new_request("r")
    found = [manager.lookup(key, "r") for key in keys]
    loaded = {key: disk.load(key) for each in manager.end_step() for key in each.keys}
    assert [each == Found.PENDING for each in found] == [key in loaded for key in keys]
    return [loaded.get(key) for key in keys]


@pytest.mark.parametrize("name", ["kvref", "kvfast"])
def test_what_was_flushed_is_found_after_a_restart(name: str, tmp_path: Path) -> None:
    assert restarted(name, tmp_path) == [b"content of a", b"content of b", b"content of c"]


def test_a_flush_that_leaves_one_out_is_found_after_a_restart(tmp_path: Path) -> None:
    found = restarted("mistake:FlushesAllButTheLast", tmp_path)
    assert found == [None, b"content of b", b"content of c"]


def test_what_is_damaged_is_a_miss(tmp_path: Path) -> None:
    tier = DiskTier(tmp_path, 2)
    tier.store(b"a", b"content")
    path = tmp_path / b"a".hex()
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    assert DiskTier(tmp_path, 2).load(b"a") is None
    path.write_bytes(b"?")
    assert DiskTier(tmp_path, 2).lookup(b"a") == Found.MISS
    assert list(tmp_path.iterdir()) == []


def test_the_least_recently_used_chunk_is_evicted_after_a_restart_too(tmp_path: Path) -> None:
    tier = DiskTier(tmp_path, 2)
    tier.store(b"a", b"1")
    tier.store(b"b", b"2")
    assert tier.load(b"a") == b"1"
    tier = DiskTier(tmp_path, 2)
    tier.store(b"c", b"3")
    assert [tier.load(key) for key in (b"a", b"b", b"c")] == [b"1", None, b"3"]
    with pytest.raises(InvalidArgumentError, match="key"):
        tier.store(b"", b"")
    with pytest.raises(InvalidArgumentError, match="num_chunks"):
        DiskTier(tmp_path, 0)
