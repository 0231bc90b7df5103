"""The table of models, from the source of a small vLLM that is made up; nothing of it is run."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.commands import python
from tests.source import ROOT

WRITTEN = (ROOT / "tests/engines/vllm_models.txt").read_text("utf-8")
FILES = dict(re.findall(r"^== (\S+)\n(.*?)\n(?=\n==|\Z)", WRITTEN, re.MULTILINE | re.DOTALL))
MISTAKES = (
    ("if not {*file.parts} & {*OTHERS}", ""),  # another device's layers count
    ('if name.endswith("Spec") and name not in TYPE', "if name not in TYPE"),  # marks lack a type
    ("is_states = specs & TYPE_OF_NAME.keys() ==", "is_states = specs =="),
    ("up = len(self.package) - node.level + 1", "up = len(self.package) - node.level"),
    ("self.defined.setdefault(node.targets[0].id, node)", "pass"),
    ("yield alias.asname or alias.name,", "yield alias.name,"),
    ("if key[0] in kinds}", "}"),
)
"""A line of the script, and what stands there instead."""


def said(folder: Path, old: str = "", new: str = "") -> str:
    """Return what the script prints of the small vLLM, perhaps with one change."""
    for name, text in FILES.items():
        path = folder / "vllm" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    text = (ROOT / "examples/vllm/models.py").read_text("utf-8")
    assert not old or text.count(old) == 1, old
    script = folder / "changed_models.py"
    script.write_text(text.replace(old, new) if old else text, "utf-8")
    path = os.pathsep.join([str(folder), str(ROOT), str(ROOT / "spec")])
    done = python(str(script), env={**os.environ, "PYTHONPATH": path})
    return done.stdout.rstrip("\n") or done.stderr.splitlines()[-1]


def test_the_table_of_models_is_what_their_layers_have(tmp_path: Path) -> None:
    assert said(tmp_path) == FILES["table"]


@pytest.mark.parametrize(("old", "new"), MISTAKES)
def test_a_mistake_changes_the_table(tmp_path: Path, old: str, new: str) -> None:
    found = said(tmp_path, old, new)
    assert found.startswith("| models")
    assert found != FILES["table"]
