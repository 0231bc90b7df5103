"""The choices that kvref offers besides what the rules say."""

from __future__ import annotations

from dataclasses import replace

import pytest

import kvref
from kvcheck.play.verdicts import Level, first_violation
from kvspec.policy import Policy
from tests.mistakes import mistaken
from tests.programs import SCENARIOS

KVREF = kvref.implementation()


@pytest.mark.rule("KV-POL-7")
def test_a_manager_with_ids_of_its_own_conforms_at_behaviour_only() -> None:
    subject = mistaken("UnhashedRunReversed", audits=True)

    def breaks(level: Level) -> bool:
        return any(first_violation(program, subject, level, KVREF) for program in SCENARIOS)

    assert not breaks(Level.BEHAVIOUR)
    assert breaks(Level.IDENTITY)


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
