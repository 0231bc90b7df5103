"""The choices that kvref offers besides what the rules say."""

from __future__ import annotations

from dataclasses import replace

import pytest

import kvref
from kvcheck.play.verdicts import Level, first_violation
from kvcheck.rules.scenarios import SCENARIOS
from kvcheck.rules.specs import chunked, full
from kvspec.errors import ConfigError
from kvspec.events import BlockRemoved
from kvspec.interface import KVCacheManager
from kvspec.planning import PlanningConfig
from kvspec.policy import Policy
from tests.contract.builders import admit, hit_of, new_manager, new_request, queue_of
from tests.mistakes import mistaken

KVREF = kvref.implementation()


@pytest.mark.rule("KV-POOL-6", "KV-POL-2")
@pytest.mark.parametrize(
    ("where", "queue"), [("front", [4, 5, 3, 2, 1]), ("back", [5, 4, 3, 2, 1])]
)
def test_where_unhashed_blocks_go(where: str, queue: list[int]) -> None:
    """Released as [4, 3, 2, 1], of which 3, 2, 1 are cached: 4 in front, or all in list order."""
    manager = new_manager(KVREF, 6, policy=Policy(unhashed_freed_to=where))
    request = new_request(KVREF, manager, "r", range(13))
    admit(manager, request)
    manager.free(request)
    assert queue_of(manager) == queue


def two_copies(policy: Policy) -> KVCacheManager:
    """Blocks 1 and 2 carry one key; the events so far are taken."""
    manager = new_manager(KVREF, 6, policy=policy, enable_events=True)
    requests = [new_request(KVREF, manager, name, range(4)) for name in "ab"]
    for request in requests:
        manager.allocate_slots(request, 4, delay_cache_blocks=True)
    for request in requests:
        manager.cache_blocks(request, 4)
    manager.take_events()
    return manager


@pytest.mark.rule("KV-EVT-4", "KV-POL-3")
@pytest.mark.parametrize(("per", "events"), [("copy", [1, 1]), ("last_copy", [0, 1])])
def test_what_a_removal_is_told_for(per: str, events: list[int]) -> None:
    """Every copy that goes, or only the last one; a look-up finds the other copy either way."""
    manager = two_copies(Policy(removed_event_per=per))
    told = []
    for block, left in ((1, [2]), (2, [])):
        manager.evict_blocks([block])
        taken = manager.take_events()
        assert all(isinstance(event, BlockRemoved) for event in taken)
        told.append(len(taken))
        assert hit_of(manager, new_request(KVREF, manager, "c", range(5))) == left
    assert told == events


@pytest.mark.rule("KV-CHUNK-2", "KV-POL-4")
@pytest.mark.parametrize(("is_hit", "hit"), [(True, [0, 0]), (False, [])])
def test_whether_a_null_prefix_is_a_hit(is_hit: bool, hit: list[int]) -> None:
    """A fresh prompt of 11 tokens with chunks of 8: the first chunk counts as computed, or not."""
    policy = Policy(chunked_null_prefix_is_hit=is_hit)
    manager = new_manager(KVREF, 6, specs=[chunked(4, 8)], policy=policy)
    assert hit_of(manager, new_request(KVREF, manager, "r", range(11))) == hit


@pytest.mark.rule("KV-PLAN-9", "KV-POL-5")
@pytest.mark.parametrize(("counts", "least"), [(True, 5), (False, 4)])
def test_whether_planning_counts_the_null_block(counts: bool, least: int) -> None:
    """One layer, block size 16, 64 tokens: 5 blocks of memory are needed, or 4 are accepted."""
    layers = (("layer", full(16)),)
    config = PlanningConfig(64, 64, policy=Policy(capacity_counts_null_block=counts))
    planner = KVREF.planner
    assert planner is not None
    page = planner.spec_properties(full(16), config).page_size_bytes
    planner.check_enough_memory(layers, config, least * page)
    with pytest.raises(ConfigError):
        planner.check_enough_memory(layers, config, least * page - 1)


@pytest.mark.rule("KV-CHUNK-3", "KV-POL-6")
def test_whether_a_chunk_must_be_a_multiple_of_the_block_size() -> None:
    """Chunk 6 with block size 4 is an error that names the field, or a manager."""
    with pytest.raises(ConfigError) as raised:
        new_manager(KVREF, 6, specs=[chunked(4, 6)])
    assert raised.value.field == "attention_chunk_size"
    new_manager(KVREF, 6, specs=[chunked(4, 6)], policy=Policy.vllm_0_24())


@pytest.mark.rule("KV-POL-7")
def test_a_manager_with_ids_of_its_own_conforms_at_behaviour_only() -> None:
    """Unhashed runs turned around change ids and nothing else: a policy, seen at identity."""
    subject = mistaken("UnhashedRunReversed", audits=True)

    def breaks(level: Level) -> bool:
        return any(first_violation(program, subject, level, KVREF) for program in SCENARIOS)

    assert not breaks(Level.BEHAVIOUR)
    assert breaks(Level.IDENTITY)


@pytest.mark.rule("KV-POL-8")
def test_hash_functions_are_named_and_others_refused() -> None:
    """The names of the capabilities make managers; another name is a configuration error."""
    for name in KVREF.capabilities.hash_functions:
        made = new_manager(KVREF, hash_function=name, trusted_tenants=True)
        assert made.config.hash_function == name
    with pytest.raises(ConfigError) as raised:
        new_manager(KVREF, hash_function="md5")
    assert raised.value.field == "hash_function"


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
    """Shadow memory, conservation and refusals hold under every choice, in every directed story.

    Removed events for the last copy fold as a set (KV-POL-3), which the check of the stream as a
    multiset would call wrong, so events are off there.
    """
    told_once = policy.removed_event_per == "last_copy"
    for program in SCENARIOS:
        events = program.config.enable_events and not told_once
        config = replace(program.config, policy=policy, enable_events=events)
        assert first_violation(replace(program, config=config), KVREF, Level.SAFETY) is None
