"""Copies of managers: snapshots that the notation cannot write down (KV-MGR-20)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvcheck.play.verdicts import Level
from kvcheck.rules.bench import Bench
from kvcheck.rules.example import cases, example
from kvcheck.rules.judging import holds, raises
from kvcheck.rules.specs import mamba
from kvspec.errors import ConfigError, InvalidArgumentError
from kvspec.snapshot import RequestState, Snapshot


@example("KV-MGR-20")
def the_mark_of_a_state_may_be_left_out(bench: Bench) -> None:
    """Check None for a group in mode align: the request is restored as if it took no block yet."""
    manager = bench.manager(6, mamba(4, "align"))
    request = manager.started("r", range(4))
    holds(manager.has_taken_blocks(request))
    snapshot = manager.snapshot()
    unmarked = {"r": replace(snapshot.requests["r"], mamba=(None,))}
    restored = bench.restore(manager.config, replace(snapshot, requests=unmarked))
    holds(not restored.has_taken_blocks(request))


@cases(
    {"requests": {"r": RequestState(((1,), (2,)), (None, None))}},
    {"requests": {"r": RequestState(((),), (1,))}},
    {"requests": {7: RequestState(((),), (None,))}},
    {"requests": {"r": RequestState(((),), ("1",))}},  # type: ignore[arg-type]  # the point
    {"requests": {"r": RequestState(((),), (None,), (7,))}},  # type: ignore[arg-type]  # the point
    {"free_queue": [5]},
    {"lookup_order": {b"x": None}},
    {"none_hash": b"short"},
    {"step_keys": (frozenset({1}),)},
)
@example("KV-MGR-20", level=Level.SAFETY)
def a_snapshot_has_entries_of_its_types(bench: Bench, members: dict[str, Any]) -> None:
    manager = bench.manager(6)
    manager.admit(manager.request("r", range(9)))
    with raises(InvalidArgumentError, field="snapshot"):
        bench.restore(manager.config, replace(manager.snapshot(), **members))


@cases(None, {}, "snapshot")
@example("KV-MGR-20", level=Level.SAFETY)
def only_a_snapshot_is_restored_and_only_under_a_configuration(bench: Bench, bad: Snapshot) -> None:
    with raises(InvalidArgumentError, field="snapshot"):
        bench.restore(bench.config(), bad)
    with raises(ConfigError):
        bench.restore(bad, bench.manager().snapshot())  # type: ignore[arg-type]  # the point
