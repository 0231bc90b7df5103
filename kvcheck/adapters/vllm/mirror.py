"""An implementation that follows vLLM's manager: its requests, differences and records.

No import of vLLM: its values are read by the names of their members.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

from kvcheck.adapters.vllm.expected import Expected, reason_for
from kvcheck.watch.monitor import monitor
from kvcheck.watch.recording import RecordedImplementation
from kvspec.config import ManagerConfig
from kvspec.errors import KVSpecError
from kvspec.interface import Implementation, KVCacheManager
from kvspec.request import LoRA, MultimodalItem, Request, RequestInput, RequestStatus
from kvspec.snapshot import Snapshot

HISTORY = 20_000
"""Calls that a record holds at most: enough to begin where the engine did, in a test."""


class ShadowDifferenceError(KVSpecError):
    """vLLM's manager and the shadow differ; raised with KVSPEC_SHADOW_RAISE=1.

    `record`: what the shadow did up to the call that differs; None where nothing could be written.
    """

    def __init__(self, said: str, record: Path | None) -> None:
        super().__init__(f"{said}; record: {record}")
        self.said = said
        self.record = record


class Mirror:
    """One implementation that follows. It stops at the first difference, which it keeps.

    `records`: under a monitor, which writes the record. Not for asynchronous scheduling: a monitor
    takes tokens that are sampled after their slots were granted for drafts. There, with
    KVSPEC_SHADOW_RECORD=1, each call is written with the state behind it while it goes. None: there
    is no record.

    `expected`: differences that are counted (`num_expected`, by reason); the follower then goes on
    from vLLM's state, which `state` answers when it is given references that the scheduler holds,
    and the bytes in place of the first parent's.
    """

    def __init__(
        self,
        implementation: Implementation,
        config: ManagerConfig,
        report: Callable[[str], object],
        *,
        records: bool | None = True,
        expected: Sequence[Expected] = (),
        state: Callable[[Sequence[int], bytes], Snapshot] | None = None,
    ) -> None:
        self.implementation = implementation
        self.config = config
        self.report = report
        self.recorded: RecordedImplementation | None = None
        if records is False and os.environ.get("KVSPEC_SHADOW_RECORD") == "1":
            self.recorded = RecordedImplementation(implementation, free_path())
            self.implementation = self.recorded
        made = self.implementation.create(config, check_invariants=False)
        self.recorder = monitor(made, every=1_000, history=HISTORY) if records else None
        self.manager: KVCacheManager = made if self.recorder is None else self.recorder
        self.expected = expected
        self.state = state
        self.num_expected: Counter[str] = Counter()
        self.popped: list[int] = []
        self.hashes: dict[bytes, bytes] = {}
        self.requests: dict[str, tuple[Any, Request | None]] = {}
        self.last_tokens: dict[str, int] = {}
        self.difference: ShadowDifferenceError | None = None
        self.num_calls = 0

    def same(self, call: str, ours: Callable[[], object], theirs: object) -> None:
        """Make the call to the shadow, and compare."""
        if self.difference is not None:
            return
        self.num_calls += 1
        try:
            answer = ours()
        except KVSpecError as error:
            self.differ(f"{call}: {self.implementation.capabilities.name} refuses: {error}")
            return
        if answer != theirs:
            self.differ(f"{call}: vLLM {theirs!r}, shadow {answer!r}")

    def require(self, call: str, broken: str | None) -> None:
        """Report a precondition that the scheduler did not keep."""
        if broken is not None and self.difference is None:
            self.differ(f"{call}: the scheduler asks for {broken}")

    def differ(self, said: str) -> None:
        """Write the record, report, and follow no further; a known difference is only counted."""
        reason = reason_for(said, self.expected)
        if reason is not None:
            self.num_expected[reason] += 1
            try:
                self._go_on()
            except KVSpecError as error:
                said = f"{said} (expected, but vLLM's state cannot be followed: {error})"
            else:
                return
        path = None
        try:
            path = self._written()
        except (KVSpecError, OSError) as error:
            said = f"{said} (no record: {error})"
        self.difference = ShadowDifferenceError(said, path)
        self.report(str(self.difference))
        if os.environ.get("KVSPEC_SHADOW_RAISE") == "1":
            raise self.difference

    def _written(self) -> Path | None:
        """The record of all calls so far."""
        if self.recorded is not None:
            with self.recorded:
                return self.recorded.path
        if self.recorder is None:
            return None
        path = free_path()
        self.recorder.write_record(path)
        return path

    def _go_on(self) -> None:
        """Follow from vLLM's state, under the names that the follower has for its hashes."""
        if self.state is None:
            raise KVSpecError("nobody answers it")
        taken = self.state(self.popped, self.manager.none_hash)
        made = self.implementation.restore(self.config, renamed(taken, self.hashes))
        self.requests = {name: (theirs, None) for name, (theirs, _) in self.requests.items()}
        if self.recorder is not None:
            self.recorder = monitor(made, every=1_000, history=HISTORY)
            made = self.recorder
        self.manager = made

    def current(self, request: Any) -> Request:
        """The shadow's request, which knows what vLLM's knows now."""
        kept, mine = self.requests.get(request.request_id, (None, None))
        if kept is not request or mine is None:
            mine = self.implementation.make_request(self.manager, input_of(request))
            self.requests[request.request_id] = (request, mine)
            self.last_tokens[request.request_id] = request.all_token_ids[mine.num_tokens - 1]
        new, theirs = request.num_tokens - mine.num_tokens, request.all_token_ids
        if new < 0 or theirs[mine.num_tokens - 1] != self.last_tokens[request.request_id]:
            raise KVSpecError("a request that loses tokens is not followed")
        if new:
            self.implementation.append_tokens(self.manager, mine, list(theirs[-new:]))
            self.last_tokens[request.request_id] = theirs[-1]
        if self.expected:
            self.hashes.update(zip(request.block_hashes, mine.block_hashes, strict=False))
        mine.num_computed_tokens = request.num_computed_tokens
        mine.num_preemptions = request.num_preemptions
        status = request.status.name
        mine.status = RequestStatus(status if status in ("WAITING", "PREEMPTED") else "RUNNING")
        return mine

    def named(self, request_id: str) -> Request | None:
        """The shadow's request of that name, if it was seen."""
        theirs, mine = self.requests.get(request_id, (None, None))
        return self.current(theirs) if mine is None and theirs is not None else mine


