"""Replace the content of a record: tokens, names and every hash that follows from them.

Prompts with a common beginning keep it, and lengths stay, so that a replay has the same outcome;
nothing else of the tokens is kept (`kvcheck.records.renaming`). Texts and requests are numbered in
order of appearance. An oracle computes the hashes of the new tokens, under a new seed; a hash that
was wrong for the old ones is replaced by one that is wrong for the new ones, the same at each
occurrence, and different in each run. Free texts are dropped.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvcheck.play.state import View, changed, digest, parts
from kvcheck.records.renaming import Hashes, Names
from kvcheck.records.trace import replay_trace
from kvspec.errors import InvalidArgumentError, KVSpecError
from kvspec.interface import Implementation
from kvspec.policy import Policy
from kvspec.record import Finding, Footer, Header, Observed, Operation
from kvspec.record_file import read_whole_trace, write_trace
from kvspec.snapshot import Snapshot

REDACTED = "redacted"


class Redactor:
    def __init__(self, header: Header, oracle: Implementation, key: bytes) -> None:
        self.header = header
        self.names = Names()
        self.hashes = Hashes(header, oracle, key)
        self.arguments: dict[int, dict[str, Any]] = {}
        self.digests: dict[str, str] = {}
        self.part_digests: dict[tuple[int, str], str] = {}

    def learn(self, operations: Iterable[Operation]) -> None:
        """Number everything and compute the hashes, in the order of the record."""
        for operation in operations:
            if operation.request_id is not None:
                self.names.request(operation.request_id)
            self.arguments[operation.index] = self.hashes.learn(operation, self.names)

    def watch(self, operation: Operation | None, view: View, before: View | None) -> None:
        """Note the digests of a state that a large pool's record only hashes."""
        state = self.state(view.state)
        self.digests[digest(dict(view.state))] = digest(state)
        index = -1 if operation is None else operation.index
        for name, value in parts({f: state[f] for f in changed(before, view)}).items():
            self.part_digests[index, name] = value

    def header_line(self) -> Header:
        header = self.header
        return replace(
            header,
            config=self.hashes.config,
            none_hash=bytes.fromhex(self.hashes.hash(self.hashes.none_hash)),
            scenario=REDACTED,
            seed=0,
            quirks=(REDACTED,) * len(header.quirks),
            message=None,
            initial=None if header.initial is None else self.observed(header.initial, -1),
            start=None if header.start is None else self.snapshot(header.start),
        )

    def operation(self, operation: Operation) -> Operation:
        name, finding = operation.request_id, operation.finding
        return replace(
            operation,
            request_id=None if name is None else self.names.request(name),
            arguments=self.arguments[operation.index],
            result=self.result(operation),
            message=None,
            observed=self.observed(operation.observed, operation.index),
            finding=None if finding is None else Finding(finding.rule, REDACTED, REDACTED),
            quirks=(REDACTED,) * len(operation.quirks),
        )

    def result(self, operation: Operation) -> Any:
        """Redact a result: hashes of requests, and events."""
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
        new = dict(event)
        if "block_hashes" in new:
            new["block_hashes"] = [self.hashes.in_event(text) for text in new["block_hashes"]]
        if new.get("parent_block_hash") is not None:
            new["parent_block_hash"] = self.hashes.in_event(new["parent_block_hash"])
        if "token_ids" in new:
            parent = event["parent_block_hash"]
            new["token_ids"] = self.hashes.prompts.behind(parent, new["token_ids"])
            new["lora_id"] = self.names.adapter(new["lora_id"])
            new["lora_name"] = self.names.text(new["lora_name"])
        if new.get("extra_keys") is not None:
            new["extra_keys"] = [
                None if keys is None else [self.extra_key(key) for key in keys]
                for keys in new["extra_keys"]
            ]
        return new

    def extra_key(self, key: Any) -> Any:
        """Redact a text, an item (identifier, offset), or the digest of embeddings."""
        if isinstance(key, str):
            return self.names.text(key)
        if isinstance(key, dict):
            return {"hex": self.hashes.stranger(key["hex"], len(key["hex"]))}
        return [self.names.text(part) if isinstance(part, str) else part for part in key]

    def observed(self, observed: Observed, index: int) -> Observed:
        order, whole = observed.dup_order, observed.state_sha256
        stranger = self.hashes.stranger
        return replace(
            observed,
            state=self.state(observed.state),
            dup_order=None if order is None else self._keyed(order, self.hashes.key),
            state_sha256=whole
            and (self.digests.get(whole) or self.hashes.stranger(whole, len(whole))),
            state_parts={
                name: self.part_digests.get((index, name)) or stranger(text, len(text))
                for name, text in observed.state_parts.items()
            },
        )

    def state(self, state: Mapping[str, Any]) -> dict[str, Any]:
        new = dict(state)
        if "block_hash" in new:
            keys = new["block_hash"]
            new["block_hash"] = [None if key is None else self.hashes.key(key) for key in keys]
        for name in ("req_blocks", "num_cached_block"):
            if name in new:
                new[name] = self._keyed(new[name], self.names.request)
        return new

    def snapshot(self, snapshot: Snapshot) -> Snapshot:
        def key(old: bytes) -> bytes:
            return bytes.fromhex(self.hashes.key(old.hex()))

        return replace(
            snapshot,
            block_keys=tuple(tuple(map(key, keys)) for keys in snapshot.block_keys),
            none_hash=bytes.fromhex(self.hashes.hash(snapshot.none_hash.hex())),
            lookup_order={key(old): blocks for old, blocks in snapshot.lookup_order.items()},
            requests=self._keyed(snapshot.requests, self.names.request),
            step_keys=tuple(frozenset(map(key, keys)) for keys in snapshot.step_keys),
        )

    @staticmethod
    def _keyed(values: Mapping[str, Any], renamed: Callable[[str], str]) -> dict[str, Any]:
        return {renamed(name): value for name, value in values.items()}


def redact(
    path: Path,
    target: Path,
    oracle: Implementation,
    *,
    policy: Policy | None = None,
    key: bytes | None = None,
) -> Footer:
    """Write the redacted record of `path` to `target`.

    `key`: its holder can find out whether a record had some hash; None: a random one that is not
    kept.

    Raises FormatError for a malformed file, InvalidArgumentError for a planning file, which holds
    nothing to redact, and for a record whose hash function the oracle does not have.
    """
    header, operations = read_whole_trace(path, policy=policy)
    try:
        redactor = Redactor(header, oracle, secrets.token_bytes(32) if key is None else key)
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
    """Learn the states of a large pool from an oracle that follows the record as far as it can."""
    last: View | None = None

    def watch(operation: Operation | None, view: View) -> None:
        nonlocal last
        redactor.watch(operation, view, last)
        last = view

    replay_trace(path, oracle, policy=policy, watch=watch)
