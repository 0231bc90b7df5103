"""vLLM's own manager against recorded traces and the vectors of known differences.

Skipped where vLLM cannot be imported; the command line in docs/FINDINGS.md runs the whole of it.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import kvref
from kvcheck.adapters.vllm import (
    VLLMImplementation,
    VLLMUnavailableError,
    implementation,
    scheduler_view,
)
from kvcheck.play.fit import policy_of
from kvcheck.play.verdicts import Level, first_violation
from kvcheck.records.trace import replay_trace
from kvspec.config import KVCacheConfig, KVCacheGroup, ManagerConfig
from kvspec.errors import ConfigError, UnknownBlockError, UnsupportedError
from kvspec.request import LoRA, PromptEmbeddings, RequestInput
from kvspec.specs import (
    CircularBufferSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    LayerSpec,
    RSWASpec,
    SlidingWindowSpec,
)
from kvspec.stats import PrefixCacheStats
from tests.programs import INSIDE_SCENARIOS

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # on import
TRACES = """admission-00024 bad_config-00036 chunked_full-00003 context_parallel-00015
cross_full-00011 deferred_free-00026 events-00019 external-00022 extra_keys-00029
full_sw_mamba-00009 kitchen_sink-00034"""
LATER_TRACES = """admission-330024 chunked_full-330003 circular-330040 context_parallel-330015
eagle-330014 external-330022 full_sw_mamba-330047 illegal-330035 internal_checkpoint-330056
load_failures-330023 lookahead_hash-330057 rswa-330039 sub_block_hits-330055"""

# The operation at which vLLM 0.24 differs from the rules; None where the call comes
# to the same: a precondition of the caller, or an assertion that the adapter makes a typed error.
DIFFERS_AT = {
    "align_external": "operation 1,",
    "align_null_gap": "operation 4,",
    "chunk_inside_block": "header,",
    "eagle_mamba": "operation 5,",
    "external_behind_lookahead": None,
    "illegal_arguments": "operation 5,",
    "late_items": "operation 1,",
    "released_twice": "operation 8,",
    "short_lists": "operation 17,",
    "skipped_read": None,
    "two_full_specs": "operation 6,",
    "verified_tokens": None,
    "whole_prompt_external": "operation 1,",
}


@pytest.fixture(scope="module")
def vllm() -> VLLMImplementation:
    try:
        return implementation()
    except VLLMUnavailableError as error:
        pytest.skip(str(error))


@pytest.fixture
def old(vllm: VLLMImplementation) -> VLLMImplementation:
    if vllm.library.is_later:
        pytest.skip(f"vLLM {vllm.library.version} is installed, and this is about 0.24.0")
    return vllm


@pytest.fixture
def later(vllm: VLLMImplementation) -> VLLMImplementation:
    if not vllm.library.is_later:
        pytest.skip(f"vLLM {vllm.library.version} is installed, and this is about 0.33.0")
    return vllm


@pytest.fixture
def vectors(root: Path) -> Path:
    """The records of the points at which the rules differ from vLLM."""
    return root / "kvcheck" / "data" / "records" / "differences"


@pytest.mark.shared
@pytest.mark.parametrize("name", f"{TRACES} {LATER_TRACES}".split())
def test_recorded_traces_pass(vllm: VLLMImplementation, shared: Path, name: str) -> None:
    if vllm.library.is_later is not ("-33" in name):
        pytest.skip(f"vLLM {vllm.library.version} is installed, and this is of the other one")
    folder = shared / ("golden-0.33" if vllm.library.is_later else "golden/manager")
    result = replay_trace(folder / f"{name}.jsonl.gz", vllm, policy=vllm.library.policy)
    assert result.passed, result.mismatch


def test_every_vector_is_looked_at(vectors: Path) -> None:
    assert {path.stem for path in vectors.glob("*.jsonl")} == set(DIFFERS_AT)


@pytest.mark.parametrize("name", sorted(DIFFERS_AT))
def test_vectors_show_where_vllm_differs(old: VLLMImplementation, vectors: Path, name: str) -> None:
    mismatch = replay_trace(vectors / f"{name}.jsonl", old).mismatch
    found = None if mismatch is None else mismatch.what.partition(" '")[0].partition(" the")[0]
    expected = DIFFERS_AT[name]
    assert found == expected or (expected and found and found.startswith(expected))


@pytest.mark.usefixtures("old")
def test_the_view_of_the_scheduler_shows_what_a_skipped_read_leaves(vectors: Path) -> None:
    mismatch = replay_trace(vectors / "skipped_read.jsonl", scheduler_view()).mismatch
    assert mismatch is not None
    assert mismatch.what.startswith("operation 8, ")


FULL = FullAttentionSpec(2, 1, 8, "float16")
WINDOW = SlidingWindowSpec(2, 1, 8, "float16", sliding_window=3)
RETAINING = replace(WINDOW, extra_retained_tokens=2)
RSWA = RSWASpec(2, 1, 8, "float16", rswa_window=3)
RING = CircularBufferSpec(4, 1, 8, "float16")


def config(of: VLLMImplementation, *specs: LayerSpec, caching: bool = True) -> ManagerConfig:
    """Configure the choices of `of`'s version."""
    groups = tuple(KVCacheGroup((f"layer.{i}",), spec) for i, spec in enumerate(specs))
    return ManagerConfig(
        KVCacheConfig(12, groups),
        max_model_len_tokens=32,
        enable_caching=caching,
        enable_events=True,
        log_stats=True,
        hash_seed="0",
        policy=of.library.policy,
    )


