"""`kvspec plan`: what it shows, its JSON, and one line for whatever is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvcheck.tools.plans.shipped import shipped_names
from kvref import ReferenceImplementation
from kvspec.errors import UnsupportedError
from tests.plans.files import EXPLICIT, FULL, SMALL, SPEC, WINDOW, Run, altered, written


def test_the_table_shows_what_matters(run: Run, tmp_path: Path) -> None:
    """2 + 2 layers of 65,536 bytes a page: 131,072 bytes a block, 8,192 blocks in 1 GiB."""
    ran = run(written(tmp_path, SMALL), "--impl", "kvref")
    assert (ran.code, ran.err) == (0, "")
    rows = dict(
        line.split("  ", 1) for line in ran.out.splitlines() if line[:1].isalpha() and "  " in line
    )
    assert rows["model"].strip() == "m (planned by kvref)"
    assert rows["longest request"].strip() == "4,096 tokens"
    assert rows["blocks"].strip() == "8,192, including the null block"
    # cdiv(4096, 16) = 256 of full attention; of windows cdiv(min(511 + 8192, 4096), 16) + 1 = 257
    assert rows["blocks per request"].strip() == "513 at full length"
    assert rows["concurrency"].strip() == "15.97 requests of full length"
    assert rows["capacity"].strip() == "65,408 tokens"
    assert rows["wasted by padding"].strip() == "0.00 %"
    assert "sliding_window        2      16      512   65,536 B" in ran.out
    assert "0             4         2     131,072 B   1.00 GiB   1.00 GiB" in ran.out


def test_json_has_the_documented_keys(run: Run, tmp_path: Path) -> None:
    found = run(written(tmp_path, SMALL), "--json").json
    assert list(found) == [
        *("name", "implementation", "max_model_len", "automatic", "num_blocks"),
        *("scheduler_block_size", "hash_block_size", "capacity_tokens", "max_concurrency"),
        *("blocks_per_request", "padding_percent", "warnings", "groups", "workers"),
    ]
    assert found["num_blocks"] == 8_192
    assert found["max_concurrency"] == 8_192 / 513
    assert found["capacity_tokens"] == int(8_192 / 513 * 4_096)
    assert (found["scheduler_block_size"], found["hash_block_size"]) == (16, 16)
    window, full = found["groups"]
    assert list(window) == [
        *("kind", "num_layers", "block_size", "window", "page_size_bytes"),
        *("blocks_per_request", "padding_percent", "spec"),
    ]
    assert (window["kind"], window["window"], window["blocks_per_request"]) == (
        *("sliding_window", 512, 257),
    )
    assert full["spec"]["type"] == "FullAttentionSpec"
    (worker,) = found["workers"]
    assert worker["layers_by_group"] == [
        ["layers.0.window", "layers.2.window"],
        ["layers.1.full", "layers.3.full"],
    ]
    assert worker["tensors"][0] == {
        "size_bytes": 8_192 * 65_536,
        "shared_by": ["layers.0.window", "layers.1.full"],
        "offset_bytes": None,
        "block_stride_bytes": None,
    }
    assert (worker["memory_bytes"], worker["used_bytes"]) == (2**30, 2**30)
    assert worker["bytes_per_block"] == 131_072


def test_explicit_layers_of_each_worker(run: Run, tmp_path: Path) -> None:
    """Two stages; the smaller memory decides: 600,000 // 65,536 = 9 blocks."""
    found = run(written(tmp_path, EXPLICIT), "--json").json
    assert found["num_blocks"] == 9
    assert [worker["used_bytes"] for worker in found["workers"]] == [9 * 65_536] * 2
    assert found["groups"][0]["num_layers"] == 2


def test_the_packed_layout_is_one_allocation(run: Run, tmp_path: Path) -> None:
    document = altered(SMALL, {"engine.packed_layout": True})
    (worker,) = run(written(tmp_path, document), "--json").json["workers"]
    assert [tensor["offset_bytes"] for tensor in worker["tensors"]] == [0, 65_536]
    assert worker["used_bytes"] == 2**30
    assert worker["bytes_per_block"] == 131_072


def test_padding_is_counted(run: Run, tmp_path: Path) -> None:
    pattern = ["window", "full", "full", "window", "full"]
    document = altered(SMALL, {"model.pattern": pattern, "model.num_layers": 5})
    ran = run(written(tmp_path, document))
    assert "warning: 1 padding layers beside 3 of full_attention: at most 33.33 %" in ran.out
    found = run(written(tmp_path, document), "--json").json
    assert [group["padding_percent"] for group in found["groups"]] == [0.0, 0.0, 50.0]
    # Blocks of a request: 257 of windows, twice 256 of full attention, half of which waste half.
    assert found["padding_percent"] == round(256 * 50 / 769, 2)


