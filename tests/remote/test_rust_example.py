"""The example in Rust: it compiles without a warning and conforms where it says it does."""

from __future__ import annotations

import shutil
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from kvcheck.cli import main
from kvcheck.discovery import find_implementation
from kvcheck.judge.options import BUDGETS, Options
from kvcheck.judge.suite import Suite
from kvcheck.play.verdicts import Level
from kvcheck.remote.client import RemoteImplementation
from tests.source import ROOT

SOURCE = ROOT / "examples/rust/src"

MISTAKES = (
    ("manager.rs", "computed - window + 1)", "computed - window + 2)", "KV-SW-1"),
    ("manager.rs", "(window - 1 + self.size", "(window + self.size", "KV-SW-2"),
    ("manager.rs", "entry.blocks.into_iter().rev()", "entry.blocks.into_iter()", "KV-POOL-8"),
    ("manager.rs", "as i64 - 1; // one token", "as i64; // one token", "KV-MGR-1"),
    ("manager.rs", "+ revived", "+ 0 * revived", "KV-GRP-4"),
    ("manager.rs", "end % self.config.alignment; // KV-COORD-13", "end % 1;", "KV-COORD-13"),
    ("pool.rs", "queue.push_front(block)", "queue.push_back(block)", "KV-POOL-6"),
    ("pool.rs", "copies[0]", "copies[copies.len() - 1]", "KV-POOL-13"),
    ("pool.rs", "self.queue.retain(|free| *free != block);", "", "KV-POOL-5"),
    ("sha256.rs", "0x100..=0xffff =>", "0x100..=0xfffe =>", "KV-HASH-2"),
)
"""One line each: the file, what stands there, what stands there by mistake, the rule it breaks."""


def build(folder: Path, source: Path) -> Path:
    compiler = shutil.which("rustc")
    if compiler is None:
        pytest.skip("no Rust compiler")
    program = folder / "server"
    flags = ("--edition", "2021", "-C", "opt-level=1", "-D", "warnings")
    subprocess.run((compiler, *flags, "-o", program, source / "main.rs"), check=True)
    return program


def broken_rules(program: Path, rules: tuple[str, ...] = ("*",)) -> tuple[list[str], int]:
    found = find_implementation(f"cmd+json:{program}")
    assert isinstance(found, RemoteImplementation)
    with closing(found):
        options = Options(Level.IDENTITY, dict(BUDGETS)["directed"], rules)
        report = Suite(found, find_implementation("kvref"), options).run()
    return list(dict.fromkeys(each.rule for each in report.violations)), report.directed


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("rust"), SOURCE)


def test_it_conforms_at_identity(server: Path) -> None:
    broken, directed = broken_rules(server)
    assert not broken
    assert directed > 90


def test_one_story_shows_every_answer_right(server: Path) -> None:
    assert main(["probe", f"cmd:{server}"]) == 0


@pytest.mark.deep
@pytest.mark.parametrize("mistake", MISTAKES, ids=[rule for *_, rule in MISTAKES])
def test_a_mistake_in_one_line_is_found(mistake: tuple[str, str, str, str], tmp_path: Path) -> None:
    file, there, wrong, _ = mistake
    source = Path(shutil.copytree(SOURCE, tmp_path / "src"))
    text = (source / file).read_text("utf-8")
    assert text.count(there) == 1, f"{there!r} stands {text.count(there)} times in {file}"
    (source / file).write_text(text.replace(there, wrong), "utf-8")
    assert broken_rules(build(tmp_path, source))[0]
