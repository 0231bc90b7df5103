"""An implementation that follows vLLM's manager: its requests, differences and records.

No import of vLLM: its values are read by the names of their members.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from kvcheck.adapters.vllm.errors import describe
from kvcheck.adapters.vllm.events import Names, renamed
from kvcheck.adapters.vllm.expected import Expected, reason_for
from kvcheck.watch.monitor import monitor
from kvcheck.watch.recording import RecordedImplementation
from kvspec.config import ManagerConfig
from kvspec.errors import KVSpecError
from kvspec.interface import Implementation, KVCacheManager
from kvspec.request import LoRA, MultimodalItem, Request, RequestInput, RequestStatus
from kvspec.snapshot import Snapshot

T = TypeVar("T")

HISTORY = 20_000
"""Calls that a record holds at most: enough to begin where the engine did, in a test."""

LATER = (
    ("num_in_flight_tokens", "num_in_flight_tokens"),
    ("junction_tokens", "shared_prefix_boundary"),
)
"""Members of the contract's requests, and their names in those of vLLM 0.33; 0.24 has none."""


class ShadowDifferenceError(KVSpecError):
    """vLLM's manager and the shadow differ; raised with KVSPEC_SHADOW_RAISE=1.

    `record`: what the shadow did up to the call that differs; None where nothing could be written.
    """

    def __init__(self, said: str, record: Path | None) -> None:
        super().__init__(f"{said}; record: {record}")
        self.said = said
        self.record = record


def both(theirs: object, ours: object) -> str:
    return f"vLLM {theirs!r}, shadow {ours!r}"


