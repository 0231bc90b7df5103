"""`kvspec bench`: tables, JSON, and one line for whatever is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvref import ReferenceImplementation
from kvspec.bench.calls import Calls, contract_calls
from kvspec.cli import main
from kvspec.interface import Capabilities, KVCacheManager
from tests.bench.toy import PLAN, shorter_hits

BROKEN = "tests.bench.test_command:Broken"


class Broken(ReferenceImplementation):
    """Finds a block less than is cached."""

    def bench_calls(self, manager: KVCacheManager) -> Calls:
        """The broken calls."""
        return shorter_hits(contract_calls(self, manager))


class Hashless(ReferenceImplementation):
    """Tells prefixes apart in its own way."""

    @property
    def capabilities(self) -> Capabilities:
        """No hash function."""
        whole = ReferenceImplementation().capabilities
        return Capabilities("h", "1", whole.spec_types, frozenset(), whole.features)


@pytest.fixture(autouse=True)
def small_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvspec.cli.bench.full_plan", lambda sections: PLAN)
    monkeypatch.setattr("kvspec.cli.bench.quick_plan", lambda sections: PLAN)


def test_the_tables_name_phases_units_cases_and_subjects(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Only their form: how long anything took is not a matter of tests."""
    other = "kvref:implementation"
    assert main(["bench", "--impl", "kvref", "--impl", other, "--quick"]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    for title in (
        *("look up, ns per request", "allocate + cache, ns per block", "free, ns per block"),
        *("append, ns per request", "decode step, ns per request", "as the pool grows, cold"),
    ):
        assert title in shown.out
    assert shown.out.count("2 × 64 tokens   ") == 1  # hashing knows no hits
    assert "2 × 64 tokens, 50% hit" in shown.out
    assert "3 running" in shown.out
    assert "free, 129 blocks" in shown.out
    assert "ratio: time of kvref / time of this one" in shown.out
    assert "garbage collector off while timing" in shown.out
    assert f"{other}: kvref" in shown.out
    assert "\x1b" not in shown.out


def test_json_goes_to_a_file_or_alone_to_stdout(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["bench", "--impl", "kvref", "--json", "-"]) == 0
    shown = capsys.readouterr()
    document = json.loads(shown.out)
    assert (document["format"], document["version"]) == ("kvspec-bench", 1)
    assert document["command"] == "kvspec bench --impl kvref"
    assert "look up, ns per request" in shown.err
    path = tmp_path / "out.json"
    assert main(["bench", "--impl", "kvref", "--json", str(path)]) == 0
    again = json.loads(path.read_text("utf-8"))
    assert again.keys() == document.keys()
    assert [each["phase"] for each in again["measurements"]] == [
        *("hash", "look up", "allocate + cache", "free", "admit"),
        *("hash", "look up", "allocate + cache", "free", "admit", "prefill chunk"),
        *("hash", "look up", "allocate + cache", "free", "admit"),
        *("append", "decode step"),
    ]


def test_without_names_all_installed_implementations_take_part(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvspec.cli.bench.installed_implementations", lambda: ("kvref",))
    assert main(["bench"]) == 0
    assert "kvref: kvref" in capsys.readouterr().out


def test_unequal_work_ends_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--impl", "kvref", "--impl", BROKEN]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "times of unequal work are not compared" in shown.err
    assert len(shown.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--impl", "kvref", "--impl", "kvref"], "--impl kvref: given twice"),
        (["--impl", "nowhere"], "unknown implementation 'nowhere'"),
        (["--impl", "tests.bench.test_command:Hashless"], "no hash function sha256_cbor"),
        (["--peer", "nobody"], "'nobody' is not"),
        (["--impl", "kvref", "--json", "no/such/folder/f.json"], "there is no folder"),
    ],
)
def test_what_cannot_be_measured_is_said_in_one_line_beforehand(
    args: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *args]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert says in shown.err
    assert len(shown.err.splitlines()) == 1
