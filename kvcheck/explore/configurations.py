"""The configurations to explore, by name: small, and each about something else."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from importlib.resources import files
from typing import Any

from kvcheck.explore.bounds import Admission, Call, Computation, Configuration, Step
from kvcheck.rules.bench import Bench
from kvcheck.rules.notation.setting import setting_of
from kvcheck.rules.notation.values import Reader
from kvspec.base import BaseImplementation
from kvspec.config import ManagerConfig
from kvspec.policy import Policy


@cache
def configurations() -> tuple[Configuration, ...]:
    """Read `data/explore.toml`.

    The default ones run first, with some 1,160,000 edges; the larger ones take hours.
    """
    text = files("kvcheck").joinpath("data/explore.toml").read_text(encoding="utf-8")
    written: dict[str, dict[str, Any]] = {}
    for name, members in tomllib.loads(text).items():
        written[name] = {**written.get(members.get("like", ""), {}), **members}
    return tuple(_configuration(name, members) for name, members in written.items())


def _text(digits: str) -> tuple[int, ...]:
    return tuple(map(int, digits))


def _each(read: Callable[..., Any]) -> Callable[[list[dict[str, Any]]], tuple[Any, ...]]:
    return lambda tables: tuple(read(**table) for table in tables)


READERS: Mapping[str, Callable[[Any], Any]] = {
    "prompts": lambda texts: tuple(map(_text, texts)),
    "tokens": _text,
    "admissions": _each(Admission),
    "computations": _each(Computation),
    "steps": _each(Step),
    "calls": lambda names: frozenset(map(Call, names)),
}


def _configuration(name: str, members: dict[str, Any]) -> Configuration:
    is_deep = members.pop("like", None) is not None
    config = manager_of(members.pop("manager"))
    decoded = {member: READERS.get(member, lambda v: v)(value) for member, value in members.items()}
    return Configuration(name, config=config, is_deep=is_deep, **decoded)


def manager_of(text: str) -> ManagerConfig:
    """Return the manager of a first line of an example without `pool`, with events by default."""
    setting = setting_of(Bench(BaseImplementation(), Policy()), Reader(text))
    return (
        setting.config if "enable_events" in text else replace(setting.config, enable_events=True)
    )
