"""Run vLLM's scheduler on its own manager and on kvfast under the same random load.

    PYTHONHASHSEED=0 python -m examples.vllm.lockstep --steps 2000 --seed 1

Both get the same requests, sampled tokens, drafts, aborts and resets. After each step their results
must be equal: the plan, the outputs, statistics, events and the free queue.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Mapping, Sequence, Set
from copy import deepcopy
from dataclasses import dataclass, field, fields, is_dataclass
from importlib import import_module
from itertools import accumulate, chain
from typing import Any

import torch
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import DraftTokenIds, LogprobsLists, ModelRunnerOutput
from vllm.v1.request import RequestStatus

from examples.vllm.connector import work_done
from examples.vllm.engine import (
    END,
    OWN,
    Item,
    Prompt,
    Setup,
    make_scheduler,
    model_folder,
    prepare,
    vllm_config,
)
from examples.vllm.faults import queue_once, withdraw_what_does_not_run
from examples.vllm.setups import setups
from examples.vllm.workers import Worker
from kvcheck.play.difference import first_difference
from kvfast.engines.vllm import schedulers
from kvfast.engines.vllm.versions import is_since

UNCOMPARED = frozenset(
    {"timestamp", "sampling_params", "ts", "lora_request", "events", "kv_connector_stats"}
)
"""Members that hold times, or the caller's own objects."""
SPECS = ("CPULoadStoreSpec", "GPULoadStoreSpec")
PLAIN = frozenset({*SPECS, "MooncakeConnectorMetadata", "NixlConnectorMetadata"})
"""Objects of vLLM's connectors that compare by identity."""
CLOCKS = frozenset({"scheduler_clock", "reqs_to_send", "heartbeat_by_engine"})
"""Their members that hold times."""


@dataclass
class Side:
    scheduler: Any
    published: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.scheduler.kv_event_publisher.publish = self.published.append


