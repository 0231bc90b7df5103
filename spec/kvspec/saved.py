"""Save the state of a manager to a file, and load a manager from it (KV-MGR-20).

    from kvspec.saved import load, save

    save(manager, "cache.state")
    manager = load(implementation, "cache.state")

The file contains what a snapshot has: block lists under the ids of their requests, cached
keys, the order of eviction, references, blocks queued for zeroing or copying. Three things are
not:

- The keys and values themselves. The caller keeps the memory of the cache, or writes it apart, and
  in the same moment: a block whose memory was lost must not be hit (`reset_prefix_cache`).
- Queued events, counted look-ups and samples. A publisher must take them before saving.
- Tokens of requests. An engine makes them again under the same ids, by `make_request` and
  `append_tokens`, which change no manager.

`spec/saved.md` is the format. Any implementation with `Feature.SNAPSHOT` can be saved and any with
`Feature.RESTORE` loaded, each from the other's files.
"""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any

from kvspec._state_file import AGAIN, StateFile, write_state
from kvspec.audit import audited, unwrapped
from kvspec.codec import decode_manager_config, encode_manager_config, field_of_member
from kvspec.columns import ColumnImplementation, ColumnManager, Columns, columns_of, snapshot_of
from kvspec.config import ManagerConfig
from kvspec.errors import ConfigError, FormatError, KVSpecError, SavedStateError, UnsupportedError
from kvspec.files.objects import Where
from kvspec.files.replacing import replacing
from kvspec.interface import Feature, Implementation, KVCacheManager
from kvspec.invariants import HASH_SIZE_BYTES


def save(manager: KVCacheManager, path: str | PathLike[str]) -> None:
    """Write the state of a manager, between two calls, to a file that takes the place of `path`.

    Killed at any moment it leaves the old file or the new one. Raises OSError, UnsupportedError
    without snapshots, and InvalidArgumentError (`registry`) for custom specs, which are code.
    """
    config = encode_manager_config(manager.config)
    inner = unwrapped(manager)
    if isinstance(inner, ColumnManager):
        columns = inner.columns()
    else:
        columns = columns_of(manager.snapshot())
    with replacing(Path(path)) as file:
        write_state(file, config, columns)


def load(
    implementation: Implementation,
    path: str | PathLike[str],
    *,
    config: ManagerConfig | None = None,
    check_invariants: bool = True,
) -> KVCacheManager:
    """Load a manager in the state of a file, without queued events or statistics.

    `config`: the engine's configuration; None: that in the file. `check_invariants`: check all of
    them now and after every call, O(pool), as in `create`. Without it only the implementation's own
    checks in `restore` are made: the checksum vouches for the rest.

    Raises OSError, UnsupportedError without `Feature.RESTORE`, and SavedStateError, whose `reason`
    says whether the file is not a state, of another version, cut off, damaged or of another
    configuration. Nothing was made then.
    """
    if Feature.RESTORE not in implementation.capabilities.features:
        raise UnsupportedError("restoring a state", implementation.capabilities.name)
    found = StateFile(Path(path))
    written = _config_in(found.file, found.config)
    if config is not None:
        _check_equal(found.file, found.config, config)
    try:
        return _restored(
            implementation, written, found.columns(), check_invariants=check_invariants
        )
    except (ConfigError, UnsupportedError) as error:
        problem = f"has a configuration that {implementation.capabilities.name} refuses ({error})"
        raise SavedStateError(found.file, "configuration", problem, AGAIN) from error
    except (KVSpecError, ValueError, IndexError, OverflowError) as error:
        problem = f"holds no state of a manager ({error})"
        raise SavedStateError(found.file, "damaged", problem, AGAIN) from error


def _restored(
    implementation: Implementation,
    config: ManagerConfig,
    columns: Columns,
    *,
    check_invariants: bool,
) -> KVCacheManager:
    # Before anything is made of that size: a file of 3 kB can name 2^53 blocks.
    num_blocks = config.kv_cache.num_blocks
    if not num_blocks == columns.rest.num_blocks == len(columns.ref_counts):
        raise ValueError(f"{num_blocks} blocks, and references of {len(columns.ref_counts)}")
    if isinstance(implementation, ColumnImplementation):
        manager = implementation.restore_columns(config, columns)
    else:
        snapshot = snapshot_of(columns, HASH_SIZE_BYTES[config.hash_function])
        manager = unwrapped(implementation.restore(config, snapshot))
    return audited(manager) if check_invariants else manager


def _config_in(file: str, value: Any) -> ManagerConfig:
    try:
        return decode_manager_config(value, Where(file, None))
    except FormatError as error:
        problem = f"has a configuration that this version does not know ({error.problem})"
        raise SavedStateError(file, "configuration", problem, AGAIN) from error


def _check_equal(file: str, written: dict[str, Any], config: ManagerConfig) -> None:
    """Raise SavedStateError that names each member of the configuration that differs."""
    wanted = encode_manager_config(config)
    differing = sorted(
        f"{field_of_member(name)} is {written.get(name)!r} there and {wanted.get(name)!r} here"
        for name in written.keys() | wanted.keys()
        # Block sizes that are derived are in the file, and may be left out here.
        if written.get(name) != wanted.get(name) and not (name in _DERIVED and wanted[name] is None)
    )
    if differing:
        problem = f"is the state of another configuration: {'; '.join(differing)}"
        advice = "load it with the configuration it was saved with, or start with an empty cache"
        raise SavedStateError(file, "configuration", problem, advice)


_DERIVED = ("scheduler_block_size", "hash_block_size")
