"""Small plan files, and running the command on them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kvcheck.cli import main

FULL = {"type": "full", "num_kv_heads": 8, "head_size": 128}
WINDOW = {"type": "sliding_window", "num_kv_heads": 8, "head_size": 128, "sliding_window": 512}

SMALL: Mapping[str, Any] = {
    "format": "kvspec-plan",
    "version": 1,
    "model": {
        "max_model_len": 4096,
        "dtype": "bfloat16",
        "num_layers": 4,
        "kinds": {"full": FULL, "window": WINDOW},
        "pattern": ["window", "full"],
    },
    "memory_gib": 1,
}

SPEC = {"type": "FullAttentionSpec", "block_size": 16, "num_kv_heads": 8, "head_size": 128}
EXPLICIT: Mapping[str, Any] = {
    "format": "kvspec-plan",
    "version": 1,
    "workers": [[["a", {**SPEC, "dtype": "bfloat16"}]], [["b", {**SPEC, "dtype": "bfloat16"}]]],
    "engine": {"max_model_len": 64},
    "memory_bytes": [700_000, 600_000],
}


def altered(document: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Copy a document with members replaced by path (`model.kinds.full`); None removes one."""
    copy = deepcopy(dict(document))
    for place, value in changes.items():
        *outer, last = place.split(".")
        target = copy
        for name in outer:
            target = target.setdefault(name, {})
        if value is None:
            target.pop(last, None)
        else:
            target[last] = value
    return copy


def written(folder: Path, document: object, name: str = "m.json") -> Path:
    path = folder / name
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Run:
    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys

    def __call__(self, *arguments: object) -> Ran:
        code = main(["plan", *map(str, arguments)])
        captured = self.capsys.readouterr()
        return Ran(code, captured.out, captured.err)