class Lockstep:
    """Two schedulers and the load that both get."""

    def __init__(self, setup: Setup, model: str, seed: int, *, shadow: bool = False) -> None:
        self.setup = setup
        self.rng = random.Random(seed)
        pair = (Scheduler, schedulers.KvfastScheduler)
        if setup.is_async:
            pair = (AsyncScheduler, schedulers.KvfastAsyncScheduler)
        if shadow:  # first, to see the call that ends both
            follower = "AsyncShadowScheduler" if setup.is_async else "ShadowScheduler"
            pair = (getattr(import_module("kvcheck.adapters.vllm.shadow"), follower), pair[0])
        self.sides = [Side(make_scheduler(cls, setup, vllm_config(setup, model))) for cls in pair]
        ours = self.sides[1].scheduler
        if (setup.policy == "priority" or setup.fails) and not shadow:
            withdraw_what_does_not_run(self.sides[0].scheduler)
        if setup.is_async and setup.has_sessions and not is_since(33):
            for side in self.sides[: 1 + shadow]:
                queue_once(side.scheduler)
        self.mirror = self.sides[0].scheduler.shadow if shadow else None
        if shadow and self.mirror is None:
            raise SystemExit("not followed")
        if not shadow and ours.kvfast_reason is not None:
            raise SystemExit(f"not on kvfast: {ours.kvfast_reason}")
        self.ahead = (ours.num_hash_lookahead_tokens,) if is_since(33) else ()
        self.in_flight: list[tuple[Sequence[Any], Set[str]]] = []
        self.counts = dict.fromkeys(("steps", "requests", "preempted", "hit tokens", "aborts"), 0)
        self.counts |= dict.fromkeys(("resets", "went on", "items", "copies"), 0)
        self.counts |= dict.fromkeys(("loaded", "failed", "unservable"), 0)
        self.worker = Worker(self.rng) if setup.loads in OWN else None
        self.sessions: dict[str, int] = {}
        self.names = 0

    def run(self, num_steps: int) -> str | None:
        """Return the first difference in words; None after `num_steps` steps without one."""
        for number in range(num_steps):
            if difference := self.arrive() or self.step():
                return f"step {number}: {difference}"
            self.counts["steps"] += 1
        return None

    def arrive(self) -> str | None:
        """New requests, aborts, now and then a reset; what differs."""
        rng, known = self.rng, self.sides[0].scheduler.requests
        rate = 0.6 if self.setup.pools else 0.35  # a request that pools takes few steps
        while len(known) < 24 and rng.random() < rate:
            self.counts["requests"] += 1
            self.add(self.prompt())
        self.sessions = {name: size for name, size in self.sessions.items() if name in known}
        if self.sessions and rng.random() < 0.4:
            self.go_on(rng.choice(list(self.sessions)))
        if known and rng.random() < 0.02:
            name = rng.choice(list(known))
            self.counts["aborts"] += 1
            for side in self.sides:
                side.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)
        # vLLM 0.24.0 refuses a reset while a session that waits for its user holds blocks, or
        # another part of the engine holds some.
        if rng.random() < 0.004 and not self.setup.has_sessions and self.may_reset():
            self.counts["resets"] += 1
            how = {"reset_running_requests": True}
            stock, ours = [side.scheduler.reset_prefix_cache(**how) for side in self.sides]
            return differing(stock, ours, where="reset")
        return None

    def may_reset(self) -> bool:
        """Return whether vLLM can reset: only running requests hold blocks, and may free them."""
        stock = self.sides[0].scheduler
        if self.is_held() or (self.in_flight and stock.defer_block_free):
            return False
        if self.worker is not None and stock.connector.has_pending_push_work():
            return False
        waiting = stock.requests.keys() - {each.request_id for each in stock.running}
        return not any(any(stock.kv_cache_manager.get_block_ids(name)) for name in waiting)

    def is_held(self) -> bool:
        """Return whether others than running requests hold blocks."""
        stock = self.sides[0].scheduler
        moving = self.worker or stock.connector
        return (moving is not None and moving.is_busy) or bool(stock.deferred_frees)

    def add(self, prompt: Prompt) -> None:
        if prompt.is_session:
            size = self.sessions.get(prompt.name, 0) + len(prompt.tokens) + prompt.max_tokens
            self.sessions[prompt.name] = size
        for side in self.sides:
            side.scheduler.add_request(prompt.request(self.setup, *self.ahead))

    def go_on(self, name: str) -> None:
        """Continue a session, or end it: it must fit into the model's length."""
        self.counts["went on"] += 1
        tokens = tuple(self.rng.randrange(20) for _ in range(self.rng.choice((1, 1, 2, 5, 9))))
        ends = self.sessions[name] > self.setup.max_model_len - 50 or self.rng.random() < 0.2
        self.add(Prompt(name=name, tokens=tokens, max_tokens=40, is_session=not ends))
        if ends:
            del self.sessions[name]

    def prompt(self) -> Prompt:
        """Return one of few beginnings with a new tail."""
        rng = self.rng
        self.names += 1
        start = [rng.randrange(3)] * rng.choice((0, 8, 16, 24, 40))
        tail = [rng.randrange(20) for _ in range(rng.randint(1, 60))]
        return Prompt(
            name=f"r{self.names}",
            tokens=tuple(start + tail)[: self.setup.max_model_len],
            max_tokens=rng.randint(1, 40),
            salt=rng.choice((None, None, None, "s")),
            adapter=rng.choice((0, 0, 0, 1, 2)),
            priority=rng.randrange(3),
            skips_cache=rng.random() < 0.03,
            is_session=self.setup.has_sessions and rng.random() < 0.3,
            items=self.items(len(start) + len(tail)) if self.setup.encoder_cache else (),
            reports_hits=self.setup.has_reports and rng.random() < 0.5,
            logprobs=1 if self.setup.has_logprobs and rng.random() < 0.3 else None,
        )

    def items(self, num_tokens: int) -> tuple[Item, ...]:
        """Images and sounds, few of each, so that some are met again at the same place."""
        rng, found, place = self.rng, [], self.rng.choice((0, 4, 9))
        while place + 9 < num_tokens and rng.random() < 0.7:
            kind, length = rng.choice(("image", "audio")), rng.randint(1, 9)
            found.append(Item(kind, f"{kind} {rng.randrange(4)} of {length}", place, length))
            place += length + rng.choice((0, 1, 7))
        return tuple(found)

    def step(self) -> str | None:
        self.end_unservable()
        if self.setup.has_unusual and not self.mirror and self.rng.random() < 0.2:
            names = self.sides[1].scheduler.batched_steps.unusual  # as if of structured output
            names.clear() if names else names.update(self.sides[1].scheduler.requests)
        throttled = self.setup.throttles and self.rng.random() < 0.5
        planned = [side.scheduler.schedule(throttle_prefills=throttled) for side in self.sides]
        if difference := differing(*map(shown, planned)):
            return difference
        self.counts["preempted"] += len(planned[0].preempted_req_ids or ())
        for new in planned[0].scheduled_new_reqs:
            self.counts["hit tokens"] += new.num_computed_tokens
        self.counts["copies"] += len(getattr(planned[0], "kv_cache_block_copies", None) or ())
        self.counts["items"] += sum(map(len, planned[0].scheduled_encoder_inputs.values()))
        idle = not planned[0].num_scheduled_tokens and self.setup.is_async and self.worker is None
        if not idle or self.is_held():
            # Two steps later vLLM no longer knows what only went on with a prompt.
            known = self.sides[0].scheduler.requests
            names = planned[0].num_scheduled_tokens
            chunks = {name for name in names if known[name].is_prefill_chunk}
            self.in_flight.append((planned, chunks))
        depth = 2 if self.setup.is_async else 1
        if len(self.in_flight) < depth and planned[0].num_scheduled_tokens:
            return None
        if self.in_flight and (difference := self.update(*self.in_flight.pop(0))):
            return difference
        return self.compare_state()

    def end_unservable(self) -> None:
        """Abort those whose next step would fail in vLLM's scheduler (docs/FINDINGS.md).

        Their load failed, and all their tokens still count as computed.
        """
        stock = self.sides[0].scheduler
        for name in sorted(stock.failed_recving_kv_req_ids):
            request = stock.requests.get(name)
            if request is not None and request.num_computed_tokens == request.num_tokens:
                self.counts["unservable"] += 1
                for side in self.sides:
                    side.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)

    def update(self, planned: Sequence[Any], chunks: Set[str]) -> str | None:
        output = self.sampled(planned[0], chunks)
        answers = []
        drafts = self.drafts(planned[0])
        for side, plan in zip(self.sides, planned, strict=True):
            # A copy for each: vLLM cuts the lists that it is given.
            answer = side.scheduler.update_from_output(plan, deepcopy(output))
            answers.append(shown(answer))
            if drafts is not None:
                side.scheduler.update_draft_token_ids(deepcopy(drafts))
        return differing(*answers)

    def sampled(self, plan: Any, chunks: Set[str]) -> Any:
        """Some drafts were right; one token more is sampled. Chunks sample nothing."""
        rng, names, tokens = self.rng, list(plan.num_scheduled_tokens), []
        for name in names:
            drafts = plan.scheduled_spec_decode_tokens.get(name, [])
            right = rng.randint(0, len(drafts))
            made = [d if d >= 0 else rng.randrange(20) for d in drafts[:right]]
            made.append(END if rng.random() < 0.02 else rng.randrange(20))
            tokens.append([] if name in chunks or self.setup.pools else made)
        index = {name: place for place, name in enumerate(names)}
        made = ModelRunnerOutput(req_ids=names, req_id_to_index=index, sampled_token_ids=tokens)
        if self.setup.pools:
            made.sampled_token_ids = []
            made.pooler_output = [None if n in chunks else torch.rand(2) for n in names]
        if self.setup.has_logprobs:
            made.logprobs = logprobs_of(tokens)
        if self.worker is not None:
            made.kv_connector_output = self.worker.reply(plan.kv_connector_metadata)
            self.counts["loaded"] = self.worker.num_loads
            self.counts["stored"] = self.worker.num_stores
        elif self.setup.loads:
            connector = self.sides[0].scheduler.connector
            made.kv_connector_output = work_done(connector, bool(self.setup.fails), rng)
            self.counts["loaded"] += len(made.kv_connector_output.finished_recving)
            self.counts["failed"] += bool(made.kv_connector_output.invalid_block_ids)
        return made

    def drafts(self, plan: Any) -> Any:
        """Drafts for the next step; asynchronous scheduling has placeholders instead."""
        if not self.setup.num_drafts or self.setup.is_async:
            return None
        names = list(plan.num_scheduled_tokens)
        # With drafts, vLLM 0.24.0's own `schedule` fails once a session has continued.
        most = 0 if self.setup.has_sessions else self.setup.num_drafts
        made = [[self.rng.randrange(20) for _ in range(self.rng.randint(0, most))] for _ in names]
        return DraftTokenIds(names, made)

    def compare_state(self) -> str | None:
        """Events, and the free queue by its blocks; what a shadow found."""
        if self.mirror is not None and self.mirror.difference is not None:
            return str(self.mirror.difference)
        events = [[shown(each) for each in side.published] for side in self.sides]
        for side in self.sides:
            side.published.clear()
        for batch in (batch for side in events for batch in side):
            batch.pop("ts", None)
        if difference := differing(*events, where="events"):
            return difference
        pools = [side.scheduler.kv_cache_manager.block_pool for side in self.sides]
        if pools[0].get_num_free_blocks() != pools[1].get_num_free_blocks():
            return "the numbers of free blocks differ"
        if self.counts["steps"] % 10:
            return None
        queues = [
            [block.block_id for block in pool.free_block_queue.get_all_free_blocks()]
            for pool in pools
        ]
        return differing(*queues, where="free queue")


