"""vLLM's planning functions behind the contract's planner; skipped without vLLM 0.24."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvcheck.adapters.vllm import VLLMImplementation, VLLMUnavailableError, implementation
from kvcheck.adapters.vllm.errors import VLLMAnswerError
from kvcheck.records.planning import replay_planning
from kvcheck.rules.notation.setting import PLANNED, spec_of
from kvcheck.rules.notation.values import Reader
from kvspec.errors import CacheMemoryError, ConfigError, PageSizeError, UnsupportedError
from kvspec.planning import Layers, PlanningConfig

SETTINGS = PlanningConfig(64, 16)


def layers(*texts: str) -> Layers:
    """Return layers 0, 1, 2 … in the words of the examples, `window 8 of 16`."""
    specs = [spec_of(Reader(text).values(), PLANNED)[0] for text in texts]
    return tuple((str(number), spec) for number, spec in enumerate(specs))


@pytest.fixture(scope="module")
def vllm() -> VLLMImplementation:
    try:
        found = implementation()
    except VLLMUnavailableError as error:
        pytest.skip(str(error))
    if found.planner is None:
        pytest.skip(f"vLLM {found.library.version} is installed; planning is that of 0.24.0")
    return found


@pytest.mark.shared
@pytest.mark.parametrize("name", ["planning", "planning_exotic"])
def test_every_recorded_plan_comes_out_again(
    vllm: VLLMImplementation, shared: Path, name: str
) -> None:
    """Replay plans recorded without the adapter, which must change nothing."""
    found = replay_planning(shared / "golden" / f"{name}.jsonl.gz", vllm)
    assert found.passed
    assert not found.failed


@pytest.fixture
def planner(vllm: VLLMImplementation) -> Any:
    return vllm.planner


def test_refusals_carry_the_numbers_that_vllm_had(planner: Any) -> None:
    with pytest.raises(CacheMemoryError) as memory:
        planner.check_enough_memory(layers("full of 16"), SETTINGS, 3 * 65_536)
    assert (memory.value.needed_bytes, memory.value.longest_tokens) == (4 * 65_536, 48)
    with pytest.raises(ConfigError) as none:
        planner.check_enough_memory(layers("full of 16"), SETTINGS, 0)
    assert (none.value.field, none.value.value) == ("available_memory_bytes", 0)
    with pytest.raises(PageSizeError) as page:
        planner.unify_page_size(layers("mamba of 16 shapes=[[24576]]", "mamba of 16 shapes=[[16]]"))
    assert (page.value.layer, page.value.value, page.value.wanted) == ("1", 64, 98_304)
    with pytest.raises(ConfigError) as hybrid:
        planner.unify_hybrid(layers("full of 16", "mamba of 16 shapes=[[16]]"))
    assert hybrid.value.field == "disable_hybrid"


def test_what_vllm_does_not_have_is_unsupported_and_no_difference(planner: Any) -> None:
    with pytest.raises(UnsupportedError, match="merging no specs"):
        planner.merge(())
    with pytest.raises(UnsupportedError, match="HALF"):
        planner.spec_properties(layers('latent of 16 kv_quant_mode="HALF"')[0][1], SETTINGS)
    with pytest.raises(UnsupportedError, match="Unsupported KV cache spec type"):
        planner.uniform_type(layers("encoder of 16"))


def test_an_answer_that_the_contract_has_no_value_for_is_no_refusal(planner: Any) -> None:
    """Grow blocks from 16 to 48 tokens, so that 32 sink tokens are no whole block."""
    with pytest.raises(VLLMAnswerError, match="sink_len"):
        planner.unify_page_size(layers("full of 16 head_size=384", "sink 32 of 16"))


def test_warnings_are_those_that_vllm_logs(planner: Any) -> None:
    model = layers(*["full of 16"] * 2, *["window 8 of 16"] * 3)
    (said,) = planner.plan((model,), SETTINGS, (2**30,)).warnings
    assert said == "Add 1 padding layers, may waste at most 33.33% KV cache memory"
