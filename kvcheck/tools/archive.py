"""Static vectors and recorded stories as conversations, to be read where there is no Python.

A record speaks of requests by name and shows states; here each call is a message of the protocol
(spec/protocol.md) with the answer that is right, so that a reader needs nothing but JSON. What
stands in the folder, its README says.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from kvcheck.play.compare import BUILTIN_ERRORS
from kvcheck.play.features import QUESTIONS, can_be_left_out, needed_features, needs
from kvcheck.records.manifest import shipped_sets
from kvcheck.records.select import find, shipped_records
from kvcheck.remote.operations import MESSAGES, OWNED_BY_SCHEDULER, PROTOCOL_VERSION
from kvcheck.remote.values import ERRORS
from kvspec.codec import encode_manager_config
from kvspec.interface import Feature
from kvspec.policy import Policy
from kvspec.profile import RECORDS_PROFILE, find_profile
from kvspec.record import Header, Operation
from kvspec.record_file import read_whole_trace
from kvspec.requirements import features_of_config
from kvspec.snapshot_codec import encode_snapshot

FORMAT = "kvspec-conversations"
VERSION = 1
INDEX = "index.jsonl"
STORIES = "stories"
"""The set of records that are no walks."""

MANAGER = 1
"""The handle of the one manager of a file."""

SWITCHES = frozenset({Feature.EVENTS, Feature.STATISTICS})
"""A manager without them makes none, whatever its configuration says."""

SILENT = QUESTIONS | {"new_request", "append_tokens", "get_computed_blocks"}
"""Calls after which nobody asks how many blocks are free."""


@dataclass(frozen=True)
class Conversation:
    """One file of the archive: what it is about, and its lines."""

    of_set: str
    number: int
    summary: str
    rules: tuple[str, ...]
    header: Header
    operations: tuple[Operation, ...]

    @property
    def file(self) -> str:
        """Its path."""
        return f"{self.of_set}/{self.number:02}.jsonl"

    def lines(self) -> Iterator[dict[str, Any]]:
        """Each with a message, and the answer or the errors that are right."""
        speaker = Speaker()
        args = {"protocol": [PROTOCOL_VERSION], "client": FORMAT}
        yield {"message": speaker.message("hello", args=args)}
        yield speaker.begin(self.header)
        for operation in self.operations:
            if operation.quirks:
                return  # the rules call wrong what was recorded from here on
            yield from speaker.lines(operation)

    def entry(self, text: bytes) -> dict[str, Any]:
        """Its line in the index; `text`: the file."""
        config = self.header.config
        types = {type(config.registry.resolve(group.spec)) for group in config.kv_cache.groups}
        features = needed_features(self.operations) | (features_of_config(config) - SWITCHES)
        if self.header.start is not None:
            features.add(Feature.RESTORE)
        return {
            "file": self.file,
            "sha256": hashlib.sha256(text).hexdigest(),
            "lines": text.count(b"\n"),
            "summary": self.summary,
            "spec_types": sorted(cls.__name__ for cls in types),
            "hash_functions": [config.hash_function] if config.enable_caching else [],
            "features": sorted(features),
            "rules": list(self.rules),
        }


class Speaker:
    """Turns operations of a record into messages: numbers for names, and `set`."""

    def __init__(self) -> None:
        self._requests: dict[str, int] = {}
        self._last_handle = MANAGER
        self._next_id = 0

    def message(self, op: str, **members: Any) -> dict[str, Any]:
        """The next message."""
        number, self._next_id = self._next_id, self._next_id + 1
        return {"id": number, "op": op, **members}

    def begin(self, header: Header) -> dict[str, Any]:
        """The line that makes the manager."""
        args: dict[str, Any] = {"config": encode_manager_config(header.config)}
        if header.start is None:
            op, args["check_invariants"] = "create_manager", False
        else:
            op, args["snapshot"] = "restore_manager", encode_snapshot(header.start)
        line = {"message": self.message(op, manager=MANAGER, args=args)}
        return line if header.raises is None else {**line, "errors": classes(header.raises)}

    def lines(self, operation: Operation) -> Iterator[dict[str, Any]]:
        """The call, and how many blocks are free after it."""
        needed = sorted(needs(operation)) if can_be_left_out(operation) else []
        line: dict[str, Any] = {"message": self._call(operation)}
        if operation.raises is not None:
            line["errors"] = classes(operation.raises)
        elif "result" not in operation.uncompared:
            line["result"] = operation.result
        yield {**line, "needs": needed} if needed else line
        if operation.name not in SILENT:
            shown = operation.observed
            usage = {"num_free_blocks": shown.num_free_blocks, "usage": shown.usage}
            yield {"message": self.message("get_usage", manager=MANAGER), "result": usage}

    def _call(self, operation: Operation) -> dict[str, Any]:
        name = operation.request_id
        op, args = operation.name, dict(operation.arguments)
        if op == "new_request":
            op = "make_request"
            args = {"request_id": name, **args}
            self._last_handle += 1
            self._requests[str(name)] = self._last_handle
        shape = MESSAGES[op]
        owned = {
            member: args.pop(member)
            for member in OWNED_BY_SCHEDULER
            if member in args and member not in {*shape.required, *shape.optional}
        }
        about = {"manager": MANAGER} if name is None else self._about(name)
        return self.message(op, **about, **({"set": owned} if owned else {}), args=args)

    def _about(self, name: str) -> dict[str, int]:
        return {"manager": MANAGER, "request": self._requests[name]}


def classes(raises: str) -> list[str]:
    """The errors of the protocol that a caller would catch by this name."""
    return sorted(cls.__name__ for cls in ERRORS if issubclass(cls, BUILTIN_ERRORS[raises]))


def conversations(sets: Collection[str] = ()) -> Iterator[Conversation]:
    """Those of the sets named, else all."""
    for folder, manifest in shipped_sets():
        for number, walk in enumerate(manifest.walks if _wanted(manifest.name, sets) else (), 1):
            found = read_whole_trace(folder / walk.file, policy=Policy())
            yield Conversation(manifest.name, number, manifest.summary, manifest.rules, *found)
    if _wanted(STORIES, sets):
        policy = find_profile(RECORDS_PROFILE).policy
        told = [each for each in find([shipped_records()]) if not each.is_planning]
        for number, each in enumerate(told, 1):
            header, operations = read_whole_trace(each.path, policy=policy)
            yield Conversation(STORIES, number, each.path.stem, (), header, operations)


def set_names() -> tuple[str, ...]:
    """Every set, in order."""
    return (*(manifest.name for _, manifest in shipped_sets()), STORIES)


def _wanted(name: str, sets: Collection[str]) -> bool:
    return not sets or name in sets


def files(sets: Collection[str] = ()) -> Iterator[tuple[str, bytes]]:
    """Path and content of each file of the archive; the index last, since it lists the others."""
    yield "README.md", README.encode()
    entries: list[Mapping[str, Any]] = [
        {"format": FORMAT, "version": VERSION, "protocol": PROTOCOL_VERSION}
        | {"kvspec": version("kvspec")}
    ]
    for conversation in conversations(sets):
        text = _lines(conversation.lines())
        entries.append(conversation.entry(text))
        yield conversation.file, text
    yield INDEX, _lines(entries)


def _lines(values: Iterable[Mapping[str, Any]]) -> bytes:
    return b"".join(json.dumps(each, separators=(",", ":")).encode() + b"\n" for each in values)


def write_archive(path: Path, sets: Collection[str] = ()) -> int:
    """Write a folder, or a tar where the name ends in `.tar.gz`. Returns how many files it has.

    The same sets give the same bytes of a tar, compressors apart.
    """
    number = 0
    if not path.name.endswith(".tar.gz"):
        for name, content in files(sets):
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_bytes(content)
            number += 1
        return number
    folder = path.name.removesuffix(".tar.gz")
    with (
        gzip.GzipFile(path, "wb", mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w") as tar,
    ):
        for name, content in files(sets):
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
            number += 1
    return number


README = f"""# KV-cache conversations, version {VERSION}

Walks along every edge of small graphs, and recorded stories, of the KV-cache contract. Each file
is one conversation with one manager, for the tests of an engine in any language. `{INDEX}` has a
header, then a line per file:

| member | |
|---|---|
| `file`, `lines`, `sha256` | where it is, how long, and the hash of its bytes |
| `summary`, `rules` | what it tells, and the rules that a failure may be about |
| `spec_types`, `hash_functions`, `features` | what a manager needs; without it leave the file out |

Each line of a file is an object:

| member | |
|---|---|
| `message` | a message of the protocol, version {PROTOCOL_VERSION} (spec/protocol.md): call it |
| `result` | the answer must be this, to the last block id; without it any result is right |
| `errors` | in place of it: the call must fail with one of these, and change nothing |
| `needs` | leave the line out if the manager lacks one of these features |

The first message is `hello`; its answer says what your manager has. A manager without `events` or
`statistics` ignores the switches for them. Numbers fit into doubles, but for some token ids.
Another `version` in the header is another format: refuse it.
"""
