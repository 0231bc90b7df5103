"""The installed version of vLLM, and the differences of its manager between releases."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from kvspec.errors import KVSpecError
from kvspec.policy import Policy
from kvspec.profile import find_profile

OLDEST, NEWEST = 24, 33
"""Of vLLM 0.24 to 0.33."""
CHANGES: Mapping[int, tuple[str, ...]] = MappingProxyType(
    {
        26: (
            *("zeroed_blocks", "full_partial_tails", "hits_inside_blocks"),
            *("drafts_hold_states", "checkpoints_return", "hits_reported"),
        ),
        27: ("lookups_counted",),
        29: ("zero_retention_needs_windows", "none_hash_without_seed"),
        30: (*("eagle_replays_before_drop", "default_retention"), "capacity_counts_null_block"),
        31: ("extra_keys",),
        32: ("counts_common_prefix", "eagle_looks_beyond"),
        33: ("popped_leading_nulls", "eagle_flag_counts_alone", "caching_beyond_tokens"),
    }
)
"""From which release on a choice of a manager's is 0.33's, and not 0.24's."""


class UnsupportedEngineError(KVSpecError, ImportError):
    """vLLM is missing, or its version is none that kvfast was tried with.

    `found`: its version; None: it cannot be imported.
    """

    def __init__(self, found: str | None) -> None:
        there = "no vLLM can be imported" if found is None else f"vLLM {found} is installed"
        super().__init__(f"kvfast.engines.vllm is for vLLM 0.{OLDEST} to 0.{NEWEST}; {there}")
        self.found = found


def release() -> int:
    """Return the number after the 0 in vLLM's version: 33 for 0.33.0.

    Raises UnsupportedEngineError unless kvfast was tested with that release.
    """
    try:
        found = str(importlib.import_module("vllm.version").__version__)
    except ImportError as error:
        raise UnsupportedEngineError(None) from error
    major, _, rest = found.partition(".")
    minor = rest.partition(".")[0]
    if major != "0" or not minor.isdigit() or not OLDEST <= int(minor) <= NEWEST:
        raise UnsupportedEngineError(found)
    return int(minor)


def is_since(minor: int) -> bool:
    """Return whether it is vLLM 0.`minor` or later."""
    return release() >= minor


def policy_of(minor: int, *, enable_caching: bool = True) -> Policy:
    """Return the policy of the manager of vLLM 0.`minor`."""
    first, last = find_profile("vllm-0.24").policy, find_profile("vllm-0.33").policy
    made = [name for since, names in CHANGES.items() if since <= minor for name in names]
    found = replace(first, **{name: getattr(last, name) for name in made})
    if minor == 27 and not enable_caching:
        return replace(found, unhashed_freed_to="back")
    return found
