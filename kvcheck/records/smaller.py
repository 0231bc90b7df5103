"""Scripts a little smaller than a given one; the caller decides whether they still fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from kvcheck.play.shrink import without_runs
from kvcheck.records.script import Call, Script
from kvspec.config import ManagerConfig
from kvspec.errors import ConfigError

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
"""Arguments that a call may do without."""


def smaller(script: Script) -> Iterator[Script]:
    """Yield candidates, those that save most first."""
    yield from _fewer_requests(script)
    yield from _fewer_calls(script)
    yield from _shorter_prompts(script)
    yield from _fewer_appended(script)
    yield from _smaller_tokens(script)
    yield from _plainer_calls(script)
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


def _fewer_appended(script: Script) -> Iterator[Script]:
    """Yield the script with one token appended instead of several."""
    for number, call in enumerate(script.calls):
        if call.name == "append_tokens" and len(call.arguments["token_ids"]) > 1:
            plain = _changed(call, {"token_ids": call.arguments["token_ids"][:1]})
            yield _with_calls(script, _replaced(script.calls, number, plain))


def _smaller_tokens(script: Script) -> Iterator[Script]:
    """Yield the script with the smallest ids that keep equal tokens equal, then with zeros."""
    seen: dict[int, int] = {}
    ranked = _with_calls(script, (_with_tokens(call, seen) for call in script.calls))
    if ranked != script:
        yield ranked
    for number, call in enumerate(script.calls):
        for name in ("prompt_token_ids", "token_ids"):
            if any(call.arguments.get(name, ())):
                zeros = _changed(call, {name: [0] * len(call.arguments[name])})
                yield _with_calls(script, _replaced(script.calls, number, zeros))


def _with_tokens(call: Call, seen: dict[int, int]) -> Call:
    for name in ("prompt_token_ids", "token_ids"):
        if name in call.arguments:
            tokens = [seen.setdefault(token, len(seen)) for token in call.arguments[name]]
            call = _changed(call, {name: tokens})
    return call


def _plainer_calls(script: Script) -> Iterator[Script]:
    """Yield the script with one argument at its default."""
    for number, call in enumerate(script.calls):
        for name in OPTIONAL:
            if name in call.arguments and call.raises is None:
                rest = {key: value for key, value in call.arguments.items() if key != name}
                plain = replace(call, arguments=rest)
                yield _with_calls(script, _replaced(script.calls, number, plain))


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
        changed = _config(config, change)
        if changed is not None:
            yield replace(script, config=changed)


def _config(config: ManagerConfig, change: Mapping[str, Any]) -> ManagerConfig | None:
    try:
        return replace(config, **change)
    except ConfigError:
        return None


def _changed(call: Call, change: Mapping[str, Any]) -> Call:
    return replace(call, arguments={**call.arguments, **change})


def _replaced(calls: tuple[Call, ...], number: int, call: Call) -> tuple[Call, ...]:
    return (*calls[:number], call, *calls[number + 1 :])
