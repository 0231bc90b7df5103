"""The formal model with its checker: its states, and traces of implementations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from itertools import takewhile
from pathlib import Path

import pytest

from kvcheck.discovery import find_implementation
from kvcheck.explore.bounds import Call, Configuration
from kvcheck.explore.search import Exploration, Pair, explore
from kvcheck.mistakes.registry import find
from kvcheck.play.recorder import Recorder
from kvspec.config import KVCacheConfig, KVCacheGroup, ManagerConfig
from kvspec.interface import Implementation
from kvspec.record import Operation
from kvspec.record_file import write_trace
from kvspec.specs import FullAttentionSpec, LayerSpec, MambaSpec, SlidingWindowSpec
from proofs.models._formal import _search
from proofs.models._formal._bounds import SMALL_MANAGER, TWO_TEXTS
from proofs.models._formal._cache import texts
from proofs.models._formal._checker import CheckerMissingError, check, node
from proofs.models._formal._lines import value_of
from proofs.models._formal._manager import ManagerSide
from proofs.models._formal._search import Bounds
from proofs.models._formal._twins import DIFFERS, UnhashedToTheBack
from proofs.models.formal import check_bounds, verdict
from proofs.models.validate import main, validate

EXPLORED: Mapping[str, str] = {
    "Admit": "admit",
    "Resume": "admit",
    "Compute": "compute",
    "Generate": "compute",
    "FreeRequest": "free",
    "Preempt": "preempt",
    "GiveUp": "give_up",
    "Evict": "evict",
    "EvictAll": "evict",
    "ResetCache": "reset",
}


pytestmark = pytest.mark.usefixtures("checker")


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        (ManagerSide(TWO_TEXTS), ManagerSide(replace(TWO_TEXTS, pool_class=UnhashedToTheBack))),
    ],
    ids=["manager"],
)
def test_a_mistake_in_kvref_is_found(right: Bounds, wrong: Bounds) -> None:
    assert verdict(check_bounds(right), _search.explore(wrong)) == DIFFERS


def test_next_of_the_module_reaches_the_states_that_its_moves_reach() -> None:
    bounds = ManagerSide(TWO_TEXTS)
    by_next = check(bounds.module, bounds.constants)
    assert by_next.graph.states == check_bounds(bounds).graph.states


def test_kvspec_explore_counts_the_same() -> None:
    bounds = ManagerSide(replace(SMALL_MANAGER, max_prompt=1))
    graph = _search.explore(bounds)
    actions = [label.partition("_")[0] for _, label, _ in graph.edges]
    found = Counter(EXPLORED[action] for action in actions if action != "Skip")
    configuration = Configuration(
        "as the model",
        "",
        bounds.bounds.config(),
        tuple(texts(1, 1, 1)),
        calls=frozenset({Call.PREEMPT, Call.EVICT, Call.RESET}),
        up_to_names=False,
    )
    counts = explore(Exploration(configuration), Pair(find_implementation("kvref"))).counts
    assert counts.states == len(graph.states)
    assert dict(counts.by_move) == dict(found)


def test_without_node_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(CheckerMissingError, match="install Node"):
        node()


FULL = FullAttentionSpec(4, 1, 8, "float16")
WINDOW = SlidingWindowSpec(2, 1, 8, "float16", sliding_window=3)


def story(implementation: Implementation, *specs: LayerSpec) -> Recorder:
    """Compute, share, grow, preempt and free a prompt; another fits only later."""
    groups = tuple(KVCacheGroup((f"layer.{n}",), spec) for n, spec in enumerate(specs))
    config = ManagerConfig(KVCacheConfig(14, groups), max_model_len_tokens=64, hash_seed="0")
    recorder = Recorder(implementation, config, check_invariants=False)

    play, admit = recorder.play, recorder.admit
    play("new_request", "a", prompt_token_ids=list(range(9)))
    admit("a", num_tokens=9)
    play("new_request", "b", prompt_token_ids=[*range(8), 20, 21])
    admit("b", num_tokens=10)
    play("append_tokens", "a", token_ids=[9, 10, 11])
    play("allocate_slots", "a", num_computed_tokens=9, status="RUNNING", num_new_tokens=3)
    play("free", "b")
    play("new_request", "c", prompt_token_ids=list(range(30, 40)))
    admit("c", num_tokens=10)
    popped = play("pop_blocks_for_free", "a")
    play("free_blocks", block_ids=popped[::-1])
    play("get_computed_blocks", "b")
    play("free", "c")
    return recorder


def test_a_run_of_kvfast_with_two_block_sizes_is_followed(tmp_path: Path) -> None:
    recorder = story(find_implementation("kvfast"), FULL, WINDOW)
    recorder.write(tmp_path / "run.jsonl")
    verdict = validate(tmp_path / "run.jsonl")
    assert list(verdict.lines()) == [f"{tmp_path / 'run.jsonl'}: followed, 16 operations"]


def test_an_altered_line_is_where_the_model_stops(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorder = story(find_implementation("kvref"), FULL)
    operations = list(recorder.operations)
    queue = operations[8].observed.state["free_queue"]
    state = {**operations[8].observed.state, "free_queue": [*queue[1:], queue[0]]}
    operations[8] = replace(operations[8], observed=replace(operations[8].observed, state=state))
    path = tmp_path / "altered.jsonl"
    write_trace(path, recorder.header, operations, {})
    assert main([str(path)]) == 1
    first, recorded, model, *_, last = capsys.readouterr().out.splitlines()
    assert first.endswith("REJECTED, at operation 8 (line 10), free, request 'b'")
    assert recorded == f"  free_queue: recorded  {[*queue[1:], queue[0]]}"
    assert model == f"  free_queue: the model {queue}"
    assert last.startswith("validate: 0 followed, 1 rejected, 0 left out")


MISTAKES = {
    "FreesFirstToLast": "free",
    "AnswersAnotherHit": "get_computed_blocks",
    "GivesABlockTwice": "allocate_slots",
}
"""Each with the call at which the model stops."""

QUICK = "AnswersAnotherHit"


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.deep] * (name != QUICK)) for name in MISTAKES]
)
def test_a_run_of_a_broken_implementation_is_rejected(name: str, tmp_path: Path) -> None:
    recorder = story(find(name).make(), FULL)
    operations = takewhile(_can_be_written, recorder.operations)
    write_trace(tmp_path / "broken.jsonl", recorder.header, operations, {})
    verdict = validate(tmp_path / "broken.jsonl")
    assert verdict.stopped
    assert MISTAKES[name] in verdict.stopped


def _can_be_written(operation: Operation) -> bool:
    """Check that no count is negative: no reader accepts one."""
    counts: list[int] = operation.observed.state.get("ref_cnt", [0])
    return min(counts) >= 0


def test_a_record_that_needs_what_the_model_has_not_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mamba = MambaSpec(4, ((4,),), ("float16",))
    recorder = Recorder(
        find_implementation("kvref"),
        ManagerConfig(
            KVCacheConfig(9, (KVCacheGroup(("layer.0",), mamba),)),
            max_model_len_tokens=32,
            hash_seed="0",
        ),
    )
    recorder.write(tmp_path / "states.jsonl")
    assert main([str(tmp_path)]) == 3
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("left out, the model has not: groups of MambaSpec")
    assert lines[1] == "left out for groups of MambaSpec: 1, of which 1 for nothing else"
    assert main([str(tmp_path / "none.jsonl")]) == 2


def test_a_state_of_the_checker_is_read() -> None:
    text = '[a |-> (<<1>> :> <<>> @@ <<1, 2>> :> <<3>>), b |-> {-1}, c |-> "x y", d |-> true]'
    assert value_of(text) == {
        "a": {(1,): (), (1, 2): (3,)},
        "b": frozenset({-1}),
        "c": "x y",
        "d": True,
    }
