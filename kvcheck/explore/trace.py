"""The path to a broken rule: as operations, in words, and as a record."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvcheck.explore.search import Pair, Violation
from kvcheck.explore.sides import Side, follow
from kvcheck.explore.state import BATCHED_STEP
from kvcheck.play.player import Outcome
from kvcheck.play.recorder import write_finding
from kvcheck.play.text import operation_text, shortened, shown
from kvcheck.rulebook import rule_names, rule_sentences, stated
from kvspec.errors import KVSpecError
from kvspec.record import Finding


@dataclass(frozen=True)
class Told:
    """One operation and the reference's result; none for the last one."""

    name: str
    request_id: str | None
    arguments: Mapping[str, Any]
    answer: str = ""


def operations(violation: Violation, pair: Pair) -> tuple[Told, ...]:
    """Return every operation from the start to the one after which the rule is broken."""
    told: list[Told] = []

    def heard(
        name: str, request_id: str | None, arguments: Mapping[str, Any], outcome: Outcome
    ) -> None:
        told.append(Told(name, request_id, dict(arguments), _answer(name, outcome)))

    side = Side(pair.oracle, violation.configuration)
    manager = side.player.manager
    follow(side, manager, violation.path[:-1], heard)
    last = [Told(*operation) for operation in violation.broken.operations]
    return (*told, *last)


def _answer(name: str, outcome: Outcome) -> str:
    if name in ("new_request", "append_tokens"):
        return ""
    if outcome.error is not None:
        return f"{type(outcome.error).__name__}, as it must be"
    if name == "allocate_slots" and outcome.result is None:
        return "refused"
    if name == BATCHED_STEP:
        granted = {member: outcome.result[member] for member in ("num_scheduled_tokens", "rows")}
        return shown(granted)
    if name == "get_computed_blocks":
        num_tokens, blocks = outcome.result["num_computed_tokens"], outcome.result["blocks"]
        return f"{num_tokens} tokens in {shown(blocks)}" if num_tokens else "no hit"
    return "" if outcome.result is None else shown(outcome.result)


def lines(violation: Violation, pair: Pair) -> Iterator[str]:
    """Yield the violation in words: the rule, the calls that lead there, what is wrong."""
    broken = violation.broken
    yield stated(broken.rule)
    way = f"the last of {len(violation.path)} moves; fewer do not show it"
    if broken.before:
        way = f"the last of {len(violation.path)} moves, some of which changed nothing to be seen"
    if len(violation.path) == 1:
        way = "the first move"
    configuration = violation.configuration
    yield f"  broken in {configuration.name!r} by {way}"
    yield f"  {configuration.name}: {configuration.summary}"
    told = operations(violation, pair)
    for number, operation in enumerate(told, 1):
        call = operation_text(operation.name, operation.request_id, operation.arguments)
        answer = f"  → {operation.answer}" if operation.answer else ""
        yield f"  {'>' if number == len(told) else ' '} {number:>3}  {call}{answer}"
    yield f"  {broken.name}: {shortened(broken.detail)}"


def to_json(violation: Violation, pair: Pair) -> dict[str, Any]:
    broken = violation.broken
    return {
        "configuration": violation.configuration.name,
        "rule": broken.rule,
        "rule_name": rule_names().get(broken.rule),
        "invariant": broken.name,
        "detail": broken.detail,
        "num_moves": len(violation.path),
        "operations": [
            {"op": told.name, "req": told.request_id, "args": dict(told.arguments)}
            for told in operations(violation, pair)
        ],
    }


def write_record(violation: Violation, pair: Pair, folder: Path) -> tuple[Path | None, str]:
    """Write the record of a violation; return it, or the reason why there is none.

    It holds the reference's results, so that the subject fails it at the last operation, which has
    the finding. Without a subject it holds what the broken implementation itself does.
    """
    if any(told.name == BATCHED_STEP for told in operations(violation, pair)):
        return None, "records hold single calls, and this way has whole steps"
    folder.mkdir(parents=True, exist_ok=True)
    broken, configuration = violation.broken, violation.configuration
    path = folder / f"{configuration.name}-{broken.rule}.jsonl"
    sentence = rule_sentences().get(broken.rule, "")
    finding = Finding(broken.rule, sentence, shortened(broken.detail))
    made = ((each.name, each.request_id, each.arguments) for each in operations(violation, pair))
    try:
        write_finding(path, pair.oracle, configuration.config, made, finding)
    except OSError:
        raise
    except (KVSpecError, ValueError, TypeError, LookupError, AttributeError) as error:
        path.unlink(missing_ok=True)
        return None, f"records cannot hold it ({error})"
    return path, ""
