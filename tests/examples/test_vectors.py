"""The archive that `kvspec vectors` writes, and its readers in other languages."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from kvcheck.cli import main
from kvcheck.remote.calls import Session
from kvcheck.remote.server import answer
from kvcheck.tools.archive import files, set_names
from kvref import implementation
from tests.remote.test_example_servers import RUST
from tests.source import ROOT

SETS = ("groups", "long", "pool", "sliding_window")
READERS = ROOT / "examples/vectors"


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vectors") / "vectors"
    assert main(["vectors", "-o", str(folder), *(f"--set={name}" for name in SETS)]) == 0
    return folder


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def run(archive: Path, folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command on the archive in a folder of examples; skip without its program."""
    if shutil.which(command[0]) is None:
        pytest.skip(f"no {command[0]}")
    scratch = archive.parent / "build"
    places = {"KV_VECTORS": str(archive), "CARGO_TARGET_DIR": str(scratch)}
    places |= {"GOCACHE": str(scratch / "go"), "GOFLAGS": "-mod=mod"}
    return subprocess.run(
        command, cwd=folder, env=os.environ | places, capture_output=True, text=True, check=False
    )


def test_each_file_is_what_the_index_says(archive: Path) -> None:
    head, *entries = read(archive / "index.jsonl")
    assert (head["format"], head["version"]) == ("kvspec-conversations", 1)
    for entry in entries:
        content = (archive / entry["file"]).read_bytes()
        assert hashlib.sha256(content).hexdigest() == entry["sha256"]
        assert content.count(b"\n") == entry["lines"]
    found = {str(path.relative_to(archive)) for path in archive.glob("*/*.jsonl")}
    assert found == {entry["file"] for entry in entries}
    assert {name.split("/")[0] for name in found} == set(SETS)


def test_the_readme_tells_every_member_of_a_line(archive: Path) -> None:
    text = (archive / "README.md").read_text(encoding="utf-8")
    _, *entries = read(archive / "index.jsonl")
    lines = [line for entry in entries for line in read(archive / entry["file"])]
    members = {name for each in (*entries, *lines) for name in each}
    assert [name for name in members if f"`{name}`" not in text] == []


@pytest.mark.parametrize("name", ["pool/01", "sliding_window/*"])
def test_the_reference_answers_as_the_conversations_say(name: str, archive: Path) -> None:
    for path in sorted(archive.glob(f"{name}.jsonl")):
        session = Session(implementation())
        for line in read(path):
            given = json.loads(json.dumps(answer(session, line["message"])))
            if "errors" in line:
                assert given["error"]["class"] in line["errors"]
            else:
                assert given["result"] == line.get("result", given["result"])


def test_an_archive_has_the_same_bytes_each_time(tmp_path: Path) -> None:
    once, again = (dict(files(("rswa",))) for _ in range(2))
    assert once == again
    assert {"README.md", "index.jsonl", "rswa/01.jsonl"} <= set(once)


def test_a_set_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["vectors", "-o", "nowhere", "--set", "none"]) == 2
    assert f"no chapter 'none'; known: {', '.join(set_names())}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("folder", "command"),
    [
        ("rust", "cargo test --offline -- --nocapture"),
        ("vectors/go", "go test -v ./..."),
        ("vectors/node", "node --test"),
    ],
)
def test_readers_follow_them_and_find_a_mistake(archive: Path, folder: str, command: str) -> None:
    done = run(archive, ROOT / "examples" / folder, *command.split())
    assert done.returncode == 0, done.stdout + done.stderr
    assert "conversations followed" in done.stdout


@pytest.mark.deep
def test_the_example_in_cpp_follows_them(archive: Path, tmp_path: Path) -> None:
    flags = ("-std=c++17", "-O0", "-Wall", "-Wextra", "-Wpedantic", "-Werror")
    built = run(archive, READERS, "g++", *flags, "-o", str(tmp_path / "check"), "check.cpp")
    assert built.returncode == 0, built.stderr
    done = run(archive, READERS, str(tmp_path / "check"), str(archive))
    assert done.returncode == 0, done.stderr
    assert "conversations followed" in done.stdout


@pytest.mark.deep
def test_the_vectors_alone_find_mistakes_of_one_line(tmp_path: Path) -> None:
    whole = tmp_path / "vectors"
    assert main(["vectors", "-o", str(whole)]) == 0
    shutil.copytree(READERS, tmp_path / "examples/vectors")
    missed = []
    for number, (file, there, wrong, rule) in enumerate(RUST.mistakes):
        project = tmp_path / f"examples/rust{number}"
        shutil.copytree(ROOT / "examples/rust", project)
        text = (project / "src" / file).read_text(encoding="utf-8")
        (project / "src" / file).write_text(text.replace(there, wrong), encoding="utf-8")
        done = run(whole, project, "cargo", "test", "--offline")
        if done.returncode == 0:
            missed.append(rule)
    assert missed == []
