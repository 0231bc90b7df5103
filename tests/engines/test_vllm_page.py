"""docs/vllm.md: its options, commands and names are there, and do what it says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvcheck.adapters.vllm.expected import read_expected
from tests.commands import python
from tests.source import ROOT

PAGE = (ROOT / "docs/vllm.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
COMMANDS = re.findall(
    r"^\$ (.*)$", "".join(text for kind, text in BLOCKS if kind == "console"), re.MULTILINE
)


def test_the_file_of_known_differences_can_be_read(tmp_path: Path) -> None:
    (text,) = (text for kind, text in BLOCKS if kind == "toml")
    (tmp_path / "known.toml").write_text(text, encoding="utf-8")
    (known,) = read_expected(tmp_path / "known.toml")
    assert known.covers("get_computed_blocks: vLLM says otherwise")
    assert {kind for kind, _ in BLOCKS} == {"console", "toml"}


@pytest.mark.usefixtures("followed")
@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # torch's own, on import
def test_its_options_name_schedulers_that_vllm_finds_and_runs(
    engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler

    from examples.vllm.setups import setups

    monkeypatch.setenv("KVSPEC_SHADOW", "kvref")
    named = re.findall(r"--scheduler-cls ([\w.]+)", PAGE)
    assert len(named) == 2
    others = ["kvfast.engines.vllm.KvfastScheduler"]
    setup = setups()["full"]
    for name in (*named, *others):
        config = engine.vllm_config(setup, engine.model_folder())
        config.scheduler_config.scheduler_cls = name
        found = config.scheduler_config.get_scheduler_cls()
        assert f"{found.__module__}.{found.__name__}".endswith(name.rpartition(".")[2])
        assert issubclass(found, AsyncScheduler) == ("Async" in name)
        made = engine.make_scheduler(found, setup, config)
        assert made.schedule().total_num_scheduled_tokens == 0
        attributes = re.findall(r"`scheduler\.(\w+)", PAGE) if name in others else []
        assert [a for a in attributes if a != "shadow" and not hasattr(made, a)] == []
        if name in others:
            assert made.kvfast_reason is None


def test_its_lock_step_ends_without_a_difference(engine: Any) -> None:
    (command,) = (each for each in COMMANDS if "examples.vllm.lockstep --steps 1000" in each)
    words = command.partition("#")[0].split()
    arguments = [*words[1:-1], "30", "--only", "full"]
    assert words[-2:] == ["--steps", "1000"]
    done = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "no difference" in done.stdout.splitlines()[-1]


# The table of models, from the source of a small vLLM that is made up; nothing of it is run.

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