def shown(value: Any) -> Any:
    """Return a value of vLLM's as plain dicts and lists."""
    if type(value).__name__ == "KVCacheEvictionEvent":  # a block's life, which has times alone
        return {"gaps": len(value.reuse_gaps_seconds)}
    if is_dataclass(value) and not isinstance(value, type):
        names = [each.name for each in fields(value) if each.name not in UNCOMPARED]
        return {name: shown(getattr(value, name)) for name in names}
    if hasattr(value, "__struct_fields__"):
        names = [name for name in value.__struct_fields__ if name not in ("timestamp", "ts")]
        return {name: shown(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        return {key: shown(each) for key, each in value.items()}
    if type(value).__name__ in PLAIN:  # neither is a dataclass
        return {key: shown(each) for key, each in vars(value).items() if key not in CLOCKS}
    if isinstance(value, set):
        return sorted(value)
    if type(value).__name__ in ("ndarray", "Tensor"):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [shown(each) for each in value]
    return value


def differing(stock: Any, ours: Any, *, where: str = "") -> str | None:
    """Return in words where they first differ; None where they do not."""
    if stock == ours:
        return None
    place, theirs, mine = first_difference(stock, ours, where) or (where, stock, ours)
    return f"{place}: stock {theirs!r}, kvfast {mine!r}"


def logprobs_of(sampled: Sequence[Sequence[int]]) -> LogprobsLists:
    """Return made-up logprobs of all sampled tokens in order; each is identified by its token."""
    tokens, starts = [*chain(*sampled)], [*accumulate(map(len, sampled), initial=0)]
    values = [[-float(token)] for token in tokens]
    return LogprobsLists([[token] for token in tokens], values, [0 for _ in tokens], starts)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1000, help="of each configuration")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="configurations whose names begin so")
    parser.add_argument("--shadow", action="store_true", help="the shadow scheduler on its own")
    asked = parser.parse_args()
    prepare()
    model, total = model_folder(), 0
    for name, setup in setups().items():
        if not name.startswith(asked.only):
            continue
        both = Lockstep(setup, model, asked.seed, shadow=asked.shadow)
        difference = both.run(asked.steps)
        total += both.counts["steps"]
        if both.mirror is not None:
            both.counts["calls followed"] = both.mirror.num_calls
            difference = difference or (None if both.mirror.num_calls else "nothing was followed")
        print(name, *(f"{count} {what}" for what, count in both.counts.items()), sep=", ")
        if both.mirror is None:
            done = both.sides[1].scheduler
            print(f"  batched: {done.num_steps_batched} of {done.num_steps_kvfast} steps", end="; ")
            print(*(f"{why} {steps}" for why, steps in done.single_steps.most_common()), sep=", ")
        if difference is not None:
            seconds = time.process_time()
            print(f"DIFFERENT with seed {asked.seed}, {seconds:.0f} CPU seconds: {difference}")
            return 1
    print(f"{total} steps, no difference")
    return 0


if __name__ == "__main__":
    sys.exit(main())
