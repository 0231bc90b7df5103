"""`kvspec explore` as a user meets it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from kvcheck.explore.configurations import configurations
from kvcheck.explore.session import recorded_counts
from tests.commands import LEAKS, kvspec


def explore(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return kvspec(folder, "explore", *args)


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_broken_rule_is_told_in_words_in_json_and_as_a_record(tmp_path: Path, jobs: str) -> None:
    (tmp_path / "leaking.py").write_text(LEAKS, encoding="utf-8")
    chosen = ("--impl", "leaking:implementation", "--config", "pool", "--jobs", jobs)
    done = explore(tmp_path, *chosen, "--records", "records", "--json", "-")
    assert done.returncode == 1, done.stderr
    document = json.loads(done.stdout)
    (violation,) = document["violations"]
    assert violation["rule"] == "KV-POOL-15"
    assert violation["num_moves"] == 2
    assert violation["operations"][-1]["op"] == "free"
    assert "leaked" in done.stderr
    (record,) = (tmp_path / "records").iterdir()
    assert f"kvspec golden records/{record.name} --impl leaking:implementation" in done.stderr
    for name, code in (("leaking:implementation", 1), ("kvref", 0)):
        again = kvspec(tmp_path, "golden", f"records/{record.name}", "--impl", name)
        assert again.returncode == code, again.stdout


def test_a_run_stops_after_some_edges_or_counts_what_is_recorded(tmp_path: Path) -> None:
    first = explore(tmp_path, "--config", "ring", "--max-edges", "400")
    assert first.returncode == 0, first.stderr
    assert "incomplete" in first.stdout
    second = explore(tmp_path, "--config", "ring", "--json", "out.json")
    assert second.returncode == 0, second.stderr
    assert "no rule broken" in second.stdout
    assert "as recorded" not in second.stdout
    (result,) = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))["results"]
    assert result["as_recorded"] is True
    assert result["edges"] == recorded_counts()["ring"].edges


def test_names_of_blocks_can_be_told_apart(tmp_path: Path) -> None:
    chosen = ("--config", "retention", "--max-edges", "1200", "--json", "-")
    renamed, whole = (
        json.loads(explore(tmp_path, *chosen, *more).stdout)["results"][0]
        for more in ((), ("--whole",))
    )
    assert (renamed["up_to_names"], whole["up_to_names"]) == (True, False)
    assert renamed["depth"] > whole["depth"]


def test_the_list_names_every_configuration(tmp_path: Path) -> None:
    done = explore(tmp_path, "--list")
    assert [line.partition(":")[0] for line in done.stdout.splitlines()] == [
        each.name for each in configurations()
    ]
