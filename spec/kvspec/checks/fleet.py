"""Checks of the arguments of an index of engines, each read only once (KV-FLEET-9)."""

from __future__ import annotations

from collections.abc import Sequence

from kvspec.domains import count, text
from kvspec.errors import InvalidArgumentError
from kvspec.events import AllBlocksCleared, BlockRemoved, BlockStored, EventHash
from kvspec.fleet import Batch, EngineState, GroupPrefix, MediumCleared

REMOVED_PER = ("copy", "last_copy")


def check_index(removed_event_per: str, max_waiting: int) -> int:
    """Check the options of an index; returns the number of batches that may wait."""
    if removed_event_per not in REMOVED_PER:
        raise InvalidArgumentError("removed_event_per", removed_event_per, " or ".join(REMOVED_PER))
    return count("max_waiting", max_waiting, 1)


def check_engine(engine: str) -> str:
    """Return the name of an engine as a plain string."""
    text("engine", engine, error=InvalidArgumentError)
    return str.__str__(engine)


def check_batch(batch: Batch) -> None:
    """Check that a batch has a number, a time, and events of the contract."""
    if not isinstance(batch, Batch):
        raise InvalidArgumentError("batch", batch, "a Batch")
    count("number", batch.number)
    _check_time(batch.time_s)
    for event in batch.events:
        if not isinstance(event, BlockStored | BlockRemoved | AllBlocksCleared | MediumCleared):
            raise InvalidArgumentError("events", event, "BlockStored, BlockRemoved, …Cleared")
        if isinstance(event, AllBlocksCleared):
            continue
        text("medium", event.medium, error=InvalidArgumentError)
        if not isinstance(event, MediumCleared):
            check_hashes("events", event.block_hashes)
            count("group", event.group)


def check_state(state: EngineState) -> None:
    """Check that a state has a number from -1 on, a time, and counts above 0."""
    if not isinstance(state, EngineState):
        raise InvalidArgumentError("state", state, "an EngineState")
    if state.number != -1:
        count("number", state.number)
    if (state.number, state.time_s) != (-1, float("-inf")):  # before the first batch
        _check_time(state.time_s)
    for (medium, group, block_hash), copies in state.keys.items():
        text("medium", medium, error=InvalidArgumentError)
        count("group", group)
        check_hashes("keys", (block_hash,))
        count("keys", copies, 1)


def check_hashes(field: str, hashes: Sequence[EventHash]) -> None:
    """Check hashes as events show them."""
    if not isinstance(hashes, Sequence) or isinstance(hashes, str | bytes):
        raise InvalidArgumentError(field, hashes, "a sequence of hashes")
    for one in hashes:
        if type(one) is not bytes and type(one) is not int:
            raise InvalidArgumentError(field, one, "a hash as events show it: bytes, or an int")


def check_groups(groups: Sequence[GroupPrefix]) -> None:
    """Check that there is at least one group, and none twice."""
    if not isinstance(groups, Sequence) or not groups:
        raise InvalidArgumentError("groups", groups, "a sequence of at least one GroupPrefix")
    for one in groups:
        if not isinstance(one, GroupPrefix):
            raise InvalidArgumentError("groups", one, "a GroupPrefix")
        count("group", one.group)
        check_hashes("hashes", one.hashes)
        count("block_size_tokens", one.block_size_tokens, 1)
        if one.num_last_blocks is not None:
            count("num_last_blocks", one.num_last_blocks)
    if len({one.group for one in groups}) < len(groups):
        raise InvalidArgumentError("groups", groups, "each group once")


def _check_time(time_s: float) -> None:
    # `not … < inf` also refuses NaN, which is neither before nor after anything.
    if type(time_s) not in (int, float) or not abs(time_s) < float("inf"):
        raise InvalidArgumentError("time_s", time_s, "a number of seconds")