class Mirror:
    """An implementation that follows vLLM. It stops at the first difference, which it keeps.

    `records`: run it under a monitor, which writes the record. Not for asynchronous scheduling: a
    monitor accepts tokens that are sampled after their slots were granted for drafts. There, with
    KVSPEC_SHADOW_RECORD=1, each call is written with the state after it as it happens. None: there
    is no record.

    `follows`: else no calls are made, and only violations by the scheduler are reported.

    `expected`: differences that are counted (`num_expected`, by reason); the follower then
    continues from vLLM's state, which `state` returns when given the references that the scheduler
    holds, and the bytes to use as the first parent.
    """

    def __init__(
        self,
        implementation: Implementation,
        config: ManagerConfig,
        report: Callable[[str], object],
        *,
        follows: bool = True,
        records: bool | None = True,
        expected: Sequence[Expected] = (),
        state: Callable[[Sequence[int], bytes], Snapshot] | None = None,
    ) -> None:
        self.implementation = implementation
        self.config = config
        self.follows = follows
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
        self.hashes = Names()
        self.names_hashes = bool(expected) or config.enable_events
        self.requests: dict[str, tuple[Any, Request | None]] = {}
        self.last_tokens: dict[str, int] = {}
        self.difference: ShadowDifferenceError | None = None
        self.num_calls = 0
        self.uncompared: set[str] = set()
        self.is_over = False

    def same(
        self,
        call: str,
        ours: Callable[[], object],
        theirs: object,
        shown: Callable[[Any, Any], str] = both,
    ) -> None:
        """Make the call to the shadow, and compare. `shown` formats a difference."""
        if self.is_over or not self.follows:
            return
        self.num_calls += 1
        try:
            answer = ours()
        except KVSpecError as error:
            self.differ(f"{call}: {self.implementation.capabilities.name} refuses: {error}")
            return
        if call in self.uncompared:
            self.uncompared.remove(call)
        elif answer != theirs:
            self.differ(f"{call}: {shown(theirs, answer)}")

    def require(self, call: str, broken: str | None) -> None:
        if broken is not None and not self.is_over:
            self.differ(f"{call}: the scheduler asks for {broken}")

    def found(self, said: str) -> None:
        """Report what a step touches in the wrong order, also where following has ended."""
        reason = reason_for(said, self.expected)
        if reason is not None:
            self.num_expected[reason] += 1
        elif self.difference is None:
            self.differ(said)
        else:
            self.report(said)

    def answered(self, call: str, ask: Callable[[], T]) -> T:
        """Return vLLM's result; an exception is a difference, and following stops."""
        try:
            return ask()
        except Exception as error:
            if not self.is_over:
                self.differ(f"{call}: vLLM raised {describe(error)}", is_last=True)
            raise

    def differ(self, said: str, *, is_last: bool = False) -> None:
        """Write the record, report, and follow no further; a known difference is only counted.

        `is_last`: what vLLM has done is not known, so that there is nothing to go on from.
        """
        reason = reason_for(said, self.expected)
        if reason is not None:
            self.num_expected[reason] += 1
            if is_last or not self.follows:
                self.is_over = is_last
                return
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
        self.is_over = True
        self.report(str(self.difference))
        if os.environ.get("KVSPEC_SHADOW_RAISE") == "1":
            raise self.difference

    def _written(self) -> Path | None:
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
            raise KVSpecError("no state to continue from")
        taken = self.state(self.popped, self.manager.none_hash)
        made = self.implementation.restore(self.config, renamed(taken, self.hashes.ours))
        self.uncompared = {"take_events", "make_prefix_cache_stats"}  # those before are lost
        self.requests = {name: (theirs, None) for name, (theirs, _) in self.requests.items()}
        if self.recorder is not None:
            self.recorder = monitor(made, every=1_000, history=HISTORY)
            made = self.recorder
        self.manager = made

    def current(self, request: Any) -> Request:
        """Return the shadow's request, brought up to date with vLLM's.

        It is made again for a session that continues: it has lost a token, or its prompt has grown.
        """
        name, theirs = request.request_id, request.all_token_ids
        kept, mine = self.requests.get(name, (None, None))
        is_new = kept is not request or mine is None or self._is_other(request, mine)
        if mine is None or is_new:
            mine = self.implementation.make_request(self.manager, input_of(request, self.config))
            self.requests[name] = (request, mine)
        if request.num_tokens > mine.num_tokens:
            new = list(theirs[mine.num_tokens : request.num_tokens])
            self.implementation.append_tokens(self.manager, mine, new)
        self.last_tokens[name] = theirs[-1]
        if self.names_hashes:
            is_new = is_new or bool(getattr(request, "resumable", False))
            self.hashes.add(request.block_hashes, mine.block_hashes, name, is_new=is_new)
        mine.num_computed_tokens = request.num_computed_tokens
        mine.num_preemptions = request.num_preemptions
        for ours, member in LATER:
            if hasattr(request, member):
                setattr(mine, ours, getattr(request, member))
        status = request.status.name
        mine.status = RequestStatus(status if status in ("WAITING", "PREEMPTED") else "RUNNING")
        return mine

    def _is_other(self, request: Any, mine: Request) -> bool:
        """Return whether vLLM's request no longer begins as it did."""
        if request.num_prompt_tokens != mine.num_prompt_tokens:
            return True
        last = request.all_token_ids[mine.num_tokens - 1 : mine.num_tokens]
        return list(last) != [self.last_tokens[request.request_id]]

    def forget(self, request_id: str) -> None:
        self.requests.pop(request_id, None)
        self.last_tokens.pop(request_id, None)
        self.hashes.num_known.pop(request_id, None)

    def named(self, request_id: str) -> Request | None:
        theirs, mine = self.requests.get(request_id, (None, None))
        return self.current(theirs) if mine is None and theirs is not None else mine


def free_path() -> Path:
    folder = Path(os.environ.get("KVSPEC_MONITOR_DIR") or ".")
    folder.mkdir(parents=True, exist_ok=True)
    free = (folder / f"kvspec-shadow-{number}.jsonl" for number in count(1))
    return next(each for each in free if not each.exists())


def input_of(request: Any, config: ManagerConfig) -> RequestInput:
    """Return the input of vLLM's request, without appended tokens."""
    if request.prompt_embeds is not None:
        raise KVSpecError("prompt embeddings are not followed")
    adapter, lora = request.lora_request, None
    if adapter is not None:
        path = adapter.lora_path if config.policy.extra_keys == "tagged" else None
        lora = LoRA(adapter.name, adapter.adapter_id, path or None)
    return RequestInput(
        request.request_id,
        list(request.all_token_ids[: request.num_prompt_tokens]),
        cache_salt=request.cache_salt or None,
        lora=lora,
        multimodal=tuple(
            MultimodalItem(item.identifier, item.mm_position.offset, item.mm_position.length)
            for item in request.mm_features
        ),
        skip_reading_cache=bool(request.skip_reading_prefix_cache),
        reports_hits=getattr(request, "kv_cache_report_mode", "") == "full",
    )
