"""`kvspec bench`: its command, and other contestants: bare calls, replays, other projects."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Collection
from dataclasses import asdict, replace
from pathlib import Path

import pytest

import kvfast
import kvref
from bench import saved, whatif
from kvcheck.adapters import vllm
from kvcheck.cli import main
from kvcheck.tools.bench.calls import (
    MANAGER,
    REPLAY_ADMIT,
    REPLAY_APPEND,
    REPLAY_FREE,
    REPLAY_HASH,
    REPLAY_RUN,
    Calls,
    UnequalWorkError,
    contract_calls,
)
from kvcheck.tools.bench.measure import Measured, contestants, measure
from kvcheck.tools.bench.replay import recorded
from kvcheck.tools.bench.script import Act, Case, Do, Plan
from kvcheck.tools.replay.driver import Driver
from kvcheck.tools.replay.options import ReplayOptions
from kvcheck.tools.replay.trace import TraceRecord
from kvfast import _build, _native
from kvref import ReferenceImplementation
from kvspec.interface import Capabilities, Implementation, KVCacheManager
from kvspec.saved import save
from tests.bench.toy import (
    BATCHED_COSTS_NS,
    COSTS_NS,
    PLAN,
    FakeClock,
    Toy,
    measured,
    other_blocks,
    other_rows,
    shorter_hits,
)


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
@pytest.mark.skipif(_native.sha256() is None, reason="no libcrypto whose functions are found")
def test_the_bare_calls_hash_what_kvfast_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    from bench import hashing

    loop = hashing.compiled_loop()
    for is_pickled in (False, True):
        case = hashing.Case(64, is_pickled=is_pickled, loop=loop)
        chain = _build.load("chain").block_chain("sha256_cbor", 16, is_pickled)
        wanted = chain.hashes(case.tokens, hashing.PARENT, chain.spelled(None))
        parent = hashing.PARENT
        for message, block_hash in zip(case.messages, wanted, strict=True):
            parent = hashlib.sha256(message.replace(hashing.PARENT, parent)).digest()
            assert parent == block_hash
    monkeypatch.setattr(hashing, "LENGTHS", (32,))
    monkeypatch.setattr(hashing, "LEAST_NS", 1)
    assert [row.count("…") for row in hashing.rows(2)] == [3, 3, 3]


def test_it_measures_managers_with_every_block_cached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saved, "PROMPT_BLOCKS", 10)
    monkeypatch.setattr(saved, "NUM_BLOCKS", (20, 30))
    manager = saved.filled(30)
    state = manager.snapshot()
    assert all(len(keys) == 1 for keys in state.block_keys[1:])
    path = tmp_path / "cache.state"
    save(manager, path)
    assert saved.loaded(path).snapshot() == state
    lines = list(saved.rows(2))
    assert [line.count("…") for line in lines] == [0, 0, 4, 4, 0, 0, 0, 3, 3]
    monkeypatch.setattr(saved, "PROMPT_BLOCKS", 12)
    with pytest.raises(AssertionError, match="are found"):
        saved.looked_up(manager, [kvfast.implementation().make_request(manager, saved.prompt(0))])


def test_it_measures_one_size_all_of_them_and_the_best_possible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- begin whatif -->\n<!-- end whatif -->\n", encoding="utf-8")
    options = ["--rounds", "2", "--into", str(page)]
    monkeypatch.setattr(sys, "argv", ["whatif", "sample:mooncake", *options])
    whatif.main()
    text = page.read_text("utf-8")
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert [row.count("…") for row in rows] == [0, 0, 2, 2, 2]


@pytest.mark.parametrize(
    ("wrong", "problem"), [("lru_hits", "something else"), ("optimal_hits", "than is possible")]
)
def test_answers_that_do_not_fit_each_other_end_it(
    monkeypatch: pytest.MonkeyPatch, wrong: str, problem: str
) -> None:
    numbers = iter(range(100))
    monkeypatch.setattr(whatif, wrong, lambda *_: next(numbers) if wrong == "lru_hits" else -1)
    monkeypatch.setattr(sys, "argv", ["whatif", "sample:mooncake", "--rounds", "1"])
    with pytest.raises(AssertionError, match=problem):
        whatif.main()


def beside_kvref(name: str, peer: Implementation) -> Measured:
    both = (name, peer), ("kvref", kvref.implementation())
    return measure(PLAN, [way for each in both for way in contestants(*each)])


def phases(found: Measured, name: str) -> set[str]:
    return {each.phase for each in found.measurements if name in each.rounds_ns}


def test_vllm_called_directly_answers_as_the_reference() -> None:
    try:
        peer = vllm.implementation()
    except vllm.VLLMUnavailableError as error:
        pytest.skip(str(error))
    found = beside_kvref("vllm", peer)
    assert found.includes["vllm"].startswith("vLLM's own Request and KVCacheManager")
    assert phases(found, "vllm") == phases(found, "kvref")


TRACE = tuple(
    TraceRecord(line, 0, input_length=600 + 40 * line, output_length=20, hash_ids=(line % 2, line))
    for line in range(1, 8)
)
ROOMY = ReplayOptions(400, 16, max_tokens_per_step=1000, max_running=4)
TIGHT = ReplayOptions(100, 16, max_tokens_per_step=1000, max_running=4)


def script(options: ReplayOptions) -> tuple[Case, list[Do]]:
    case = recorded(kvref.implementation(), options, TRACE, trace_name="trace")
    _, steps = case.rounds(1)
    return case, [do for step in steps for do in step]


@pytest.mark.parametrize("options", [ROOMY, TIGHT], ids=["roomy", "tight"])
def test_a_script_is_what_the_driver_did_by_single_and_by_batched_calls(
    options: ReplayOptions,
) -> None:
    counts = Driver(kvref.implementation(), options, TRACE, trace_name="trace").run().counts
    case, acts = script(options)
    num = Counter[Act]()
    for do in acts:
        num[do.act] += len(do.requests)
    admitted = sum(want is not None for do in acts if do.act is Act.ADMIT for want in do.wants)
    assert admitted == counts.requests + counts.preempted_requests
    assert num[Act.MAKE] == num[Act.FREE] == counts.requests == len(TRACE)
    assert (num[Act.PREEMPT], num[Act.APPEND]) == (counts.preemptions, counts.tokens_generated)
    refused = [do.act for do in acts if None in do.wants]
    assert (num[Act.PREEMPT] > 0) is (Act.RUN in refused) is (options is TIGHT)
    assert (Act.ADMIT in refused) is (options is TIGHT)
    assert case.facts["options"] == asdict(options)
    assert [len(given) for do in acts if do.act is Act.MAKE for given in do.given] == [
        each.input_length for each in TRACE
    ]
    found = measured(case, toy=Toy(FakeClock())).measurements
    spent = {(each.phase, name): ns[0] for each in found for name, ns in each.rounds_ns.items()}
    assert spent[REPLAY_HASH, "toy"] == COSTS_NS["make_request"] * len(TRACE)
    admit_ns = COSTS_NS["look_up"] + COSTS_NS["allocate_with_hit"]
    assert spent[REPLAY_ADMIT, "toy"] == admit_ns * num[Act.ADMIT]
    assert spent[REPLAY_APPEND, "toy"] == COSTS_NS["append_tokens"] * num[Act.APPEND]
    frees = num[Act.FREE] + num[Act.PREEMPT]
    assert spent[REPLAY_FREE, "toy"] == COSTS_NS["free"] * frees
    assert spent[REPLAY_RUN, "toy"] == COSTS_NS["allocate"] * num[Act.RUN]
    calls = Counter(do.act for do in acts)
    batched = {
        REPLAY_ADMIT: BATCHED_COSTS_NS["admit"] * calls[Act.ADMIT],
        REPLAY_RUN: BATCHED_COSTS_NS["decode"] * calls[Act.RUN],
        REPLAY_FREE: BATCHED_COSTS_NS["free"] * (calls[Act.FREE] + calls[Act.PREEMPT])
        + BATCHED_COSTS_NS["unregister"] * calls[Act.FREE],
    }
    assert {phase: spent[phase, "toy, batched"] for phase in batched} == batched
    for name in ("toy", "toy, batched"):
        assert spent[MANAGER, name] == sum(spent[phase, name] for phase in batched)


@pytest.mark.parametrize("options", [ROOMY, TIGHT], ids=["roomy", "tight"])
def test_a_replay_with_other_blocks_is_not_compared(options: ReplayOptions) -> None:
    case, _ = script(options)
    clock = FakeClock()
    with pytest.raises(UnequalWorkError):
        measured(case, toy=Toy(clock), other=Toy(clock, change=other_blocks))
    with pytest.raises(UnequalWorkError) as caught:
        measured(case, toy=Toy(clock, change_batched=other_rows))
    assert "toy, batched" in (caught.value.first, caught.value.other)


class Broken(ReferenceImplementation):
    def bench_calls(self, manager: KVCacheManager) -> Calls:
        return shorter_hits(contract_calls(self, manager))


class Hashless(ReferenceImplementation):
    @property
    def capabilities(self) -> Capabilities:
        return replace(ReferenceImplementation().capabilities, hash_functions=frozenset())


ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def small_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    def plan(sections: Collection[str]) -> Plan:
        return Plan(PLAN.cases if "prompts" in sections else (), 2)

    monkeypatch.setattr("kvcheck.cli.bench.full_plan", plan)
    monkeypatch.setattr("kvcheck.cli.bench.quick_plan", plan)


def test_the_tables_name_phases_units_cases_and_subjects(
    capsys: pytest.CaptureFixture[str],
) -> None:
    other = "kvref:implementation"
    assert main(["bench", "--impl", "kvref", "--impl", other, "--quick"]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    for title in (
        *("look up, ns per request", "allocate + cache, ns per block", "free, ns per block"),
        *("append, ns per request", "decode step, ns per request", "a cold pool of 129"),
        *("2 × 64 tokens, 50% cached", "3 running", "prefill chunk, ns per block"),
        *("kvref, batched: kvref", "batched calls over arrays of handles"),
        *("ratio: time of kvref / time of the row", "garbage collector off while timing"),
        f"{other}: kvref",
    ):
        assert title in shown.out
    assert "cached" not in shown.out.partition("look up, ns")[0].replace("0% cached", "")
    assert "\x1b" not in shown.out


def test_a_trace_is_replayed_beside_the_rest_or_alone(capsys: pytest.CaptureFixture[str]) -> None:
    args = ["bench", "--impl", "kvref", "--trace", "demo", "--requests", "3"]
    assert main([*args, "--only", "replay"]) == 0
    shown = capsys.readouterr().out
    assert "demo, 3 requests: ms per replay" in shown
    assert "manager, in all" in shown
    assert "look up, ns per request" not in shown
    assert main(args) == 0
    assert "look up, ns per request" in capsys.readouterr().out


def test_the_tables_of_a_document_can_be_made_again(tmp_path: Path) -> None:
    document = tmp_path / "out.json"
    args = ["bench", "--impl", "kvref", "--trace", "demo", "--requests", "2"]
    assert main([*args, "--json", str(document)]) == 0
    command = "kvspec bench --impl kvref --trace demo --requests 2"
    assert json.loads(document.read_text("utf-8"))["command"] == command
    script = [sys.executable, str(ROOT / "bench/tables.py"), str(document)]
    done = subprocess.run(script, capture_output=True, text=True, check=True)
    for title in ("Prompts, hot", "Decoding", "The pool grows, cold", "A whole trace"):
        assert f"### {title}\n" in done.stdout
    for title in ("look up again, ns per request", "decode step, ns per request", "ms per replay"):
        assert f"| {title} | kvref | kvref, batched | ratio |\n|---|---:|---:|---:|" in done.stdout
    assert "| 2 × 64 tokens, 50 % cached | " in done.stdout
    assert f"    {command}\n" in done.stdout


def test_json_goes_to_a_file_or_alone_to_stdout(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["bench", "--impl", "kvref", "--json", "-"]) == 0
    shown = capsys.readouterr()
    document = json.loads(shown.out)
    assert (document["format"], document["version"]) == ("kvspec-bench", 2)
    assert document["command"] == "kvspec bench --impl kvref"
    assert "look up, ns per request" in shown.err
    path = tmp_path / "out.json"
    monkeypatch.setattr("kvcheck.cli.bench.installed_implementations", lambda: ("kvref",))
    assert main(["bench", "--json", str(path)]) == 0
    again = json.loads(path.read_text("utf-8"))
    assert again.keys() == document.keys()
    looked_up = ("hash", "look up", "hash + look up", "look up again", "allocate + cache", "admit")
    assert [each["phase"] for each in again["measurements"]] == [
        *(*looked_up, "free"),
        *(*looked_up, "prefill chunk", "free"),
        *(*looked_up, "free"),
        *("append", "decode step"),
    ]


def test_unequal_work_ends_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--impl", "kvref", "--impl", "tests.bench.test_programs:Broken"]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "times of unequal work are not compared" in shown.err
    assert len(shown.err.splitlines()) == 1
