"""Kernels can be compiled for a GPU, though none is here, and are what they should be.

The interpreter takes more than the compiler does: what only runs there says nothing of a GPU.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

import pytest

from tests.commands import python

pytest.importorskip("triton", reason="Triton is not installed")


Launches = list[dict[str, object]]


def compiled(cache: Path, *options: str) -> Launches:
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(cache)}
    done = python("-m", "tests.device.compiled", *options, env=environment)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Launches:
    return compiled(tmp_path_factory.mktemp("triton"))


def check(launches: Launches) -> None:
    for one in launches:
        # Products and sums are rounded one by one, and small numbers stay (KV-DEV-4).
        assert not one["fused"], one
        assert not one["flushed"], one
        # A division for each vector takes longer than to move it; so does memory of a thread.
        assert not one["divides"], one
        assert not one["local"], one
        if one.get("size") == 128 and one["stored"] == one["given"]:
            assert one["wide"] == 4, one  # 16 bytes at once, but for the slots
        elif one.get("word_bytes") == 16:
            assert one["wide"] == (8 if one["kernel"] == "_copy_kernel" else 4), one


@pytest.mark.rule("KV-DEV-3", "KV-DEV-4", "KV-DEV-5", "KV-DEV-6")
def test_kernels_on_pages_compile_for_hopper(made: Launches) -> None:
    found = [one for one in made if "stored" in one or "word_bytes" in one]
    assert len({one["stored"] for one in found if "stored" in one}) == 6
    assert {one.get("word_bytes") for one in found} == {None, 16}
    check(found)


@pytest.mark.rule("KV-DEV-13", "KV-DEV-15", "KV-DEV-18", "KV-DEV-19")
def test_all_other_kernels_compile_for_hopper(made: Launches) -> None:
    found = [one for one in made[2:] if "stored" not in one and "word_bytes" not in one]
    assert Counter(one["kernel"] for one in found) == dict.fromkeys(
        ("_apply", "_outputs", "_gather", "_decide", "_messages", "_chain", "_insert", "_lookup"), 2
    )
    assert not any(one["local"] for one in found[8:])


def test_kernels_with_mistakes_are_seen(made: Launches) -> None:
    slow, wrong = made[:2]
    assert (slow["fused"], slow["divides"]) == (True, True)
    assert "error" in wrong


@pytest.mark.deep
def test_every_conversion_compiles_for_hopper(tmp_path: Path) -> None:
    launches = compiled(tmp_path, "--all")
    assert len(launches) > 60
    check([one for one in launches if "stored" in one or "word_bytes" in one])
