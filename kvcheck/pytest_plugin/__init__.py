"""`pytest --kv-impl IMPL`: the checks of `kvspec check` as tests, one per rule.

    pytest --kv-impl mymanager:implementation -n auto

pytest imports this module in every run of every project beside which kvspec is installed. So it
imports nothing and does nothing until `--kv-impl` is there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

LEVELS = ("safety", "behaviour", "identity")
BUDGETS = ("directed", "fast", "ci", "deep")


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options; what they mean is what they mean to `kvspec check`."""
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
        help="how much must be equal to the reference (default: the highest that can be checked:"
        " identity, behaviour without a snapshot, safety without the hashes of the contract)",
    )
    group.addoption(
        "--kv-profile",
        default="default",
        metavar="PROFILE",
        help="the implementation's declared choices: a shipped profile or a TOML file",
    )
    group.addoption(
        "--kv-budget",
        choices=BUDGETS,
        default="fast",
        help="one test per rule only, or tests of random programs too: half a minute of them, some"
        " minutes, about an hour (default: %(default)s)",
    )
    group.addoption(
        "--kv-seed", type=int, default=0, metavar="N", help="of the random programs (default: 0)"
    )
    group.addoption(
        "--kv-rules",
        action="append",
        metavar="GLOB",
        help="only these rules, e.g. 'KV-POOL-*'; may be given again",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Load the tests, if they are asked for."""
    if config.getoption("--kv-impl") is None:
        return
    from kvcheck.pytest_plugin.collection import Contract

    config.pluginmanager.register(Contract.of(config), "kvspec-contract")
