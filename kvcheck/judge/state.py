"""The progress of a run as JSON, to resume it where it was stopped.

Violations are kept as the programs that show them; a resumed run tries them again, so that a
defect repaired in between disappears from its report.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, get_args

from kvcheck.judge.blame import Evidence
from kvcheck.play import steps as st
from kvspec._json import (
    Where,
    anything,
    checked_members,
    count,
    list_of,
    object_of,
    real,
    structure,
    text,
)
from kvspec.codec import decode_manager_config, encode_manager_config
from kvspec.errors import KVSpecError

FORMAT = "kvspec-check-state"
VERSION = 1

STEP_TYPES: Mapping[str, type[st.Step]] = {cls.__name__: cls for cls in get_args(st.Step)}


@dataclass(frozen=True)
class State:
    """State from which a run can resume.

    `run`: what must be the same: subject, level, seed, rules, policy, steps.
    `batch`: the next batch of random programs. `programs`, `examples`: what shows a violation.
    `about`: rules covered so far. `evidence`: the outcome of
    each directed check. `drawn`: random programs, of which `random` could be run.
    """

    run: Mapping[str, Any]
    batch: int = 0
    directed: int = 0
    random: int = 0
    seconds: float = 0.0
    situations: Mapping[str, int] = field(default_factory=dict)
    left_out: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    about: tuple[str, ...] = ()
    programs: tuple[st.Program, ...] = ()
    examples: tuple[str, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    drawn: int = 0

    def to_json(self) -> dict[str, Any]:
        plain = {member.name: getattr(self, member.name) for member in fields(self)}
        plain["left_out"] = {name: list(lacks) for name, lacks in self.left_out.items()}
        plain["situations"] = dict(self.situations)
        plain["programs"] = [encode_program(program) for program in self.programs]
        plain["evidence"] = [
            {"check": each.check, "rules": list(each.rules), "kind": list(each.kind or ())}
            for each in self.evidence
        ]
        lists = {name: list(plain[name]) for name in ("about", "examples")}
        return {"format": FORMAT, "version": VERSION, **plain, **lists}

    @classmethod
    def from_json(cls, value: object, where: Where) -> State:
        """Decode the content of a file. Raises FormatError."""
        found = checked_members(
            value,
            where,
            {
                "format": text,
                "version": count,
                "run": object_of(anything),
                "batch": count,
                "directed": count,
                "random": count,
                "seconds": real,
                "situations": object_of(count),
                "left_out": object_of(list_of(text)),
                "about": list_of(text),
                "programs": list_of(decode_program),
                "examples": list_of(text),
            },
            {"evidence": list_of(_evidence), "drawn": count},
        )
        if (found.pop("format"), found.pop("version")) != (FORMAT, VERSION):
            raise where.member("format").error(f"not a {FORMAT!r} of version {VERSION}")
        found["left_out"] = {name: tuple(lacks) for name, lacks in found["left_out"].items()}
        found["evidence"] = tuple(found.get("evidence", ()))
        return cls(**{**found, **{n: tuple(found[n]) for n in ("about", "programs", "examples")}})


def _evidence(value: object, where: Where) -> Evidence:
    """Decode a check, its rules, and the rule and name of its finding."""
    found = _EVIDENCE(value, where)
    if len(found["kind"]) not in (0, 2):
        raise where.member("kind").error("not a rule and a name, and not empty")
    kind = tuple(found["kind"])
    return Evidence(found["check"], tuple(found["rules"]), (kind[0], kind[1]) if kind else None)


_EVIDENCE = structure({"check": text, "rules": list_of(text), "kind": list_of(text)})


def encode_program(program: st.Program) -> dict[str, Any]:
    """Encode a program as JSON; custom specs are code and cannot be encoded (ConfigError)."""
    return {
        "name": program.name,
        "rules": list(program.rules),
        "config": encode_manager_config(program.config),
        "steps": [{"step": type(step).__name__, **asdict(step)} for step in program.steps],
    }


def decode_program(value: object, where: Where) -> st.Program:
    found = _PROGRAM(value, where)
    return st.Program(
        found["config"], tuple(found["steps"]), name=found["name"], rules=tuple(found["rules"])
    )


def _decode_step(value: object, where: Where) -> st.Step:
    found = object_of(anything)(value, where)
    name = text(found.pop("step", None), where.member("step"))
    if name not in STEP_TYPES:
        raise where.member("step").error(f"unknown step {name!r}")
    try:
        return STEP_TYPES[name](**{member: _frozen(item) for member, item in found.items()})
    except (TypeError, KVSpecError) as error:
        raise where.error(f"no {name}: {error}") from None


_PROGRAM = structure(
    {
        "name": text,
        "rules": list_of(text),
        "config": decode_manager_config,
        "steps": list_of(_decode_step),
    }
)


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value
