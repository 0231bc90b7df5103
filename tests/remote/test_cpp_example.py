"""The example in C++: it compiles without a warning and conforms where it says it does."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from kvcheck.cli import main
from kvcheck.discovery import find_implementation
from kvcheck.judge.options import Budget, Options
from kvcheck.judge.outcome import Report
from kvcheck.judge.suite import Suite
from kvcheck.play.verdicts import Level
from kvcheck.remote.client import RemoteImplementation
from kvspec.config import KVCacheConfig, KVCacheGroup, ManagerConfig
from kvspec.errors import ConfigError, UnsupportedError
from kvspec.interface import Feature
from kvspec.specs import (
    FullAttentionSpec,
    MLAAttentionSpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
)
from tests.remote.servers import FULL, MAMBA, WINDOW, config, request_input
from tests.source import ROOT

SOURCE = ROOT / "examples/cpp/server.cpp"
MISTAKES = (
    ("pool.hpp", "insert(front, block)", "insert(block ? queue.end() : front, block)", "KV-POOL-6"),
    ("pool.hpp", "found->second.front()", "found->second.back()", "KV-POOL-13"),
    ("pool.hpp", "forget(block);  // KV-POOL-4", "", "KV-POOL-4"),
    ("group.hpp", "config.window + 1, std", "config.window + 2, std", "KV-SW-1"),
    ("group.hpp", "ceiling(config.window - 1,", "ceiling(config.window,", "KV-SW-2"),
    ("group.hpp", "is_free(block); });", "is_free(block) && block < 0; });", "KV-GRP-4"),
    ("manager.hpp", "hit(request, request.num_tokens() - 1)", "hit(request, request.num_tokens())",
     "KV-MGR-1"),
    ("manager.hpp", "release({blocks.rbegin(), blocks.rend()})", "release(blocks)", "KV-POOL-8"),
    ("manager.hpp", "num_tokens - num_tokens % config.alignment", "num_tokens", "KV-COORD-13"),
    ("request.hpp", "start == 0 && !salt.empty()", "!salt.empty()", "KV-HASH-10"),
)  # fmt: skip
"""One line each: the file, what stands there, what stands there by mistake, the rule it breaks."""

SERVED = {FullAttentionSpec, MLAAttentionSpec, SlidingWindowSpec, SlidingWindowMLASpec}


def build(folder: Path, source: Path) -> Path:
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    program = folder / "server"
    flags = ("-std=c++17", "-O0", "-Wall", "-Wextra", "-Wpedantic", "-Werror")
    subprocess.run((compiler, *flags, "-o", program, source / "server.cpp"), check=True)
    return program


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("cpp"), SOURCE.parent)


@pytest.mark.deep
@pytest.mark.parametrize("mistake", MISTAKES, ids=[rule for *_, rule in MISTAKES])
def test_a_mistake_in_one_line_is_found(mistake: tuple[str, str, str, str], tmp_path: Path) -> None:
    file, there, wrong, _ = mistake
    source = Path(shutil.copytree(SOURCE.parent, tmp_path / "cpp"))
    text = (source / file).read_text("utf-8")
    assert text.count(there) == 1
    (source / file).write_text(text.replace(there, wrong), "utf-8")
    assert checked(build(tmp_path, source)).violations


@pytest.fixture(scope="module", params=["", "+json"], ids=["cbor", "json"])
def remote(server: Path, request: pytest.FixtureRequest) -> Iterator[RemoteImplementation]:
    with closing(remote_of(f"cmd{request.param}:{server}")) as found:
        yield found


def remote_of(name: str) -> RemoteImplementation:
    found = find_implementation(name)
    assert isinstance(found, RemoteImplementation)
    return found


def test_it_says_what_it_has(remote: RemoteImplementation) -> None:
    has = remote.capabilities
    assert has.spec_types == SERVED
    assert {Feature.MULTIPLE_GROUPS, Feature.EVENTS} <= has.features
    assert Feature.PLANNING not in has.features
    assert remote.planner is None


def checked(server: Path) -> Report:
    with closing(remote_of(f"cmd:{server}")) as remote:
        options = Options(Level.IDENTITY, Budget(0.0, 0))
        return Suite(remote, find_implementation("kvref"), options).run()


def test_it_conforms_in_every_directed_program(server: Path) -> None:
    report = checked(server)
    assert not report.violations
    assert report.directed > 200


@pytest.mark.deep
@pytest.mark.parametrize("level", list(Level))
def test_it_conforms_with_the_default_budget(
    server: Path, level: Level, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["check", f"cmd:{server}", "--level", level.value]
    assert main(command) == 0, capsys.readouterr().out


def test_a_refused_member_is_named_as_the_interface_names_it(remote: RemoteImplementation) -> None:
    spec = FullAttentionSpec(4, 1, 8, "float16")
    cache = KVCacheConfig(5, (KVCacheGroup(("layer.0",), spec),))
    with pytest.raises(ConfigError) as found:
        remote.create(ManagerConfig(cache, 32, scheduler_block_size_tokens=8))
    assert found.value.field == "scheduler_block_size_tokens"


def test_it_refuses_what_it_lacks(remote: RemoteImplementation) -> None:
    short = config(hash_function="sha256_cbor_64bit", trusted_tenants=True)
    lacking = (config(FULL, MAMBA), config(WINDOW, retention_interval_tokens=8), short)
    for unserved in lacking:
        with pytest.raises(UnsupportedError, match="cpp-example"):
            remote.create(unserved)
    manager = remote.create(config())
    with pytest.raises(UnsupportedError):
        remote.clone(manager)


def test_texts_and_large_tokens_survive(remote: RemoteImplementation) -> None:
    manager = remote.create(config())
    name = 'é "\\\n\t\x01 漢 😀'
    request = remote.make_request(manager, request_input(name))
    remote.append_tokens(manager, request, [2**63 - 1, 2**53 + 1, 0])
    assert manager.allocate_slots(request, 8) is not None
    assert set(manager.snapshot().requests) == {name}
    (event,) = manager.take_events()
    assert getattr(event, "token_ids") == (1, 2, 3, 4, 5, 2**63 - 1, 2**53 + 1, 0)  # noqa: B009


def test_the_example_in_the_protocol_is_what_it_answers(server: Path) -> None:
    text = (ROOT / "spec/protocol.md").read_text(encoding="utf-8")
    lines = re.findall(r"^([<>]) (.*)$", text, re.MULTILINE)
    sent = "".join(f"{line}\n" for mark, line in lines if mark == ">")
    done = subprocess.run([str(server)], input=sent, capture_output=True, text=True, check=True)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    expected = [json.loads(line) for mark, line in lines if mark == "<"]
    for answer, right in zip(answers[1:], expected[1:], strict=True):
        if "error" in right:  # its words are its own
            right["error"]["message"] = answer["error"]["message"]
        assert answer == right


@pytest.mark.parametrize("junk", ["{", "{}x\n", "[]\n", "\0\0\0\1\xff", "\0\0\0\2\xa1", "\xff\xff"])
def test_junk_ends_it_with_status_2(server: Path, junk: str) -> None:
    done = subprocess.run(
        [str(server)], input=junk.encode("latin-1"), capture_output=True, check=False
    )
    assert done.returncode == 2
    assert b"bad_message" in done.stdout
