"""Making a record that fails smaller: fewer calls and requests, shorter prompts, plainer tokens.

Every candidate is performed on an oracle, which gives the expectations, and replayed on the
subject. It is kept if the subject fails it at its last operation in the same way.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kvcheck.play.compare import Mismatch
from kvcheck.play.shrink import smallest, with_plainer, without_runs
from kvcheck.play.text import shown
from kvcheck.records.script import Call, Script, perform, script_of
from kvcheck.records.trace import replay_trace
from kvspec.errors import ConfigError, InvalidArgumentError, KVSpecError
from kvspec.interface import Implementation
from kvspec.policy import Policy
from kvspec.record import START_VERSION, Finding, Header, Operation
from kvspec.record_file import read_whole_trace, write_trace


class NotFailingError(KVSpecError):
    """The subject follows the record, so there is nothing to shrink."""


@dataclass(frozen=True)
class Kind:
    """The identity of a failure: the call, and the first field that differs."""

    call: str
    field: str

    @classmethod
    def of(cls, mismatch: Mismatch) -> Kind:
        return cls(mismatch.call, mismatch.differences[0].field)


@dataclass(frozen=True)
class Shrunk:
    """The smallest script found, and the one that it began with. `tried`: candidates looked at."""

    before: Script
    after: Script
    kind: Kind
    header: Header
    operations: tuple[Operation, ...]
    tried: int

    def write(self, path: Path) -> None:
        coverage: Mapping[str, int] = {"shrunk_from_operations": len(self.before.calls)}
        write_trace(path, self.header, self.operations, coverage)


class Shrinker:
    """Shrinks one record for a subject and an oracle. `progress` is called with each smaller
    script.
    """

    def __init__(
        self,
        path: Path,
        subject: Implementation,
        oracle: Implementation,
        *,
        policy: Policy | None = None,
        progress: Callable[[Script, int], None] = lambda script, tried: None,
    ) -> None:
        self.path = path
        self.subject = subject
        self.oracle = oracle
        self.policy = policy
        self.progress = progress
        self.tried = 0
        self.strict = True
        self.mismatch: Mismatch | None = None

    def run(self, seconds: float) -> Shrunk:
        """Return the smallest record found in this time.

        Raises NotFailingError if the subject passes the record, InvalidArgumentError if the record
        cannot be shrunk: it starts from a state, or the oracle does not agree with it.
        """
        header, operations = self._read()
        played = replay_trace(self.path, self.subject, policy=self.policy)
        name, mismatch = self.subject.capabilities.name, played.mismatch
        if played.lacks:
            lacks = ", ".join(played.lacks)
            raise NotFailingError(f"{self.path}: left out, {name} does not support {lacks}")
        if mismatch is None:
            raise NotFailingError(f"{self.path}: {name} follows this record; nothing to shrink")
        kind = Kind.of(mismatch)
        # Operation 0 is on line 2; without operations the manager itself is wrong.
        last = max(mismatch.line - 1, 0)
        before = script_of(header.config, operations[:last])
        finding = operations[last - 1].finding if last else None
        with tempfile.TemporaryDirectory() as folder:
            scratch = Path(folder) / "candidate.jsonl"
            self.strict = perform(before, self.oracle) is not None
            if not self._fails(before, kind, scratch):
                raise InvalidArgumentError(
                    "oracle",
                    self.oracle.capabilities.name,
                    f"one that follows {self.path} up to the operation at which"
                    f" {self.subject.capabilities.name} fails it; name another",
                )

            def tried(script: Script) -> Script | None:
                if not self._fails(script, kind, scratch):
                    return None
                self.progress(script, self.tried)
                return script

            after = smallest(before, smaller, tried, seconds=seconds)
            self._fails(after, kind, scratch)
            shrunk_header, shrunk_operations = read_whole_trace(scratch)
        if shrunk_operations and finding is not None:
            marked = replace(shrunk_operations[-1], finding=self._finding(finding.rule))
            shrunk_operations = (*shrunk_operations[:-1], marked)
        version = START_VERSION if finding is not None else shrunk_header.version
        result = replace(shrunk_header, version=version, scenario=header.scenario, seed=header.seed)
        return Shrunk(before, after, kind, result, shrunk_operations, self.tried)

    def _read(self) -> tuple[Header, tuple[Operation, ...]]:
        header, operations = read_whole_trace(self.path, policy=self.policy)
        if header.start is not None or header.initial is None:
            allowed = "one that begins with a new manager and shows its state"
            raise InvalidArgumentError("record", str(self.path), allowed)
        return header, operations

    def _fails(self, script: Script, kind: Kind, scratch: Path) -> bool:
        """Return whether the subject fails at the end as it failed the whole; writes the record."""
        self.tried += 1
        try:
            recorder = perform(script, self.oracle, strict=self.strict)
        except KVSpecError:  # a configuration that no manager serves
            return False
        if recorder is None:
            return False
        recorder.write(scratch)
        self.mismatch = replay_trace(scratch, self.subject, policy=self.policy).mismatch
        if self.mismatch is None or self.mismatch.line != len(script.calls) + 1:
            return False
        return Kind.of(self.mismatch) == kind

    def _finding(self, rule: str) -> Finding:
        """Return the difference at the end of the shrunk record, which broke the same rule."""
        difference = self.mismatch.differences[0] if self.mismatch is not None else None
        if difference is None:
            return Finding(rule, "", "")
        said = f"{difference.field}: {shown(difference.expected)}"
        return Finding(rule, said, shown(difference.got))


OPTIONAL = (
    "cache_salt",
    "lora",
    "mm_features",
    "skip_reading_prefix_cache",
    "reports_hits",
    "num_lookahead_tokens",
    "full_sequence_must_fit",
    "reserved_blocks",
    "num_encoder_tokens",
    "delay_cache_blocks",
    "has_scheduled_reqs",
    "num_preemptions",
)


def smaller(script: Script) -> Iterator[Script]:
    """Yield candidates, those that save most first."""
    yield from _fewer_requests(script)
    yield from _fewer_calls(script)
    yield from _shorter_prompts(script)
    yield from _plainer_calls(script, _one_appended)
    yield from _ranked_tokens(script)
    yield from _plainer_calls(script, _zeros)
    yield from _plainer_calls(script, _without_argument)
    yield from _smaller_configs(script)


def _with_calls(script: Script, calls: Iterator[Call] | tuple[Call, ...]) -> Script:
    return replace(script, calls=tuple(calls))


def _fewer_requests(script: Script) -> Iterator[Script]:
    """Yield the script without one request and all calls about it."""
    last = script.calls[-1].request_id if script.calls else None
    for name in script.request_ids:
        if name != last:
            yield _with_calls(script, (c for c in script.calls if c.request_id != name))


def _fewer_calls(script: Script) -> Iterator[Script]:
    """Yield the script without a run of calls; the last one, which fails, stays."""
    for fewer in without_runs(script.calls[:-1]):
        yield replace(script, calls=(*fewer, *script.calls[-1:]))


def _shorter_prompts(script: Script) -> Iterator[Script]:
    """Yield the script with half of a prompt, or one token less; later positions move with it."""
    for number, call in enumerate(script.calls):
        if call.name != "new_request":
            continue
        old = len(call.arguments["prompt_token_ids"])
        for new in sorted({1, old // 2, old - 1}):
            if 0 < new < old:
                yield _with_calls(script, _with_prompt(script.calls, number, old, new))


def _with_prompt(calls: tuple[Call, ...], at: int, old: int, new: int) -> Iterator[Call]:
    def moved(position: int) -> int:
        return min(position, new) if position <= old else position - old + new

    for number, call in enumerate(calls):
        if number == at:
            prompt = call.arguments["prompt_token_ids"][:new]
            items = [
                item
                for item in call.arguments.get("mm_features") or ()
                if item["offset"] + item["length"] <= new
            ]
            changed = {"prompt_token_ids": prompt}
            yield _changed(call, changed | ({"mm_features": items} if items else {}))
        elif number > at and call.request_id == calls[at].request_id:
            yield _moved(call, moved)
        else:
            yield call


def _moved(call: Call, moved: Callable[[int], int]) -> Call:
    """Return the call with every position in its request moved."""
    arguments = dict(call.arguments)
    if call.name == "allocate_slots":
        computed, loaded, end = (moved(bound) for bound in call.bounds)
        hit = min(arguments.get("num_new_computed_tokens", 0), loaded - computed)
        arguments["num_computed_tokens"] = computed
        if "num_new_computed_tokens" in arguments:
            arguments["num_new_computed_tokens"] = hit
        if "num_external_computed_tokens" in arguments:
            arguments["num_external_computed_tokens"] = loaded - computed - hit
        arguments["num_new_tokens"] = end - loaded
        return replace(call, arguments=arguments)
    for name in (
        "num_computed_tokens",
        "total_computed_tokens",
        "num_tokens",
        "num_tokens_main_model",
        "max_cache_hit_length",
    ):
        if name in arguments:
            arguments[name] = moved(arguments[name])
    return replace(call, arguments=arguments)


def _plainer_calls(script: Script, plainer: Callable[[Call], Iterator[Call]]) -> Iterator[Script]:
    for calls in with_plainer(script.calls, plainer):
        yield replace(script, calls=calls)


def _one_appended(call: Call) -> Iterator[Call]:
    """Yield the call with one token appended instead of several."""
    if call.name == "append_tokens" and len(call.arguments["token_ids"]) > 1:
        yield _changed(call, {"token_ids": call.arguments["token_ids"][:1]})


def _ranked_tokens(script: Script) -> Iterator[Script]:
    """Yield the script with the smallest ids that keep equal tokens equal."""
    seen: dict[int, int] = {}
    ranked = _with_calls(script, (_with_tokens(call, seen) for call in script.calls))
    if ranked != script:
        yield ranked


def _zeros(call: Call) -> Iterator[Call]:
    """Yield the call with zeros for its tokens."""
    for name in ("prompt_token_ids", "token_ids"):
        if any(call.arguments.get(name, ())):
            yield _changed(call, {name: [0] * len(call.arguments[name])})


def _with_tokens(call: Call, seen: dict[int, int]) -> Call:
    for name in ("prompt_token_ids", "token_ids"):
        if name in call.arguments:
            tokens = [seen.setdefault(token, len(seen)) for token in call.arguments[name]]
            call = _changed(call, {name: tokens})
    return call


def _without_argument(call: Call) -> Iterator[Call]:
    """Yield the call with one argument at its default."""
    for name in OPTIONAL:
        if name in call.arguments and call.raises is None:
            rest = {key: value for key, value in call.arguments.items() if key != name}
            yield replace(call, arguments=rest)


def _smaller_configs(script: Script) -> Iterator[Script]:
    """Yield the script with a smaller pool, or an option switched off."""
    config, cache = script.config, script.config.kv_cache
    changes: list[dict[str, Any]] = [
        {"kv_cache": replace(cache, num_blocks=blocks)}
        for blocks in sorted({2, cache.num_blocks // 2, cache.num_blocks - 1})
        if 1 < blocks < cache.num_blocks
    ]
    plain = {"log_stats": False, "enable_events": False, "watermark": 0.0, "use_eagle": False}
    changes += [{name: off} for name, off in plain.items() if getattr(config, name) != off]
    for change in changes:
        with suppress(ConfigError):
            yield replace(script, config=replace(config, **change))


def _changed(call: Call, change: Mapping[str, Any]) -> Call:
    return replace(call, arguments={**call.arguments, **change})
