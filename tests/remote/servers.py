"""Commands that start servers: the reference, and tiny scripts that misbehave."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvcheck.discovery import find_implementation
from kvcheck.remote.child import Child
from kvcheck.remote.client import RemoteImplementation
from kvspec.config import ManagerConfig
from kvspec.request import RequestInput
from kvspec.specs import FullAttentionSpec, LayerSpec, MambaSpec, SlidingWindowSpec
from tests.contract.builders import make_config

SERVE = (sys.executable, "-m", "kvcheck.cli", "serve")

PREAMBLE = """
import json, os, signal, subprocess, sys, time

HELLO = {"protocol": 1, "name": "odd", "version": "0", "spec_types": ["FullAttentionSpec"],
         "hash_functions": ["sha256_cbor"], "features": ["prefix_caching", "clone", "planning"]}
CREATED = {"scheduler_block_size": 4, "hash_block_size": 4, "none_hash": "00" * 32}
MADE = {"num_tokens": 5, "block_hashes": ["11" * 32]}
RIGHT = {"hello": HELLO, "create_manager": CREATED, "make_request": MADE, "drop": None}

def read():
    line = sys.stdin.readline()
    if not line:
        sys.exit(0)
    return json.loads(line)

def write(value):
    sys.stdout.write(json.dumps(value) + "\\n")
    sys.stdout.flush()

def answer(message, result):
    write({"id": message["id"], "result": result})

def until(op):
    # Answer rightly until this operation comes; return its message.
    while True:
        message = read()
        if message["op"] == op:
            return message
        answer(message, RIGHT[message["op"]])
"""
"""The beginning of each script: a server in JSON lines that is right until an operation."""


def serve(name: str, *, options: str = "") -> str:
    return f"cmd{options}:{shlex.join((*SERVE, name))}"


def script(folder: Path, code: str, *, timeout_s: float = 30.0) -> str:
    path = folder / "server.py"
    path.write_text(PREAMBLE + code)
    return f"cmd+json+timeout={timeout_s:g}:{shlex.join((sys.executable, str(path)))}"


def connect(folder: Path, code: str) -> RemoteImplementation:
    found = find_implementation(script(folder, code))
    assert isinstance(found, RemoteImplementation)
    return found


def count_waits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record for each later wait of a client the number of replies it waits for."""
    waits: list[int] = []
    exchange = Child.exchange

    def counted(child: Child, framed: bytes, timeout_s: float, num_answers: int) -> Iterator[bytes]:
        waits.append(num_answers)
        return exchange(child, framed, timeout_s, num_answers)

    monkeypatch.setattr(Child, "exchange", counted)
    return waits


def is_running(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    return True


def ends(process_id: int, *, seconds: float = 5.0) -> bool:
    deadline = time.monotonic() + seconds
    while is_running(process_id):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


FULL = FullAttentionSpec(block_size=4, num_kv_heads=1, head_size=8, dtype="float16")
WINDOW = SlidingWindowSpec(
    block_size=4, num_kv_heads=1, head_size=8, dtype="float16", sliding_window=6
)
MAMBA = MambaSpec(block_size=4, shapes=((2, 3),), dtypes=("float32",), mamba_cache_mode="align")


def config(*specs: LayerSpec, num_blocks: int = 12, **members: Any) -> ManagerConfig:
    watched = {"max_model_len_tokens": 64, "enable_events": True, "log_stats": True}
    return make_config(num_blocks, specs=specs or (FULL,), **watched | members)


def request_input(name: str = "a", num_tokens: int = 5) -> RequestInput:
    return RequestInput(name, tuple(range(1, num_tokens + 1)))
