"""Errors of a server are reported as what they are: a broken rule, or no reply at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvcheck.play.verdicts import Level, first_violation
from kvcheck.remote.manager import ALLOCATE_DEFAULTS, RemoteManager
from kvspec.codec import field_of_member
from kvspec.interface import Implementation, KVCacheManager
from tests.programs import SCENARIOS
from tests.remote.servers import connect

USAGE = 'RIGHT["get_usage"] = {"num_free_blocks": %s, "usage": 0.0}\n'
LISTS = 'RIGHT["get_block_ids"] = {"blocks": [[]], "unhashed": [[]]}\n'


@pytest.mark.parametrize(
    "answers",
    [USAGE % "5.0", USAGE % "5" + LISTS + 'RIGHT["make_request"] = {}\n'],
    ids=["a float for an int", "a member that is missing"],
)
def test_what_is_no_answer_breaks_no_rule(tmp_path: Path, answers: str) -> None:
    server: Implementation = connect(tmp_path, answers + 'until("nothing")')
    violation = first_violation(SCENARIOS[0], server, Level.SAFETY)
    assert violation is not None
    assert (violation.rule, violation.name) == ("protocol", "speaks_the_protocol")
    assert violation.expected == "a message as spec/protocol.md has it"
    assert "answered nonsense" in violation.observed


@pytest.mark.parametrize(
    ("member", "field"),
    [
        ("groups", "kv_cache.groups"),
        ("kv_cache.groups", "kv_cache.groups"),
        ("num_blocks", "kv_cache.num_blocks"),
        ("scheduler_block_size", "scheduler_block_size_tokens"),
        ("watermark", "watermark"),
    ],
)
def test_an_error_may_name_the_member_or_the_field(member: str, field: str) -> None:
    assert field_of_member(member) == field


def test_each_default_is_left_out_in_one_call_and_sent_in_the_next() -> None:
    manager = object.__new__(RemoteManager)  # type: ignore[type-abstract]  # made of the interface
    manager._num_allocations = 0  # without a server
    first, second = (manager._some_left_out(ALLOCATE_DEFAULTS) for _ in range(2))
    assert set(first) | set(second) == set(ALLOCATE_DEFAULTS)
    assert not set(first) & set(second)
    other = {**dict.fromkeys(ALLOCATE_DEFAULTS, 1), "has_scheduled_reqs": False}
    assert manager._some_left_out(other) == manager._some_left_out(other) == other


def test_the_defaults_are_those_of_the_interface() -> None:
    assert KVCacheManager.allocate_slots.__kwdefaults__ == dict(ALLOCATE_DEFAULTS)