def test_options_replace_what_the_file_says(run: Run, tmp_path: Path) -> None:
    path = written(tmp_path, SMALL)
    found = run(path, "--json", "--memory-gib", 0.5, "--max-model-len", 1_000).json
    assert (found["num_blocks"], found["max_model_len"]) == (4_096, 1_000)
    found = run(path, "--json", "--tensor", 2, "--pipeline", 2).json
    assert [len(worker["layers_by_group"][0]) for worker in found["workers"]] == [1, 1, 1, 1]
    assert found["groups"][0]["page_size_bytes"] == 32_768
    found = run(path, "--json", "--memory-gib", 0.01, "--max-model-len", "auto").json
    assert found["automatic"]
    # 81 blocks: one null, windows one more than full attention: 39 + 40 blocks of 16 tokens.
    assert (found["num_blocks"], found["max_model_len"]) == (81, 39 * 16)
    assert "tokens, the most that fit" in run(path, "--max-model-len", "auto").out


def test_memory_is_not_read_with_a_number_of_blocks(run: Run, tmp_path: Path) -> None:
    document = altered(SMALL, {"memory_gib": None, "engine.num_blocks_override": 600})
    assert run(written(tmp_path, document), "--json").json["num_blocks"] == 600


def test_neighbouring_workers_share_a_row(run: Run, tmp_path: Path) -> None:
    ran = run(written(tmp_path, SMALL), "--tensor", 8)
    assert "\n  0 … 7         4 " in ran.out


def test_a_model_that_keeps_nothing(run: Run, tmp_path: Path) -> None:
    document = altered(EXPLICIT, {"workers": [[], []]})
    ran = run(written(tmp_path, document))
    assert "unlimited: no request takes a block" in ran.out
    found = run(written(tmp_path, document), "--json").json
    assert (found["num_blocks"], found["capacity_tokens"], found["groups"]) == (1, None, [])


def test_groups_of_one_type_and_sinks(run: Run, tmp_path: Path) -> None:
    kinds = {
        "sink": {**FULL, "type": "sink", "sink_len": 2048},
        "mla": {"type": "mla", "head_size": 576},
    }
    document = altered(SMALL, {"model.kinds": kinds, "model.pattern": ["sink", "mla"]})
    (group,) = run(written(tmp_path, document), "--json").json["groups"]
    assert group["page_size_bytes"] == 2 * (65_536 + 18_432)
    assert group["padding_percent"] == 0.0
    document = altered(document, {"model.pattern": ["sink"]})
    (group,) = run(written(tmp_path, document), "--json").json["groups"]
    assert (group["kind"], group["blocks_per_request"]) == ("sink_full_attention", 256)


def test_layers_that_hold_nothing_need_no_block(run: Run, tmp_path: Path) -> None:
    spec = {**SPEC, "type": "EncoderOnlyAttentionSpec", "dtype": "bfloat16"}
    policy = {"capacity_counts_null_block": False}
    engine = {"max_model_len": 64, "enable_caching": False, "policy": policy}
    document = altered(EXPLICIT, {"workers": [[["a", spec]]], "memory_bytes": 1, "engine": engine})
    found = run(written(tmp_path, document), "--json").json
    assert (found["num_blocks"], found["max_concurrency"]) == (0, None)
    assert found["workers"][0]["bytes_per_block"] == 0


def test_who_plans_may_manage_less(run: Run, tmp_path: Path) -> None:
    ran = run(written(tmp_path, SMALL), "--impl", "tests.plans.test_command:OnlyPlanning")
    assert ran.code == 0


def test_the_list_names_every_model(run: Run) -> None:
    lines = run("--list").out.splitlines()
    assert [line.split()[0] for line in lines] == list(shipped_names())
    assert all(len(line.split()) > 2 for line in lines)


def test_too_little_memory_is_exit_code_1(run: Run, tmp_path: Path) -> None:
    """The line says how much is needed, and what would fit."""
    path = written(tmp_path, SMALL)
    ran = run(path, "--memory-gib", 0.01)
    assert (ran.code, ran.out) == (1, "")
    (line,) = ran.err.splitlines()
    assert line.startswith(f"kvspec: error: {path}, field 'memory_gib': 10737418: must be at least")
    assert "514" not in line
    assert f"{514 * 131_072} bytes (0.06 GiB; there are 0.01 GiB)" in line
    assert "the longest request that fits has 624 tokens; give more memory" in line
    assert "auto" in line
    explicit = written(tmp_path, altered(EXPLICIT, {"memory_bytes": 65_536}))
    assert "field 'memory_bytes'" in run(explicit).err
    assert "auto" not in run(explicit).err


