"""The examples in C++ and Rust: they compile without a warning and conform where they say it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from kvcheck.cli import main
from kvcheck.discovery import find_implementation
from kvcheck.judge.options import BUDGETS, Options
from kvcheck.judge.suite import Suite
from kvcheck.play.verdicts import Level
from kvcheck.remote.client import RemoteImplementation
from kvspec.errors import UnsupportedError
from tests.cases import cases
from tests.remote.servers import FULL, MAMBA, WINDOW, config, request_input
from tests.source import ROOT


@dataclass(frozen=True)
class Example:
    """`mistakes`, of one line each: the file, what stands there, what by mistake, the rule."""

    source: Path
    main: str
    compiler: str
    flags: tuple[str, ...]
    mistakes: tuple[tuple[str, str, str, str], ...]

    def build(self, folder: Path, source: Path | None = None) -> Path:
        if shutil.which(self.compiler) is None:
            pytest.skip(f"no {self.compiler}")
        program = folder / "server"
        place = (source or self.source) / self.main
        subprocess.run((self.compiler, *self.flags, "-o", program, place), check=True)
        return program


def mistakes(language: str) -> tuple[tuple[str, str, str, str], ...]:
    found = []
    for each in cases(__file__, "mistakes.txt"):
        spoken, file, rule = each.name.split()
        there, wrong = (*each.given, "")[:2]
        if spoken == language:
            found.append((file, there, wrong, rule))
    return tuple(found)


CPP = Example(
    ROOT / "examples/cpp",
    "server.cpp",
    "g++",
    ("-std=c++17", "-O0", "-Wall", "-Wextra", "-Wpedantic", "-Werror"),
    mistakes("cpp"),
)
RUST = Example(
    ROOT / "examples/rust/src",
    "main.rs",
    "rustc",
    ("--edition", "2021", "-C", "opt-level=1", "-D", "warnings"),
    mistakes("rust"),
)
MISTAKES = [
    pytest.param(example, mistake, id=f"{example.main}-{mistake[3]}")
    for example in (CPP, RUST)
    for mistake in example.mistakes
]


def broken_rules(program: Path, rules: tuple[str, ...] = ("*",)) -> tuple[list[str], int]:
    with closing(remote_of(f"cmd+json:{program}")) as found:
        options = Options(Level.IDENTITY, dict(BUDGETS)["directed"], rules)
        report = Suite(found, find_implementation("kvref"), options).run()
    return list(dict.fromkeys(each.rule for each in report.violations)), report.directed


def remote_of(name: str) -> RemoteImplementation:
    found = find_implementation(name)
    assert isinstance(found, RemoteImplementation)
    return found


@pytest.fixture(scope="module")
def cpp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return CPP.build(tmp_path_factory.mktemp("cpp"))


@pytest.fixture(scope="module")
def rust(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return RUST.build(tmp_path_factory.mktemp("rust"))


@pytest.mark.parametrize(("language", "least"), [("cpp", 200), ("rust", 90)])
def test_it_conforms_at_identity(language: str, least: int, request: pytest.FixtureRequest) -> None:
    program: Path = request.getfixturevalue(language)
    broken, directed = broken_rules(program)
    assert not broken
    assert directed > least
    assert main(["probe", f"cmd:{program}"]) == 0


@pytest.mark.deep
@pytest.mark.parametrize(("example", "mistake"), MISTAKES)
def test_a_mistake_in_one_line_is_found(
    example: Example, mistake: tuple[str, str, str, str], tmp_path: Path
) -> None:
    file, there, wrong, _ = mistake
    source = Path(shutil.copytree(example.source, tmp_path / "source"))
    text = (source / file).read_text("utf-8")
    assert text.count(there) == 1, f"{there!r} stands {text.count(there)} times in {file}"
    (source / file).write_text(text.replace(there, wrong), "utf-8")
    assert broken_rules(example.build(tmp_path, source))[0]


@pytest.mark.deep
@pytest.mark.parametrize("level", list(Level))
def test_it_conforms_with_the_default_budget(
    cpp: Path, level: Level, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["check", f"cmd:{cpp}", "--level", level.value]
    assert main(command) == 0, capsys.readouterr().out


@pytest.fixture(scope="module", params=["", "+json"], ids=["cbor", "json"])
def remote(cpp: Path, request: pytest.FixtureRequest) -> Iterator[RemoteImplementation]:
    with closing(remote_of(f"cmd{request.param}:{cpp}")) as found:
        yield found


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


def test_the_example_in_the_protocol_is_what_it_answers(cpp: Path) -> None:
    text = (ROOT / "spec/protocol.md").read_text(encoding="utf-8")
    lines = re.findall(r"^([<>]) (.*)$", text, re.MULTILINE)
    sent = "".join(f"{line}\n" for mark, line in lines if mark == ">")
    done = subprocess.run([str(cpp)], input=sent, capture_output=True, text=True, check=True)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    expected = [json.loads(line) for mark, line in lines if mark == "<"]
    for answer, right in zip(answers[1:], expected[1:], strict=True):
        if "error" in right:  # its words are its own
            right["error"]["message"] = answer["error"]["message"]
        assert answer == right


@pytest.mark.parametrize("junk", ["{", "{}x\n", "[]\n", "\0\0\0\1\xff", "\0\0\0\2\xa1", "\xff\xff"])
def test_junk_ends_it_with_status_2(cpp: Path, junk: str) -> None:
    done = subprocess.run(
        [str(cpp)], input=junk.encode("latin-1"), capture_output=True, check=False
    )
    assert done.returncode == 2
    assert b"bad_message" in done.stdout
