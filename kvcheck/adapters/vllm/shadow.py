"""vLLM's scheduler with an implementation of the contract following its manager, call by call.

    vllm serve MODEL --scheduler-cls kvcheck.adapters.vllm.shadow.ShadowScheduler

vLLM's manager serves all calls as usual; the same calls are made to the implementation (kvfast
without KVSPEC_SHADOW), and the first difference is reported with a record. Asynchronous scheduling
needs `AsyncShadowScheduler`.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

from vllm.logger import init_logger
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from kvcheck.adapters.vllm.copies import CopyRecorder
from kvcheck.adapters.vllm.events import translate_event
from kvcheck.adapters.vllm.expected import read_expected
from kvcheck.adapters.vllm.library import Library, load_library
from kvcheck.adapters.vllm.mirror import Mirror
from kvcheck.adapters.vllm.shadowed import Later, ShadowedManager, ShadowedPool
from kvcheck.adapters.vllm.state import take_snapshot
from kvcheck.adapters.vllm.steps import Steps
from kvcheck.discovery import find_implementation
from kvcheck.hazards.checker import Hazard
from kvspec.errors import ConfigError, UnsupportedError
from kvspec.foreign import beyond_contract, config_of, given_by
from kvspec.specs import LayerSpec


def is_left_out(spec: LayerSpec) -> bool:
    """Return whether a group's blocks are not filled token by token."""
    others = ("cross_attention", "encoder_only_attention")
    return spec.is_state or not spec.prefix_cacheable or spec.kind in others


def unfollowed(scheduler: Any) -> str | None:
    """Return a feature of 0.33's manager that the contract lacks, so that it cannot be followed."""
    is_dropping, groups = scheduler.use_eagle_block_drop, scheduler.kv_cache_config.kv_cache_groups
    refused = {
        **beyond_contract(scheduler),
        "several modules that draft, where several groups drop blocks": is_dropping
        and len(groups) > 1
        and scheduler.kv_cache_manager.coordinator.num_reprefillable_tokens > 0,
        "states inside blocks where EAGLE drops them, beside a KV connector": is_dropping
        and scheduler.mamba_partial_cache_hit
        and scheduler.connector is not None,
    }
    return next((what for what, is_there in refused.items() if is_there), None)


def append(path: Path, text: str) -> None:
    """Append to a file, which is complete whenever the engine ends."""
    with path.open("a", encoding="utf-8") as file:
        file.write(text)


def _mirror(s: Any, library: Library, report: Any, *, follows: bool) -> Mirror:
    """Raises UnsupportedError or ConfigError for a configuration that the contract refuses."""
    told = {
        **given_by(s, library.policy if library.is_later else None),
        "hash_seed": os.environ.get("PYTHONHASHSEED"),
        "log_stats": s.kv_cache_manager.log_stats,
    }
    known = os.environ.get("KVSPEC_SHADOW_EXPECT")
    # With several modules drafts become final a step late, as where steps overlap.
    is_recorded = s.records and getattr(s, "num_prefill_lookahead", 0) < 2  # 0.24 has none
    return Mirror(
        find_implementation(os.environ.get("KVSPEC_SHADOW", "kvfast")),
        config_of(s.kv_cache_manager, **told),
        report,
        follows=follows,
        # A connector may pin blocks, which no record can say.
        records=is_recorded if s.connector is None and follows else None,
        expected=read_expected(Path(known)) if known else (),
        state=partial(take_snapshot, library, s.kv_cache_manager),
    )


def _recorder(s: Any, stock: Any, mirror: Mirror, logger: Any) -> CopyRecorder | None:
    """Watch what is computed, loaded and hit; with KVSPEC_SHADOW_HAZARDS all copies, too."""
    asked = os.environ.get("KVSPEC_SHADOW_HAZARDS", "")
    specs = [
        None if is_left_out(group.spec) else group.spec for group in mirror.config.kv_cache.groups
    ]
    if not any(specs):
        return None
    if asked and None in specs:
        logger.warning("KVSPEC_SHADOW_HAZARDS: some groups keep no tokens. Hits are checked.")
        asked = ""
    write = None if asked in ("", "1") else partial(append, Path(asked))

    def report(hazard: Hazard) -> None:
        mirror.found(f"step: {hazard.rule} {hazard.place}: {hazard.what}")

    factor = s.dcp_world_size * s.pcp_world_size
    made = CopyRecorder(stock, specs, report, factor=factor, is_whole=bool(asked), write=write)
    if asked and s.connector is not None:
        made.watch_connector(s.connector)
    return made