KINDS = "model.kinds"
STATE = {"type": "mamba1", "intermediate_size": 64, "state_size": 4, "conv_kernel": 4}


def test_states_that_nobody_keeps_are_planned_without_caching(run: Run, tmp_path: Path) -> None:
    path = written(tmp_path, altered(SMALL, {f"{KINDS}.full": STATE, "memory_gib": 9}))
    ran = run(path, "--json")
    assert ran.code == 0, ran.err
    assert ran.json["hash_block_size"] == ran.json["scheduler_block_size"]
    assert "none: caching is off" in run(path).out


BAD: tuple[tuple[dict[str, Any], str], ...] = (
    # what is changed, and what the line says
    ({f"{KINDS}.window.sliding_window": 0}, f"'{KINDS}.window.sliding_window': 0: must be an int"),
    ({f"{KINDS}.window.sliding_window": -1}, f"'{KINDS}.window.sliding_window': -1: must be"),
    (
        {f"{KINDS}.full.dtype": "float12"},
        f"'{KINDS}.full.dtype': 'float12': must be one of float64",
    ),
    ({"model.dtype": "fp8"}, "'model.dtype': 'fp8': must be one of float64"),
    ({f"{KINDS}.full.type": "ring"}, f"'{KINDS}.full.type': 'ring': must be one of full, mla"),
    ({f"{KINDS}.full": 3}, f"'{KINDS}.full.type': missing"),
    ({f"{KINDS}.full.head_dim": 3}, f"'{KINDS}.full.head_dim': unknown; known members"),
    ({f"{KINDS}.full.head_size": None}, f"'{KINDS}.full.head_size': missing"),
    ({f"{KINDS}.full.head_size": 80}, "'model': page_size_bytes of layer layers.1.full = 40960"),
    (
        {f"{KINDS}.window": {**FULL, "type": "chunked_local", "attention_chunk_size": 24}},
        "'model': attention_chunk_size = 24: must be a multiple of the block size 16",
    ),
    ({"engine.decode_context_parallel_size": 2}, "'engine.decode_context_parallel_size': 2: must"),
    ({"engine.prefill_context_parallel_size": 2}, "'engine.prefill_context_parallel_size': 2: mu"),
    ({"engine.hash_block_size": 24}, "'engine.hash_block_size': 24: must be a divisor"),
    ({"engine.block_size": 0}, "'engine.block_size': 0: must be an int in 1"),
    ({"engine.mamba_cache_mode": "some"}, "'engine.mamba_cache_mode': 'some': must be one of none"),
    ({"engine.max_model_len": 4097}, "'engine.max_model_len': 4097: the model reads at most 4096"),
    ({"engine.max_model_len": "long"}, "'engine.max_model_len': 'long' is not an int"),
    ({"engine.max_model_len": 0}, "'engine.max_model_len': 0: must be an int in 1"),
    ({"engine.num_speculative_blocks": -1}, "'engine.num_speculative_blocks': -1: must be at"),
    ({"engine.policy": {"x": 1}}, "'engine.policy.x': unknown"),
    ({"engine.speed": 1}, "'engine.speed': unknown"),
    ({"model.pattern": []}, "'model.pattern': empty"),
    ({"model.pattern": ["ring"]}, "'model.pattern[0]': 'ring': must be one of the kinds full, win"),
    ({"model.pattern": [["full", "full"]]}, "'model.pattern[0]': ['full', 'full']: must be kinds"),
    ({"model.pattern": ["full"] * 5}, "'model.pattern': 5 entries for 4 layers"),
    ({"model.num_layers": 0}, "'model.num_layers': 0: must be"),
    ({f"{KINDS}.full": {**FULL, "type": "cross"}}, "'model.max_encoder_tokens': missing; cross"),
    (
        {f"{KINDS}.full": {**FULL, "type": "cross"}, "model.max_encoder_tokens": 9},
        "'engine.enable_caching': True: must be False",
    ),
    (
        {"parallel.tensor": 3},
        f"'{KINDS}.window.num_kv_heads': 8: must be a multiple of the 3 ranks",
    ),
    (
        {f"{KINDS}.full": STATE, "engine.enable_caching": True},
        "'engine.mamba_cache_mode': 'none': must be 'all' or 'align' where enable_caching is true",
    ),
    ({"parallel.pipeline": 5}, "'parallel.pipeline': 5: must be at most num_layers 4"),
    ({"parallel.stages": [3, 2]}, "'parallel.stages': 5 layers; must add up to num_layers 4"),
    ({"parallel.stages": [2, 2], "parallel.pipeline": 3}, "'parallel.pipeline': 3 for 2 stages"),
    ({"memory_gib": None}, ": must have either memory_bytes or memory_gib"),
    ({"memory_bytes": 5}, ": must have either memory_bytes or memory_gib"),
    ({"memory_gib": 0}, "'memory_gib': 0: must be above 0"),
    ({"memory_gib": [1, 0]}, "'memory_gib[1]': 0: must be above 0"),
    ({"memory_gib": [1, 1]}, "'memory_gib': 2 numbers; must be one, or one for each of 1 workers"),
    ({"memory_gib": 1e10}, "'memory_gib': 10000000000.0: must be above 0, and less than 2^63"),
    ({"memory_gib": "1"}, "'memory_gib': '1' is not a number"),
    ({"workers": []}, ": must have either model or workers"),
    ({"version": 2}, "'format': 'kvspec-plan' version 2: must be 'kvspec-plan' version 1"),
    ({"format": None}, "'format': missing"),
    ({"modle": {}}, "'modle': unknown"),
)


