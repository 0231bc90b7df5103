"""The shipped models: each can be planned, each number has a source, some are worked out here."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from kvcheck.tools.plans.shipped import shipped_names, shipped_path
from tests.plans.files import Run

GIB = 2**30


def document(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(shipped_path(name).read_text(encoding="utf-8"))
    return found


def numbers(value: Any, place: str) -> Iterator[str]:
    """The paths of all numbers in a document, and of the pattern if it says anything."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield from numbers(item, f"{place}.{name}" if place else name)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield place


def test_there_are_at_least_ten() -> None:
    assert len(shipped_names()) >= 10
    kinds = [kind for name in shipped_names() for kind in document(name)["model"]["kinds"].values()]
    assert {"full", "mla", "sliding_window", "chunked_local", "cross", "mamba1"} <= {
        kind["type"] for kind in kinds
    }


@pytest.mark.parametrize("name", shipped_names())
def test_every_number_has_a_source(name: str) -> None:
    found = document(name)
    described = {part: found.get(part, {}) for part in ("model", "engine", "parallel")}
    places = set(numbers({**described, "memory_gib": found["memory_gib"]}, ""))
    if len(found["model"]["pattern"]) > 1:
        places.add("model.pattern")
    assert places <= set(found["source"])
    assert all(text for text in found["source"].values())
    assert isinstance(found["unconfirmed"], list)
    assert found["name"] == name


@pytest.mark.parametrize("name", shipped_names())
def test_every_model_can_be_planned(run: Run, name: str) -> None:
    ran = run(name)
    assert (ran.code, ran.err) == (0, "")
    found = run(name, "--json").json
    assert found["max_concurrency"] >= 1
    assert sum(group["num_layers"] for group in found["groups"]) == sum(
        1 if isinstance(item, str) else len(item) for item in pattern(name)
    )


def pattern(name: str) -> list[Any]:
    model = document(name)["model"]
    repeated = model["pattern"] * model["num_layers"]
    return list(repeated[: model["num_layers"]])


def test_llama_3_1_8b_by_hand(run: Run) -> None:
    """A token: 32 layers · 8 heads · 128 · 2 (K, V) · 2 bytes = 131,072; 16 of them a block."""
    found = run("llama-3.1-8b", "--json").json
    block = 16 * 131_072
    assert found["workers"][0]["bytes_per_block"] == block == 2_097_152
    assert found["num_blocks"] == 40 * GIB // block == 20_480
    assert found["blocks_per_request"] == 131_072 // 16 == 8_192
    assert (found["max_concurrency"], found["capacity_tokens"]) == (2.5, 20_480 * 16)


