"""docs/vllm.md: its options, commands and names are there, and do what it says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from kvcheck.adapters.vllm.expected import read_expected
from tests.source import ROOT

PAGE = (ROOT / "docs/vllm.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


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
