"""vLLM's planning functions behind the contract's planner: as recorded, and with planted bugs.

Skipped where vLLM cannot be imported.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kvcheck.adapters.vllm import VLLMImplementation, VLLMUnavailableError, implementation
from kvcheck.adapters.vllm.errors import VLLMAnswerError
from kvcheck.judge.options import Budget, Options
from kvcheck.judge.suite import Suite
from kvcheck.play.verdicts import Level
from kvcheck.records.planning import replay_planning
from kvcheck.rules.notation.setting import PLANNED, spec_of
from kvcheck.rules.notation.values import Reader
from kvspec.errors import CacheMemoryError, ConfigError, PageSizeError, UnsupportedError
from kvspec.planning import Layers, PlanningConfig
from kvspec.policy import Policy

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


Patch = Callable[[pytest.MonkeyPatch, Any], None]
"""Puts a bug into vLLM's modules, given those that the adapter uses."""


def _window_without_its_first_block(patch: pytest.MonkeyPatch, library: Any) -> None:
    window = library.interface.SlidingWindowSpec
    right = window.max_admission_blocks_per_request
    name = "max_admission_blocks_per_request"
    patch.setattr(window, name, lambda self, *given, **named: right(self, *given, **named) - 1)


def _pads_instead_of_growing(patch: pytest.MonkeyPatch, library: Any) -> None:
    def padded(specs: dict[str, Any]) -> dict[str, Any]:
        largest = max((spec.page_size_bytes for spec in specs.values()), default=0)
        return {
            name: replace(spec, page_size_padded=largest)
            if spec.page_size_bytes < largest
            else spec
            for name, spec in specs.items()
        }

    patch.setattr(library.utils, "unify_kv_cache_spec_page_size", padded)


def _deals_layers_out_one_after_another(patch: pytest.MonkeyPatch, library: Any) -> None:
    right = library.utils.create_kv_cache_group_specs

    def dealt(specs: dict[str, Any], names: list[list[str]]) -> Any:
        sizes, of_spec = [len(each) for each in names], {}  # type: ignore[var-annotated]  # a stack
        for name in specs:
            of_spec.setdefault(specs[name], []).append(name)
        firsts = [specs[each[0]] for each in names]
        runs = zip(firsts, sizes, strict=True)
        again = [[of_spec[spec].pop(0) for _ in range(size)] for spec, size in runs]
        return right(specs, again)

    patch.setattr(library.utils, "create_kv_cache_group_specs", dealt)


def _makes_a_block_too_many(patch: pytest.MonkeyPatch, library: Any) -> None:
    right = library.utils.get_num_blocks
    patch.setattr(library.utils, "get_num_blocks", lambda *given: right(*given) + 1)


def _keeps_each_workers_blocks(patch: pytest.MonkeyPatch, library: Any) -> None:
    right = library.utils.get_kv_cache_configs

    def kept(config: Any, specs: Any, memory: Any) -> Any:
        return [right(config, [one], [own])[0] for one, own in zip(specs, memory, strict=True)]

    patch.setattr(library.utils, "get_kv_cache_configs", kept)


def _schedules_by_the_last_layer(patch: pytest.MonkeyPatch, library: Any) -> None:
    right = library.utils.generate_scheduler_kv_cache_config

    def last(configs: list[Any]) -> Any:
        made = right(configs)
        for group, given in zip(made.kv_cache_groups, configs[0].kv_cache_groups, strict=True):
            specs = getattr(given.kv_cache_spec, "kv_cache_specs", None)
            if specs:
                group.kv_cache_spec = list(specs.values())[-1]
        return made

    patch.setattr(library.utils, "generate_scheduler_kv_cache_config", last)


def _aligns_to_the_longest_block(patch: pytest.MonkeyPatch, library: Any) -> None:
    patch.setattr(library.utils, "math", SimpleNamespace(lcm=max, gcd=math.gcd))


def _forgets_a_layer_in_the_check(patch: pytest.MonkeyPatch, library: Any) -> None:
    right = library.utils.max_memory_usage_bytes
    patch.setattr(
        library.utils, "max_memory_usage_bytes", lambda config, specs: right(config, [*specs][:1])
    )


PLANTED: dict[str, Patch] = {
    "KV-PLAN-4": _pads_instead_of_growing,
    "KV-PLAN-6": _deals_layers_out_one_after_another,
    "KV-PLAN-8": _window_without_its_first_block,
    "KV-PLAN-9": _forgets_a_layer_in_the_check,
    "KV-PLAN-12": _makes_a_block_too_many,
    "KV-PLAN-15": _keeps_each_workers_blocks,
    "KV-PLAN-16": _schedules_by_the_last_layer,
    "KV-PLAN-18": _aligns_to_the_longest_block,
}


def broken(vllm: VLLMImplementation) -> list[str]:
    """Return the planning rules that directed checks find broken, the likeliest cause first."""
    options = Options(
        Level.IDENTITY, Budget(0.0, 0), rules=("KV-PLAN-*",), policy=Policy.vllm_0_24()
    )
    return [violation.rule for violation in Suite(vllm, None, options).run().violations]


@pytest.fixture(scope="module")
def broken_before(vllm: VLLMImplementation) -> frozenset[str]:
    """The rules that vLLM breaks as it is, under its own profile."""
    return frozenset(broken(vllm))


@pytest.mark.parametrize("rule", PLANTED)
def test_a_bug_put_into_its_planning_is_found_and_named(
    vllm: VLLMImplementation,
    broken_before: frozenset[str],
    rule: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    PLANTED[rule](monkeypatch, vllm.library)
    new = [each for each in broken(vllm) if each not in broken_before]
    assert rule in new


def test_only_planning_that_is_meant_is_broken(broken_before: frozenset[str]) -> None:
    assert not broken_before & PLANTED.keys()
