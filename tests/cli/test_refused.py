"""Commands that cannot run say so in one line, before anything is written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cases import Case, cases
from tests.commands import said_by
from tests.source import ROOT

LINE = {"timestamp": 9, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}
WORDS = {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}
FILES = {
    "bad.json": "{",
    "tokenizer.json": json.dumps({"version": "1.0", "model": WORDS}),
    "empty.jsonl": "\n\n",
    "late.jsonl": f"{json.dumps(LINE)}\n{json.dumps({**LINE, 'timestamp': 3})}\n",
    "large.jsonl": json.dumps({**LINE, "input_length": 64 * 400, "hash_ids": [*range(50)]}),
}


@pytest.mark.parametrize("case", cases(__file__, "refused.txt"), ids=str)
def test_what_cannot_run_is_one_line_and_exit_code_2(
    case: Case,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if "--tokenizer" in case.given[0]:
        pytest.importorskip("tokenizers")
    monkeypatch.chdir(tmp_path)
    for name, content in FILES.items():
        Path(name).write_text(content, "utf-8")
    said = said_by(case.given[0], capsys)
    assert len(said) == 2
    assert said[1] == "exit code 2"
    case.expect([said[0].replace(f"{tmp_path}/", "").replace(f"{ROOT}/", "")])
    assert {path.name for path in tmp_path.iterdir()} == FILES.keys()
