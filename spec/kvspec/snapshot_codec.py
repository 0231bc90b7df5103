"""Encode snapshots as JSON, every member by its name, and decode them.

The form is that of the protocol (`spec/protocol.md`, Snapshot) and of records that start from a
state (`spec/records.md`). Decoding is strict: a missing or unknown member or a wrong type is a
FormatError that names the member. Ids and counts may be negative: a snapshot shows the state, right
or wrong.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import index
from typing import Any

from kvspec.files.objects import count
from kvspec.files.shapes import FORMS, Form, Shape
from kvspec.snapshot import RequestState, Snapshot


def ints(values: Iterable[Any]) -> list[int]:
    """Convert to plain ints: an implementation may return an array, but never floats."""
    return [index(value) for value in values]


def hexes(hashes: Iterable[bytes]) -> list[str]:
    """Encode hashes as hex."""
    return [block_hash.hex() for block_hash in hashes]


_STATE = Shape(RequestState, sometimes=())
_SNAPSHOT = Shape(
    Snapshot,
    forms={**FORMS, RequestState: _STATE.form, "num_blocks": Form(count, index)},
    sometimes=("pending_copies", "written_from", "ranks"),
)
encode_snapshot = _SNAPSHOT.write
decode_snapshot = _SNAPSHOT.read
