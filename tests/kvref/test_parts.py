"""What is only true of the reference: its own checks, and refusals of what it lacks."""

from __future__ import annotations

import inspect
import re
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

import kvref
from kvcheck.play.verdicts import Level, first_violation
from kvcheck.records.planning import replay_planning
from kvcheck.rules.specs import full
from kvref.block_pool import BlockPool
from kvref.events import EventLog
from kvref.implementation import ReferenceImplementation
from kvref.manager import ReferenceManager
from kvspec.codec import decode_layers, decode_planning_config
from kvspec.config import CustomSpec, SpecRegistry
from kvspec.errors import (
    CacheMemoryError,
    ConfigError,
    InvalidArgumentError,
    InvariantViolation,
    KVSpecError,
    UnsupportedError,
)
from kvspec.files.objects import Where
from kvspec.interface import Implementation, KVCacheManager
from kvspec.policy import Policy
from kvspec.record import PlanningRecord
from kvspec.record_file import read_planning
from kvspec.request import RequestInput
from kvspec.specs import SPEC_TYPES, LayerSpec, UniformTypeKVCacheSpecs
from tests.contract.builders import make_config, new_manager, new_request
from tests.programs import SCENARIOS


def test_defaults_are_those_of_the_interface() -> None:
    for mine, contract in (
        (ReferenceManager, KVCacheManager),
        (ReferenceImplementation, Implementation),
    ):
        for name, promised in vars(contract).items():
            if name.startswith("_") or not inspect.isfunction(promised):
                continue
            found = inspect.signature(getattr(mine, name)).parameters
            for parameter in inspect.signature(promised).parameters.values():
                assert found[parameter.name].default == parameter.default, (name, parameter)


KVREF = kvref.implementation()


@pytest.mark.parametrize("stranger", [None, "kvref", object()])
def test_a_foreign_manager_is_refused(stranger: KVCacheManager) -> None:
    request = new_request(KVREF, new_manager(KVREF), "r", [1])
    for call in (
        lambda: KVREF.make_request(stranger, RequestInput("r", [1])),
        lambda: KVREF.append_tokens(stranger, request, [1]),
        lambda: KVREF.clone(stranger),
    ):
        with pytest.raises(InvalidArgumentError) as caught:
            call()
        assert caught.value.field == "manager"
    assert list(request.token_ids) == [1]


@pytest.mark.rule("KV-HASH-12", "KV-ERR-5")
def test_without_the_package_xxhash_its_function_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "xxhash", None)
    for seed in ("0", None):
        with pytest.raises(UnsupportedError) as caught:
            KVREF.create(
                make_config(hash_function="xxhash_cbor", trusted_tenants=True, hash_seed=seed)
            )
        assert "pip install 'kvspec[xxhash]'" in str(caught.value)
        assert caught.value.implementation == "kvref"
    KVREF.create(make_config(hash_function="sha256_cbor_64bit", trusted_tenants=True))


@pytest.mark.rule("KV-POOL-18")
def test_a_full_block_is_not_registered_twice() -> None:
    """Let a key for 8 tokens replace one for 4, not the reverse, and not twice."""
    pool = BlockPool(3, events=EventLog(enabled=False, int_hashes=False))
    (block,) = pool.allocate(1)
    pool.register(block, b"partial", 4)
    pool.register(block, b"full", 8)
    assert pool.keys[block] == [b"full"]
    for num_tokens in (4, 8):
        with pytest.raises(InvariantViolation) as caught:
            pool.register(block, b"again", num_tokens)
        assert caught.value.rule == "KV-POOL-18"
        assert caught.value.invariant == "blocks_are_registered_once"
    assert pool.keys[block] == [b"full"]
    assert pool.cached == {b"full": [block]}


@dataclass(frozen=True)
class RingSpec(LayerSpec):
    """A ring of `ring_tokens` tokens."""

    ring_tokens: int = 8


@pytest.mark.parametrize(
    ("found", "error"), [(None, ConfigError), (7, ConfigError), (RingSpec(4), UnsupportedError)]
)
def test_a_registry_returns_built_in_specs(found: LayerSpec, error: type[KVSpecError]) -> None:
    registry = SpecRegistry((CustomSpec(RingSpec, lambda spec: found),))
    with pytest.raises(error):
        KVREF.create(make_config(specs=[RingSpec(4)], registry=registry))