def free_path() -> Path:
    """A name for a record that nobody has."""
    folder = Path(os.environ.get("KVSPEC_MONITOR_DIR") or ".")
    folder.mkdir(parents=True, exist_ok=True)
    free = (folder / f"kvspec-shadow-{number}.jsonl" for number in count(1))
    return next(each for each in free if not each.exists())


def renamed(snapshot: Snapshot, hashes: Mapping[bytes, bytes]) -> Snapshot:
    """The same state, each key with the follower's hash: a hash, and four bytes of the group."""

    def key(theirs: bytes) -> bytes:
        return hashes.get(theirs[:-4], theirs[:-4]) + theirs[-4:]

    return replace(
        snapshot,
        block_keys=tuple(tuple(map(key, keys)) for keys in snapshot.block_keys),
        lookup_order={key(each): ids for each, ids in snapshot.lookup_order.items()},
        step_keys=tuple(frozenset(map(key, keys)) for keys in snapshot.step_keys),
    )


def input_of(request: Any) -> RequestInput:
    """What vLLM's request was made from, without what was appended."""
    if request.prompt_embeds is not None:
        raise KVSpecError("prompt embeddings are not followed")
    adapter = request.lora_request
    return RequestInput(
        request.request_id,
        list(request.all_token_ids[: request.num_prompt_tokens]),
        cache_salt=request.cache_salt or None,
        lora=None if adapter is None else LoRA(adapter.name, adapter.adapter_id),
        multimodal=tuple(
            MultimodalItem(item.identifier, item.mm_position.offset, item.mm_position.length)
            for item in request.mm_features
        ),
        skip_reading_cache=bool(request.skip_reading_prefix_cache),
    )