def _later(s: Any, mirror: Mirror) -> Later:
    longest = s.scheduler_config.long_prefill_token_threshold
    most = s.max_num_scheduled_tokens
    return Later(
        Steps(mirror.require, waits=s.defer_block_free),
        num_read=s.num_prefill_lookahead,
        most_tokens=min(most, longest) if longest > 0 else most,
        has_connector=s.connector is not None,
    )


def _check_offers(s: Any, mirror: Mirror) -> None:
    """Check that the connector is offered whole blocks: else its load would race with a copy."""
    ask, size = s.connector.get_num_new_matched_tokens, s.block_size

    def offered(request: Any, num_computed_tokens: int) -> Any:
        if num_computed_tokens % size:
            said = f"tokens behind {num_computed_tokens}, no multiple of {size}"
            mirror.require(f"get_num_new_matched_tokens of {request.request_id}", said)
        return ask(request, num_computed_tokens)

    s.connector.get_num_new_matched_tokens = offered


class Shadowed:
    """The members that both schedulers add to vLLM's. `shadow`: None if following is impossible.

    `records`: whether a monitor may record.
    """

    kv_cache_manager: Any
    requests: dict[str, Any]
    connector: Any
    shadow: Mirror | None = None
    steps: Steps | None = None
    copies: CopyRecorder | None = None
    records = True

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        stock, logger = self.kv_cache_manager, init_logger("vllm.kvspec.shadow")
        library = load_library()
        unknown = unfollowed(self) if library.is_later else None
        try:
            self.shadow = _mirror(self, library, logger.error, follows=unknown is None)
        except (UnsupportedError, ConfigError) as error:
            logger.warning("No shadow: %s", error)
            return
        if unknown is not None:
            logger.warning("No shadow: %s. What the scheduler must keep is checked.", unknown)
        self.copies = _recorder(self, stock, self.shadow, logger)
        later = _later(self, self.shadow) if library.is_later else None
        self.steps = None if later is None else later.steps
        pool = ShadowedPool(stock.block_pool, self.shadow, later)
        translate = partial(translate_event, library)
        self.kv_cache_manager = ShadowedManager(stock, pool, self.shadow, translate)
        if self.connector is not None and later is None:
            self.connector.bind_gpu_block_pool(pool)
        elif self.connector is not None:
            self.connector.bind_kv_cache_manager(self.kv_cache_manager)
            _check_offers(self, self.shadow)

    def schedule(self, *args: Any, **options: Any) -> Any:
        plan = super().schedule(*args, **options)  # type: ignore[misc]  # vLLM's scheduler has it
        if self.steps is not None:
            waits = self.kv_cache_manager.copies_wait
            self.steps.planned(plan, self.requests, copies_wait=waits)
        if self.copies is not None:
            self.copies.planned(plan)
        return plan

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        """Process the output of a step, which is then no longer in flight."""
        plan, update = scheduler_output, super().update_from_output  # type: ignore[misc]  # as above
        if self.copies is not None:
            self.copies.processed(plan, model_runner_output)
        if self.steps is None:
            return update(plan, model_runner_output)
        stale = self.steps.outputs(plan)
        answer = update(plan, model_runner_output)
        # A load that failed takes computed tokens back, from whichever step.
        self.steps.processed(plan, stale if self.connector is None else {})
        return answer


# vLLM has no types where it is not installed.
class ShadowScheduler(Shadowed, Scheduler):  # type: ignore[misc]
    """vLLM's scheduler, followed."""


class AsyncShadowScheduler(Shadowed, AsyncScheduler):  # type: ignore[misc]
    records = False
