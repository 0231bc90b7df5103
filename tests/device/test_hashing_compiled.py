"""The kernels of hashing and look-up can be compiled for a GPU, though none is here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.source import ROOT

pytest.importorskip("triton", reason="Triton is not installed")

COMPILE = """
import json
import torch
from tests.device.compiled import Compiling
from kvfast.device.hashing import kernels as hashing
from kvfast.device.index import kernels as index
from kvfast.device.hashing.prompts import prompts_on
from kvfast.device.index.table import IndexTable

found = []
for module, name in (
    (hashing, "_messages"), (hashing, "_chain"), (index, "_insert"), (index, "_lookup")
):
    setattr(module, name, Compiling(getattr(module, name), found))
cpu = torch.device("cpu")
for num, dtype in ((1, torch.int32), (5, torch.int64)):
    starts = torch.arange(num + 1) * 8
    size = 1 if num == 1 else 4  # arguments of 1 are constants to Triton
    prompts = prompts_on(cpu, torch.zeros(8 * num, dtype=dtype), starts, starts.diff() // size,
                         bytes(32))
    words = hashing.block_hashes(prompts, size)
    table = IndexTable.empty(4, cpu)
    index.insert(table, num - 1, num + 1)
    index.lookup(table, prompts, words, num - 1, size)
for one in found:
    print(json.dumps(one))
"""


@pytest.mark.rule("KV-DEV-18", "KV-DEV-19")
def test_kernels_compile_for_hopper(tmp_path: Path) -> None:
    """With registers alone: what does not fit into them would go to memory in every round."""
    path = os.pathsep.join((str(ROOT), str(ROOT / "spec")))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", COMPILE],
        cwd=ROOT,
        env={
            **os.environ,
            "TRITON_INTERPRET": "0",
            "TRITON_CACHE_DIR": str(tmp_path),
            "PYTHONPATH": path,
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    names = {one["kernel"] for one in found}
    assert names == {"_messages", "_chain", "_insert", "_lookup"}
    assert len(found) == 8
    assert not any(one["local"] for one in found)
