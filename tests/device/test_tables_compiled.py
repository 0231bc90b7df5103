"""The kernels of the tables can be compiled for a GPU, though none is here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is not installed")

COMPILE = """
import sys
from triton import compile
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from kvfast.device.resident import kernels as _resident_triton
from kvfast.device.tables import kernels

NARROW = {"staged", "entries", "num_computed", "rows", "query_start", "places", "seq_lens", "out"}
NARROW |= {"control", "handles", "left", "granted", "lengths", "reserve", "new_blocks", "log"}
WIDE = {"positions", "slots", "groups"}
CONSTANTS = {"SEARCH_STEPS": 11, "BLOCK": 256, "HAS_SLOTS": True}
for kernel in (kernels._apply, kernels._outputs, kernels._gather, _resident_triton._decide):
    for ones in (set(), {"max_requests", "max_tokens", "num_groups", "width", "span"}):
        types, constants = {}, {}
        for name in kernel.arg_names:  # an argument of 1 is a constant to Triton
            types[name] = "*i32" if name in NARROW else "*i64" if name in WIDE else "i32"
            if name in CONSTANTS or name in ones:
                types[name], constants[name] = "constexpr", CONSTANTS.get(name, 1)
        source = ASTSource(kernel, signature=types, constexprs=constants)
        made = compile(source, target=GPUTarget("cuda", 90, 32))
        print(kernel.__name__, "ptx" in made.asm)
"""


@pytest.mark.rule("KV-DEV-13", "KV-DEV-15")
def test_kernels_compile_for_hopper(tmp_path: Path) -> None:
    """With arguments of 1 as well: Triton compiles those apart, and has other types for them."""
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", COMPILE]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:-1] == [
        f"{name} True" for name in ("_apply", "_outputs", "_gather", "_decide") for _ in range(2)
    ]
