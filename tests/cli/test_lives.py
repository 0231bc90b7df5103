"""`kvspec check --tier`, `--index` and `--tree`: what they print, write and refuse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvcheck.cli import main
from kvcheck.discovery import find_index, find_offload, find_tree
from kvfast.fleet.index import FastIndex
from kvspec.errors import UnknownImplementationError


@pytest.mark.parametrize(
    ("kind", "broken", "rule", "call"),
    [
        ("tier", "mistake:PlacesFromOne", "KV-TIER-12 (prepared stores)", "prepare_store"),
        ("index", "kvfast", "KV-FLEET-3 (gaps)", "-> waiting"),
        ("tree", "mistake:EvictsOneLess", "KV-TREE-14 (evict enough)", "evict ["),
    ],
)
def test_the_command_shows_the_calls_of_a_broken_rule(
    kind: str,
    broken: str,
    rule: str,
    call: str,
    *,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    check = ["check", f"--{kind}", "--programs"]
    assert main([*check, "20", "kvref"]) == 0
    assert "rules that were tried hold" in capsys.readouterr().out
    right = FastIndex.missing
    monkeypatch.setattr(
        FastIndex, "missing", lambda *given: (found := right(*given)) and (found[0], found[1] + 1)
    )
    found = tmp_path / "found.json"
    assert main([*check, "30", broken, "--json", str(found)]) == 1
    said = capsys.readouterr().out
    assert f"\n{rule}\n" in said
    assert call in said
    assert max(map(len, said.splitlines())) <= 80
    told = json.loads(found.read_text(encoding="utf-8"))["findings"]
    assert told[0]["rule"] == rule.partition(" ")[0]
    assert told[0]["calls"]
    assert told[0]["life"] > 0


def test_what_makes_nothing_of_the_kind_is_refused() -> None:
    for find, why in (
        (find_offload, "no make_offload and offload"),
        (find_index, "no make_prefix_index"),
        (find_tree, "neither trees nor managers"),
    ):
        with pytest.raises(UnknownImplementationError, match=why):
            find("builtins:dict")
    assert main(["check", "--index", "builtins:dict"]) == 2
