"""`pytest --kv-impl IMPL`: the examples of `kvspec check` as tests, one per rule.

    pytest --kv-impl mymanager:implementation -n auto

pytest imports this module in every run of every project in whose environment kvspec is installed,
so it imports and does nothing unless `--kv-impl` is given.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

LEVELS = ("safety", "behaviour", "identity")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("kvspec", "the KV-cache contract")
    group.addoption(
        "--kv-impl",
        metavar="IMPL",
        help="check this implementation: an installed name, package.module:factory or"
        " 'cmd:PROGRAM ARGS…'. Without paths, nothing else is collected.",
    )
    group.addoption(
        "--kv-level",
        choices=LEVELS,
        help="how closely the reference must be matched (default: identity; behaviour if IMPL has"
        " no snapshot; safety if it lacks the contract's hashes)",
    )
    group.addoption(
        "--kv-profile",
        default="default",
        metavar="PROFILE",
        help="the implementation's declared choices: the name of a shipped profile, or a TOML file",
    )
    group.addoption(
        "--kv-rules",
        action="append",
        metavar="GLOB",
        help="check only these rules, e.g. 'KV-POOL-*'; may be repeated",
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--kv-impl") is None:
        return
    from kvcheck.pytest_plugin.collection import Contract

    config.pluginmanager.register(Contract.of(config), "kvspec-contract")
