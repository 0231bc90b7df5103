"""Write the examples as conversations, to be read without Python.

Each example runs on kvref in another process, and its messages are recorded: messages of the
protocol (spec/protocol.md) with the right replies, so that a reader needs only JSON. The README
written beside them describes the folder.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from importlib.resources import files as data_files
from pathlib import Path
from typing import Any

from kvcheck.play.features import FEATURE_OF_ARGUMENT, can_be_left_out, needed_features, needs
from kvcheck.play.left_out import LeftOut
from kvcheck.remote.client import RemoteImplementation
from kvcheck.remote.connection import Options
from kvcheck.remote.operations import PROTOCOL_VERSION
from kvcheck.rules.bench import Bench
from kvcheck.rules.managed import FEATURE_OF_CALL
from kvcheck.rules.notation.playing import played
from kvcheck.rules.notation.shipped import shipped_stories
from kvcheck.rules.notation.story import Story
from kvspec.codec import decode_manager_config
from kvspec.config import ManagerConfig
from kvspec.files.objects import Where
from kvspec.interface import Feature
from kvspec.policy import Policy
from kvspec.record import Observed, Operation
from kvspec.requirements import features_of_config

FORMAT = "kvspec-conversations"
VERSION = 1
INDEX = "index.jsonl"

SWITCHES = frozenset({Feature.EVENTS, Feature.STATISTICS})
"""A manager without them makes none, whatever its configuration says."""

OF_MESSAGE: Mapping[str, Feature] = {
    **FEATURE_OF_CALL,
    "clone_manager": Feature.CLONE,
    "make_window": Feature.STATISTICS,
    "observe": Feature.STATISTICS,
    "plan": Feature.PLANNING,
    "restore_manager": Feature.RESTORE,
}
"""Messages that are not part of the base, and no operation of a record."""

QUESTIONS = frozenset({"snapshot", "take_residency_samples", "get_block", "get_unhashed_block_ids"})
UNHEARD = frozenset({"hello", "drop"})
HANDLES = ("manager", "request", "copy", "window")
NOTHING = Observed(0, 0.0, {}, None)


@dataclass(frozen=True)
class Exchange:
    message: Mapping[str, Any]
    answer: Mapping[str, Any]

    @property
    def op(self) -> str:
        return str(self.message["op"])

    @property
    def args(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.message.get("args", {})
        return found

    @property
    def errors(self) -> list[str]:
        """Errors that may be returned if one must be; UnsupportedError also for ConfigError."""
        error = self.answer.get("error")
        if error is None:
            return []
        return [error["class"], *(["UnsupportedError"] if error["class"] == "ConfigError" else [])]

    @property
    def operation(self) -> Operation:
        """The exchange as an operation of a record, from which its features are read."""
        arguments = {**self.message.get("set", {}), **self.args}
        name = "new_request" if self.op == "make_request" else self.op
        request = self.message.get("request")
        return Operation(
            index=0,
            name=name,
            request_id=None if request is None else str(request),
            arguments=arguments,
            observed=NOTHING,
            result=self.answer.get("result"),
            raises=self.errors[0] if self.errors else None,
        )

    @property
    def needs(self) -> set[Feature]:
        found = set(needs(self.operation))
        owned = self.message.get("set", {})
        found |= {FEATURE_OF_ARGUMENT[name] for name in owned if name in FEATURE_OF_ARGUMENT}
        if self.op in OF_MESSAGE:
            found.add(OF_MESSAGE[self.op])
        if self.args.get("prompt_embeddings"):
            found.add(Feature.PROMPT_EMBEDDINGS)
        return found

    @property
    def is_left_out_alone(self) -> bool:
        """Whether the rest of the conversation is the same without it."""
        return self.op in QUESTIONS or can_be_left_out(self.operation)


@dataclass(frozen=True)
class Conversation:
    """One file of the archive: an example, and its messages."""

    chapter: str
    number: int
    story: Story
    exchanges: tuple[Exchange, ...]

    @property
    def file(self) -> str:
        return f"{self.chapter}/{self.number:02}.jsonl"

    def configs(self) -> Iterator[ManagerConfig]:
        for each in self.exchanges:
            if "config" in each.args and not each.errors:
                yield decode_manager_config(each.args["config"], Where("config"))

    def lines(self) -> Iterator[dict[str, Any]]:
        """Yield lines with a message, and the right reply or errors."""
        args = {"protocol": [PROTOCOL_VERSION], "client": FORMAT}
        yield {"message": {"id": 0, "op": "hello", "args": args}}
        handles: dict[int, int] = {}
        for number, each in enumerate(self.exchanges, 1):
            line: dict[str, Any] = {
                "message": _renumbered({**each.message, "id": number}, handles),
            }
            if each.errors:
                line["errors"] = each.errors
            elif "config" not in each.args:  # sizes and the first parent are asked by examples
                line["result"] = each.answer["result"]
            needed = sorted(each.needs) if each.is_left_out_alone else []
            yield {**line, "needs": needed} if needed else line

    def entry(self, text: bytes) -> dict[str, Any]:
        """Return its line in the index; `text`: the content of the file."""
        given = [each.args["config"] for each in self.exchanges if "config" in each.args]
        types = {group["spec"]["type"] for config in given for group in config["groups"]}
        functions = {each["hash_function"] for each in given if each["enable_caching"] is True}
        features = {each for config in self.configs() for each in features_of_config(config)}
        features -= SWITCHES
        kept = [each for each in self.exchanges if not each.is_left_out_alone]
        features |= {feature for each in kept for feature in each.needs}
        features |= needed_features(
            each.operation for each in self.exchanges if "request" in each.message
        )
        return {
            "file": self.file,
            "sha256": hashlib.sha256(text).hexdigest(),
            "lines": text.count(b"\n"),
            "summary": self.story.name,
            "spec_types": sorted(types),
            "hash_functions": sorted(functions),
            "features": sorted(features),
            "rules": list(self.story.rules),
        }


def _renumbered(message: dict[str, Any], handles: dict[int, int]) -> dict[str, Any]:
    """Return the message with handles that count from 1 in each file."""

    def of(members: Mapping[str, Any]) -> dict[str, Any]:
        return {
            name: handles.setdefault(value, len(handles) + 1) if name in HANDLES else value
            for name, value in members.items()
        }

    found = of(message)
    return {**found, "args": of(message["args"])} if "args" in message else found


class Tape:
    def __init__(self) -> None:
        self.said: list[Mapping[str, Any]] = []
        self.exchanges: list[Exchange] = []
        self.owned: dict[int, dict[str, Any]] = {}

    def hear(self, sign: str, message: Mapping[str, Any]) -> None:
        """Record what is sent (`>`) and what is replied (`<`)."""
        if sign == ">":
            self.said.append(message)
            return
        said = self.said.pop(0)
        if said["op"] in UNHEARD:
            return
        if "request" in said:  # a message says what changed, and the one before may be left out
            owned = self.owned.setdefault(said["request"], {})
            owned |= said.get("set", {})
            said = {**said, "set": dict(owned)} if owned else said
        self.exchanges.append(Exchange(said, message))


def conversations(chapters: Collection[str] = ()) -> Iterator[Conversation]:
    """Yield the examples of these chapters, else of all, that say the same each time.

    Without those about other choices of a policy, and about a first parent that is random.
    """
    tape = Tape()
    command = (sys.executable, "-m", "kvcheck.cli", "serve", "kvref")
    subject = RemoteImplementation(Options(command, "json"), tape.hear)
    numbers: dict[str, int] = {}
    try:
        for story in shipped_stories():
            chapter = Path(story.path).stem
            if chapters and chapter not in chapters:
                continue
            tape.exchanges = []
            try:
                played(story, Bench(subject, Policy(), audits=False))
            except LeftOut:
                continue
            number = numbers.get(chapter, 0) + 1
            found = Conversation(chapter, number, story, tuple(tape.exchanges))
            if found.exchanges and all(
                c.policy == Policy() and c.hash_seed is not None for c in found.configs()
            ):
                numbers[chapter] = number
                yield found
    finally:
        subject.close()


def set_names() -> tuple[str, ...]:
    return tuple(dict.fromkeys(Path(story.path).stem for story in shipped_stories()))


def files(sets: Collection[str] = ()) -> Iterator[tuple[str, bytes]]:
    """Yield path and content of each file of the archive; last the index, which lists them."""
    readme = data_files("kvcheck").joinpath("data/conversations.txt").read_text(encoding="utf-8")
    yield "README.md", readme.encode()
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
    """Write a folder; returns how many files it has. The same sets give the same bytes."""
    number = 0
    for name, content in files(sets):
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(content)
        number += 1
    return number
