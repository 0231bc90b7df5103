"""A subject is judged by the forms of extra keys that it names (KV-POL-10)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import kvref
from kvcheck.discovery import find_implementation
from kvcheck.judge.options import Budget, Options
from kvcheck.judge.suite import Suite
from kvcheck.play.verdicts import Level
from kvcheck.remote.client import RemoteImplementation
from kvref.implementation import ReferenceImplementation
from kvspec.config import ManagerConfig
from kvspec.errors import UnsupportedError
from kvspec.interface import Capabilities, KVCacheManager
from kvspec.policy import Policy
from kvspec.request import RequestInput
from tests.remote.configs import config
from tests.remote.servers import serve


class Plain(ReferenceImplementation):
    def create(self, config: ManagerConfig, **options: Any) -> KVCacheManager:
        plain = replace(config, policy=replace(config.policy, extra_keys="plain"))
        return super().create(plain, **options)


class DeclaredPlain(Plain):
    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, extra_key_forms=frozenset({"plain"}))


def broken(subject: ReferenceImplementation, level: Level) -> set[str]:
    rules = ("KV-HASH-7", "KV-HASH-8", "KV-HASH-9", "KV-HASH-10", "KV-POL-10", "KV-EVT-8")
    options = Options(level, Budget(0.0, 0), rules)
    report = Suite(subject, kvref.implementation(), options).run()
    assert report.directed > 0
    return {violation.rule for violation in report.violations}


def test_who_has_only_plain_keys_is_judged_under_plain() -> None:
    assert broken(DeclaredPlain(), Level.IDENTITY) == set()
    assert broken(DeclaredPlain(), Level.SAFETY) == set()


def test_who_names_tags_and_hashes_none_is_found() -> None:
    assert broken(Plain(), Level.IDENTITY) >= {"KV-HASH-7", "KV-HASH-8", "KV-HASH-9", "KV-HASH-10"}
    assert broken(Plain(), Level.SAFETY) == {"KV-HASH-10"}


def test_an_old_server_is_sent_no_extra_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    remote = find_implementation(serve("kvref"))
    assert isinstance(remote, RemoteImplementation)
    connection = remote.connection
    old = replace(connection.capabilities, extra_key_forms=frozenset({"plain"}))
    monkeypatch.setattr(connection, "capabilities", old)
    sent = []
    call = connection.call

    def noted(op: str, **how: object) -> object:
        sent.append(how.get("args"))
        return call(op, **how)  # type: ignore[arg-type]  # as they came

    monkeypatch.setattr(connection, "call", noted)
    manager = remote.create(config())
    assert "extra_keys" not in sent[-1]["config"]["policy"]  # type: ignore[index]  # a message
    remote.make_request(manager, RequestInput("a", [1, 2, 3, 4]))
    with pytest.raises(UnsupportedError, match="extra keys tagged"):
        remote.make_request(manager, RequestInput("b", [1, 2, 3, 4], cache_salt="s"))
    plain = remote.create(config(policy=Policy(extra_keys="plain")))
    salted = remote.make_request(plain, RequestInput("b", [1, 2, 3, 4], cache_salt="x"))
    assert salted.block_hashes[0].hex().startswith("7cd63c0c509703c9")
    remote.close()
