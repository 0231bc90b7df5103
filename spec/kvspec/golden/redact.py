"""A record with its content replaced: tokens, names and every hash that follows from them.

What is equal stays equal, what is different stays different, and lengths stay, so that a replay
goes as before. Tokens, texts and requests are numbered in the order in which they occur. The hashes
of the new tokens are computed by an oracle; a hash that was wrong for the old ones is replaced by
one that is wrong for the new ones, the same wherever it stood. Free texts are dropped.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kvspec.errors import InvalidArgumentError, KVSpecError
from kvspec.golden.player import Player
from kvspec.golden.state import View, changed, digest, parts
from kvspec.golden.trace import replay_trace
from kvspec.interface import Implementation
from kvspec.policy import Policy
from kvspec.record import Finding, Footer, Header, Observed, Operation
from kvspec.record_file import read_whole_trace, write_trace
from kvspec.snapshot import Snapshot

REDACTED = "redacted"
GROUP_BYTES = 4
"""A key is a hash followed by the group (KV-HASH-6)."""


@dataclass
class Names:
    """Old values and new ones, numbered as they come.

    Texts of all kinds share their numbers: a salt and an adapter of one name make one extra key.
    """

    tokens: dict[int, int] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    adapters: dict[int, int] = field(default_factory=dict)
    requests: dict[str, str] = field(default_factory=dict)

    def token(self, token: int) -> int:
        """A token; one that no request may have (KV-REQ-1) stays wrong."""
        return token if token < 0 else self.tokens.setdefault(token, len(self.tokens))

    def text(self, text: str | None) -> str | None:
        """A salt, an adapter's name, an item's identifier; the empty one means something."""
        return self.texts.setdefault(text, f"text-{len(self.texts)}") if text else text

    def request(self, name: str) -> str:
        """A request's id."""
        return self.requests.setdefault(name, f"r{len(self.requests)}") if name else name

    def adapter(self, number: int | None) -> int | None:
        """An adapter's id, from 1."""
        if number is None:
            return None
        return self.adapters.setdefault(number, len(self.adapters) + 1)

    def arguments(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of any operation."""
        new = dict(arguments)
        for name in ("prompt_token_ids", "token_ids"):
            if name in new:
                new[name] = [self.token(token) for token in new[name]]
        if new.get("cache_salt"):
            new["cache_salt"] = self.text(new["cache_salt"])
        if new.get("lora") is not None:
            lora = new["lora"]
            new["lora"] = {"name": self.text(lora["name"]), "id": self.adapter(lora["id"])}
        if new.get("mm_features"):
            new["mm_features"] = [
                {**item, "identifier": self.text(item["identifier"])} for item in new["mm_features"]
            ]
        return new


class Hashes:
    """Old hashes and new ones: the same requests, made of old and of new content on an oracle."""

    def __init__(self, header: Header, oracle: Implementation) -> None:
        config = header.config
        self.short_in_events = config.int_event_hashes
        self.none_hash = header.none_hash.hex()
        self.known: dict[str, str] = {self.none_hash: self.none_hash}
        self.short: dict[str, str] = {_short(self.none_hash): _short(self.none_hash)}
        if header.raises is None:  # else there is no manager, and there are no requests
            self.old = Player(oracle, oracle.create(config, check_invariants=False))
            self.new = Player(oracle, oracle.create(config, check_invariants=False))

    def learn(self, operation: Operation, names: Names) -> None:
        """Take in what a request's content hashes to, before and after."""
        if operation.name not in ("new_request", "append_tokens") or operation.raises is not None:
            return
        name = operation.request_id or ""
        arguments = names.arguments(operation.arguments)
        old = self.old.perform(operation.name, name, operation.arguments)
        new = self.new.perform(operation.name, names.request(name), arguments)
        if old.error is not None or new.error is not None:
            return
        member = "block_hashes" if operation.name == "new_request" else "new_block_hashes"
        for before, after in zip(old.result[member], new.result[member], strict=True):
            self.known[before] = after
            self.short[_short(before)] = _short(after)

    def hash(self, text: str) -> str:
        """A block hash as hex."""
        return self.known.setdefault(text, _stranger(text, len(text)))

    def in_event(self, text: str) -> str:
        """A block hash as events have it: hex, or the decimal number of its last 64 bits."""
        if not self.short_in_events:
            return self.hash(text)
        return self.short.setdefault(text, _short(_stranger(text, 16)))

    def key(self, text: str) -> str:
        """A key: a hash and its group."""
        return self.hash(text[: -2 * GROUP_BYTES]) + text[-2 * GROUP_BYTES :]


def _short(text: str) -> str:
    """The number that events have for a hash."""
    return str(int(text[-16:], 16))


def _stranger(text: str, num_digits: int) -> str:
    """A hash of no content, of the same length."""
    found = hashlib.sha256(f"{REDACTED} {text}".encode()).hexdigest()
    return (found * (num_digits // len(found) + 1))[:num_digits]


class Redactor:
    """One record."""

    def __init__(self, header: Header, oracle: Implementation) -> None:
        self.header = header
        self.names = Names()
        self.hashes = Hashes(header, oracle)
        self.digests: dict[str, str] = {}
        self.part_digests: dict[tuple[int, str], str] = {}

    def learn(self, operations: Iterable[Operation]) -> None:
        """Number everything and compute the hashes, in the order of the record."""
        for operation in operations:
            if operation.request_id is not None:
                self.names.request(operation.request_id)
            self.names.arguments(operation.arguments)
            self.hashes.learn(operation, self.names)

    def watch(self, operation: Operation | None, view: View, before: View | None) -> None:
        """Note the digests of a state that a large pool's record only hashes."""
        state = self.state(view.state)
        self.digests[digest(dict(view.state))] = digest(state)
        index = -1 if operation is None else operation.index
        for name, value in parts({f: state[f] for f in changed(before, view)}).items():
            self.part_digests[index, name] = value

    def header_line(self) -> Header:
        """The header."""
        header = self.header
        return replace(
            header,
            scenario=REDACTED,
            message=None,
            initial=None if header.initial is None else self.observed(header.initial, -1),
            start=None if header.start is None else self.snapshot(header.start),
        )

    def operation(self, operation: Operation) -> Operation:
        """One operation."""
        name, finding = operation.request_id, operation.finding
        return replace(
            operation,
            request_id=None if name is None else self.names.request(name),
            arguments=self.names.arguments(operation.arguments),
            result=self.result(operation),
            message=None,
            observed=self.observed(operation.observed, operation.index),
            finding=None if finding is None else Finding(finding.rule, REDACTED, REDACTED),
        )

    def result(self, operation: Operation) -> Any:
        """The answer: hashes of requests, and events."""
        result = operation.result
        if operation.name == "take_events" and result is not None:
            return [self.event(event) for event in result]
        if isinstance(result, dict):
            return {
                name: [self.hashes.hash(text) for text in value]
                if name in ("block_hashes", "new_block_hashes")
                else value
                for name, value in result.items()
            }
        return result

    def event(self, event: Mapping[str, Any]) -> dict[str, Any]:
        """One event."""
        new = dict(event)
        if "block_hashes" in new:
            new["block_hashes"] = [self.hashes.in_event(text) for text in new["block_hashes"]]
        if new.get("parent_block_hash") is not None:
            new["parent_block_hash"] = self.hashes.in_event(new["parent_block_hash"])
        if "token_ids" in new:
            new["token_ids"] = [self.names.token(token) for token in new["token_ids"]]
            new["lora_id"] = self.names.adapter(new["lora_id"])
            new["lora_name"] = self.names.text(new["lora_name"])
        if new.get("extra_keys") is not None:
            new["extra_keys"] = [
                None if keys is None else [self.extra_key(key) for key in keys]
                for keys in new["extra_keys"]
            ]
        return new

    def extra_key(self, key: Any) -> Any:
        """A text, an item (identifier, offset), or the digest of embeddings."""
        if isinstance(key, str):
            return self.names.text(key)
        if isinstance(key, dict):
            return {"hex": _stranger(key["hex"], len(key["hex"]))}
        return [self.names.text(part) if isinstance(part, str) else part for part in key]

    def observed(self, observed: Observed, index: int) -> Observed:
        """What was seen of the state."""
        order, whole = observed.dup_order, observed.state_sha256
        return replace(
            observed,
            state=self.state(observed.state),
            dup_order=None if order is None else self._keyed(order, self.hashes.key),
            state_sha256=whole and (self.digests.get(whole) or _stranger(whole, len(whole))),
            state_parts={
                name: self.part_digests.get((index, name)) or _stranger(text, len(text))
                for name, text in observed.state_parts.items()
            },
        )

    def state(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Some of the state fields."""
        new = dict(state)
        if "block_hash" in new:
            keys = new["block_hash"]
            new["block_hash"] = [None if key is None else self.hashes.key(key) for key in keys]
        for name in ("req_blocks", "num_cached_block"):
            if name in new:
                new[name] = self._keyed(new[name], self.names.request)
        return new

    def snapshot(self, snapshot: Snapshot) -> Snapshot:
        """The state at the start."""

        def key(old: bytes) -> bytes:
            return bytes.fromhex(self.hashes.key(old.hex()))

        return replace(
            snapshot,
            block_keys=tuple(tuple(map(key, keys)) for keys in snapshot.block_keys),
            lookup_order={key(old): blocks for old, blocks in snapshot.lookup_order.items()},
            requests=self._keyed(snapshot.requests, self.names.request),
            step_keys=tuple(frozenset(map(key, keys)) for keys in snapshot.step_keys),
        )

    @staticmethod
    def _keyed(values: Mapping[str, Any], renamed: Callable[[str], str]) -> dict[str, Any]:
        return {renamed(name): value for name, value in values.items()}


def redact(
    path: Path, target: Path, oracle: Implementation, *, policy: Policy | None = None
) -> Footer:
    """Write the redacted record of `path` to `target`.

    Raises FormatError for a malformed file, InvalidArgumentError for a planning file, which holds
    nothing to redact, and for a record whose hash function the oracle does not have.
    """
    header, operations = read_whole_trace(path, policy=policy)
    try:
        redactor = Redactor(header, oracle)
    except KVSpecError as error:
        name = oracle.capabilities.name
        raise InvalidArgumentError("oracle", name, f"one for this record ({error})") from error
    redactor.learn(operations)
    if not header.is_small and header.raises is None:
        _learn_states(path, redactor, oracle, policy)
    new_operations = [redactor.operation(operation) for operation in operations]
    return write_trace(target, redactor.header_line(), new_operations, {})


def _learn_states(
    path: Path, redactor: Redactor, oracle: Implementation, policy: Policy | None
) -> None:
    """The states of a large pool, from an oracle that follows the record as far as it does."""
    last: View | None = None

    def watch(operation: Operation | None, view: View) -> None:
        nonlocal last
        redactor.watch(operation, view, last)
        last = view

    replay_trace(path, oracle, policy=policy, watch=watch)