@pytest.mark.parametrize("spec", [RETAINING, RSWA, RING], ids=lambda spec: type(spec).__name__)
def test_specs_of_0_33_are_refused_by_0_24(old: VLLMImplementation, spec: LayerSpec) -> None:
    with pytest.raises(UnsupportedError, match=r"RSWASpec|BufferSpec|retained_tokens above 0"):
        old.create(config(old, spec, caching=spec is not RING))


def test_int_event_hashes_belong_to_one_manager(vllm: VLLMImplementation) -> None:
    shown = []
    for int_hashes in (False, True):
        members = {**vars(config(vllm, FULL)), "int_event_hashes": int_hashes}
        manager = vllm.create(ManagerConfig(**members))
        request = vllm.make_request(manager, RequestInput("a", [1, 2, 3]))
        manager.allocate_slots(request, 3)
        (event,) = manager.take_events()
        shown.append(event.block_hashes[0])  # type: ignore[union-attr]
    as_bytes, as_int = shown
    assert isinstance(as_bytes, bytes)
    assert as_int == int.from_bytes(as_bytes[-8:], "big")


def test_embeddings_and_adapters_enter_the_hashes_as_the_rules_say(
    vllm: VLLMImplementation,
) -> None:
    reference = kvref.implementation()
    own = config(vllm, FULL)
    form = "tagged" if own.policy.extra_keys == "plain" else "plain"
    other = replace(own, policy=replace(own.policy, extra_keys=form))
    embeddings = PromptEmbeddings(bytes(range(12)), bytes_per_token=3)
    for given_input in (
        RequestInput("a", [0, 0, 0, 0], prompt_embeddings=embeddings),
        RequestInput("a", [5, 6, 7], lora=LoRA("tuned", 1), cache_salt="s"),
        RequestInput("a", [5, 6, 7], lora=LoRA("tuned", 1, "/adapters/tuned")),
    ):
        hashes = [
            list(made.make_request(made.create(own), given_input).block_hashes)
            for made in (reference, vllm)
        ]
        assert hashes[0] == hashes[1]
        assert hashes[0]
        with pytest.raises(UnsupportedError, match="extra keys"):
            vllm.make_request(vllm.create(other), given_input)


def test_a_refused_configuration_is_a_config_error(old: VLLMImplementation) -> None:
    with pytest.raises(ConfigError, match="AssertionError"):
        old.create(config(old, FULL, FULL))  # KV-COORD-3: two different specs


def test_hits_inside_a_block_are_judged(later: VLLMImplementation) -> None:
    """Find that 0.33.0 keys a state for unseen tokens, and copies what this step writes."""
    found = set()
    for story in INSIDE_SCENARIOS:
        policy = policy_of(later.library.policy, later.capabilities)
        program = replace(story, config=replace(story.config, policy=policy))
        violation = first_violation(program, later, Level.SAFETY)
        found |= set() if violation is None else {violation.rule}
    assert found == {"KV-INSIDE-2", "KV-INSIDE-6"}


def test_errors_are_typed(vllm: VLLMImplementation) -> None:
    manager = vllm.create(config(vllm, FULL))
    with pytest.raises(UnknownBlockError):
        manager.free_blocks([12])
    with pytest.raises(ValueError, match="evict_blocks: vLLM raised AssertionError"):
        manager.evict_blocks([12])
    request = vllm.make_request(manager, RequestInput("a", [1]))
    with pytest.raises(UnsupportedError):
        manager.find_longest_cache_hit_per_group(request, 1)
    manager = vllm.create(config(vllm, CrossAttentionSpec(2, 1, 8, "float16")))
    request = vllm.make_request(manager, RequestInput("a", [1, 2, 3]))
    with pytest.raises(UnsupportedError, match="get_computed_blocks"):
        manager.get_computed_blocks(request)


def test_the_window_of_hit_rates_is_vllms(vllm: VLLMImplementation) -> None:
    window = vllm.make_hit_rate_window(2)
    for hits in (4, 0, 0):
        window.observe(PrefixCacheStats(requests=1, queries_tokens=4, hits_tokens=hits))
    assert (window.num_requests, window.hit_rate) == (2, 0.0)