@pytest.mark.parametrize(("changes", "says"), BAD)
def test_bad_models_are_one_line(
    run: Run, tmp_path: Path, changes: dict[str, Any], says: str
) -> None:
    path = written(tmp_path, altered(SMALL, changes))
    ran = run(path)
    assert (ran.code, ran.out) == (2, "")
    (line,) = ran.err.splitlines()
    assert line.startswith(f"kvspec: error: {path}")
    assert says in line


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"engine": None}, "'engine.max_model_len': None: must be an int, without a model"),
        ({"engine.max_model_len": "auto"}, "'engine.max_model_len': 'auto': must be an int, with"),
        ({"workers": []}, "'workers': empty"),
        ({"parallel.tensor": 2}, "'parallel': only with a model"),
        ({"workers": [[["a", {**SPEC, "dtype": "x"}]]]}, "'workers[0][0][1].dtype': 'x': must be"),
        (
            {"workers": [[["a", {**SPEC, "dtype": "int8", "page_size_padded": 9}]]]},
            "'workers': page_size_padded = 9: must be at least 32768",
        ),
        (
            {"workers": [[["a", {**SPEC, "dtype": "int8"}]], [["a", {**SPEC, "dtype": "int16"}]]]},
            "'workers': workers, layer a = ",
        ),
    ],
)
def test_bad_layers_are_one_line(
    run: Run, tmp_path: Path, changes: dict[str, Any], says: str
) -> None:
    ran = run(written(tmp_path, altered(EXPLICIT, {**changes, "memory_bytes": 10**6})))
    assert (ran.code, ran.out) == (2, "")
    assert says in ran.err


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{", "line 1: not JSON at column 2"),
        ("[]", ": is no JSON object"),
        ('{"format": 1, "format": 2}', "'format': given twice"),
        ('{"memory_gib": NaN}', "NaN is not JSON"),
        ("[" * 100_000, ": nested too deeply"),
    ],
)
def test_files_that_are_no_plan_files(run: Run, tmp_path: Path, content: str, says: str) -> None:
    path = tmp_path / "m.json"
    path.write_text(content)
    ran = run(path)
    assert ran.code == 2
    assert says in ran.err
    path.write_bytes(b"\xff")
    assert "not UTF-8 at byte 0" in run(path).err
    assert "Is a directory" in run(tmp_path).err


def test_arguments_that_mean_nothing(run: Run, tmp_path: Path) -> None:
    assert "give a plan file, or a model that" in run().err
    assert "ring: neither a file nor one of the models deepseek-v3" in run("ring").err
    assert "ring.json: no such file" in run("ring.json").err
    path = written(tmp_path, SMALL)
    assert "--max-model-len long: must be a number" in run(path, "--max-model-len", "long").err
    fixed = written(tmp_path, altered(SMALL, {"parallel.stages": [2, 2]}))
    assert "the file fixes the stages" in run(fixed, "--pipeline", 2).err
    assert "unknown implementation 'x'" in run(path, "--impl", "x").err


class OnlyPlanning(ReferenceImplementation):
    def create(self, *arguments: Any, **members: Any) -> Any:
        raise UnsupportedError("managers", "this one")


class Unplanning:
    def __init__(self) -> None:
        self.inner = ReferenceImplementation()
        self.planner = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def test_implementations_that_cannot_plan(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, SMALL)
    ran = run(path, "--impl", "tests.plans.test_command:Unplanning")
    assert (ran.code, "kvref has no planner" in ran.err) == (2, True)
    monkeypatch.setattr("kvcheck.cli.plan.installed_implementations", lambda: ("broken",))
    assert "no installed implementation can plan" in run(path).err


def test_shown_json_is_json(run: Run, tmp_path: Path) -> None:
    """Nothing else is on stdout."""
    json.loads(run(written(tmp_path, altered(SMALL, {"model.kinds.window": WINDOW})), "--json").out)