def test_llama_2_7b_by_hand(run: Run) -> None:
    """Four times the KV heads of Llama 3.1: 524,288 bytes a token."""
    found = run("llama-2-7b", "--json").json
    assert found["workers"][0]["bytes_per_block"] == 16 * 524_288
    assert found["max_concurrency"] == (40 * GIB // (16 * 524_288)) / (4_096 // 16) == 20.0


def test_deepseek_v3_by_hand(run: Run) -> None:
    """A token: 61 layers · 576 · 2 bytes = 70,272 bytes, on each of 8 ranks the same."""
    found = run("deepseek-v3", "--json").json
    assert [worker["bytes_per_block"] for worker in found["workers"]] == [16 * 70_272] * 8
    assert found["num_blocks"] == 30 * GIB // (16 * 70_272) == 28_649


def test_gemma_3_27b_by_hand(run: Run) -> None:
    """62 layers: 10 full and 52 windows, in groups of ten: 8 layers are missing."""
    found = run("gemma-3-27b", "--json").json
    assert [group["num_layers"] for group in found["groups"]] == [9, 9, 9, 9, 8, 8, 10]
    page = 16 * 16 * 128 * 2 * 2  # tokens, heads, head size, K and V, bytes
    assert {group["page_size_bytes"] for group in found["groups"]} == {page}
    assert found["workers"][0]["bytes_per_block"] == 10 * page == 1_310_720
    # cdiv(1024 - 1 + 8192, 16) + 1 = 577 blocks of each group of windows, 8,192 of full attention.
    assert found["blocks_per_request"] == 6 * 577 + 8_192
    wasted = 577 * (4 * 10 + 2 * 20) / (6 * 577 + 8_192)
    assert found["padding_percent"] == round(wasted, 2) == 3.96
    assert "8 padding layers beside 52" in found["warnings"][0]


def test_mistral_by_hand(run: Run) -> None:
    """A window of 4,096 holds cdiv(4095 + 8192, 16) + 1 = 769 blocks, whatever the length."""
    found = run("mistral-7b-v0.1", "--json").json
    assert found["blocks_per_request"] == 769
    assert run("mistral-7b-v0.1", "--json", "--max-model-len", 20_000).json == {
        **found,
        "max_model_len": 20_000,
        "capacity_tokens": int(found["num_blocks"] / 769 * 20_000),
    }


def test_llama_4_scout_by_hand(run: Run) -> None:
    """Each of 8 ranks has one of the 8 heads: pages of 16 · 128 · 2 · 2 = 8,192 bytes."""
    found = run("llama-4-scout", "--json").json
    assert [group["num_layers"] for group in found["groups"]] == [12, 12, 12, 12]
    assert found["groups"][0]["page_size_bytes"] == 8_192
    # Chunks: (8192 + 8192) / 16 = 1,024 blocks in each of three groups; full: 2^20 / 16.
    assert found["blocks_per_request"] == 3 * 1_024 + 65_536


def test_jamba_by_hand(run: Run) -> None:
    """A state on one of two ranks: 3 · 4096 · 2 + 4096 · 16 · 2 = 155,648 bytes.

    A page of attention has 16 · 4 · 128 · 2 · 2 = 32,768: five times that holds a state, so blocks
    are 80 tokens, and 8,192 of 163,840 bytes are padding: 5 %.
    """
    found = run("jamba-v0.1", "--json").json
    states, full = found["groups"][:7], found["groups"][7]
    assert [group["num_layers"] for group in found["groups"]] == [4] * 8
    assert full["block_size"] == 80
    assert {group["page_size_bytes"] for group in found["groups"]} == {5 * 32_768}
    assert {group["padding_percent"] for group in states} == {100 * 8_192 / 163_840}
    assert found["blocks_per_request"] == 7 * 2 + -(-262_144 // 80) == 3_291


def test_falcon_mamba_by_hand(run: Run) -> None:
    """One block a request: 64 layers · (3 · 8192 · 2 + 8192 · 16 · 2) bytes."""
    found = run("falcon-mamba-7b", "--json").json
    assert found["workers"][0]["bytes_per_block"] == 64 * (49_152 + 262_144)
    assert found["num_blocks"] == 8 * GIB // (64 * 311_296) == 431
    assert found["max_concurrency"] == 431.0


def test_whisper_by_hand(run: Run) -> None:
    """448 tokens of text are 28 blocks, 1,500 of sound cdiv(1500, 16) = 94."""
    found = run("whisper-large-v3", "--json").json
    assert [group["kind"] for group in found["groups"]] == ["full_attention", "cross_attention"]
    assert found["blocks_per_request"] == 28 + 94
    assert found["workers"][0]["bytes_per_block"] == 32 * 16 * 20 * 64 * 2 * 2


def test_gpt_oss_20b_by_hand(run: Run) -> None:
    """12 + 12 layers: a block is twelve pages of 16 · 8 · 64 · 2 · 2 = 32,768 bytes."""
    found = run("gpt-oss-20b", "--json").json
    assert found["workers"][0]["bytes_per_block"] == 12 * 32_768
    assert found["blocks_per_request"] == -(-(127 + 8_192) // 16) + 1 + 8_192 == 8_713


def test_qwen_72b_by_hand(run: Run) -> None:
    """A rank has one of 8 heads: 80 layers · 128 · 2 · 2 = 40,960 bytes a token."""
    found = run("qwen2.5-72b", "--json").json
    assert [worker["bytes_per_block"] for worker in found["workers"]] == [16 * 40_960] * 8
    assert found["num_blocks"] == 50 * GIB // (16 * 40_960) == 81_920
    two_stages = run("qwen2.5-72b", "--json", "--tensor", 4, "--pipeline", 2).json
    assert [worker["bytes_per_block"] for worker in two_stages["workers"]] == [16 * 40_960] * 8