@pytest.mark.parametrize("custom", [None, [CustomSpec(RingSpec, lambda spec: full())], (RingSpec,)])
def test_a_registry_lists_custom_specs(custom: tuple[CustomSpec, ...]) -> None:
    with pytest.raises(ConfigError) as caught:
        SpecRegistry(custom)
    assert caught.value.field == "custom"


def test_the_capabilities_name_every_spec_that_a_group_may_have() -> None:
    assert KVREF.capabilities.name == "kvref"
    assert KVREF.capabilities.spec_types == set(SPEC_TYPES) - {UniformTypeKVCacheSpecs}
    with pytest.raises(UnsupportedError):
        KVREF.create(make_config(specs=[UniformTypeKVCacheSpecs(4, (("layer", full(4)),))]))


POLICIES = (
    Policy(),
    Policy.vllm_0_24(),
    Policy(unhashed_freed_to="back"),
    Policy(removed_event_per="last_copy"),
    Policy(chunked_null_prefix_is_hit=False),
)


@pytest.mark.rule("KV-POL-9")
@pytest.mark.parametrize("policy", POLICIES)
def test_no_policy_touches_safety(policy: Policy) -> None:
    """Check shadow memory, conservation and refusals under every choice, in every directed story.

    Removed events for the last copy fold as a set (KV-POL-3), which the check of the stream as a
    multiset would call wrong, so events are off there.
    """
    told_once = policy.removed_event_per == "last_copy"
    for program in SCENARIOS:
        events = program.config.enable_events and not told_once
        config = replace(program.config, policy=policy, enable_events=events)
        assert first_violation(replace(program, config=config), KVREF, Level.SAFETY) is None


def records(shared: Path, name: str) -> Path:
    path = shared / "golden" / name
    if not path.is_file():
        pytest.skip(f"{path} is not here")
    return path


@pytest.mark.shared
def test_all_usual_records_pass(shared: Path) -> None:
    found = replay_planning(records(shared, "planning.jsonl.gz"), ReferenceImplementation())
    assert (found.passed, found.failed, found.num_quirky) == (890, 0, 11)


@pytest.mark.shared
def test_all_exotic_records_pass(shared: Path) -> None:
    found = replay_planning(records(shared, "planning_exotic.jsonl.gz"), ReferenceImplementation())
    assert (found.passed, found.failed, found.num_quirky) == (249, 0, 0)


@pytest.mark.shared
@pytest.mark.parametrize("name", ["planning.jsonl.gz", "planning_exotic.jsonl.gz"])
def test_refusals_name_the_recorded_numbers(name: str, shared: Path) -> None:
    compared = 0
    for record in read_planning(records(shared, name)):
        if not isinstance(record, PlanningRecord) or " GiB KV cache" not in (record.message or ""):
            continue
        with pytest.raises(CacheMemoryError) as caught:
            ask(record)
        assert numbers_of(caught.value) == recorded_numbers(str(record.message)), record.id
        compared += 1
    assert compared > 10


def ask(record: PlanningRecord) -> None:
    planner = ReferenceImplementation().planner
    assert planner is not None
    here = Where("record")
    given = record.input
    config = decode_planning_config(given["config"], here)
    memory = given["available_memory"]
    if "workers" in given:
        workers = tuple(decode_layers(layers, here) for layers in given["workers"])
        planner.plan(workers, config, tuple(memory))
    else:
        planner.check_enough_memory(decode_layers(given["layers"], here), config, memory)


def numbers_of(error: CacheMemoryError) -> tuple[float, float, int]:
    gib = 2**30
    return (
        round(error.needed_bytes / gib, 2),
        round(error.available_bytes / gib, 2),
        error.longest_tokens,
    )


def recorded_numbers(message: str) -> tuple[float, float, int]:
    sizes = re.search(r"\(([\d.]+) GiB KV cache.*memory \(([\d.]+) GiB\)", message)
    longest = re.search(r"maximum model length is (\d+)", message)
    assert sizes is not None
    return float(sizes[1]), float(sizes[2]), int(longest[1]) if longest else 0
