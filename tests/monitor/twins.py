"""Managers with one defect each, which a monitor must catch, and the engine that drives them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvspec.config import ManagerConfig
from kvspec.interface import Implementation, KVCacheManager
from kvspec.request import Request, RequestInput, RequestStatus
from tests.contract.builders import make_config
from tests.mistakes import mistaken


def config(num_blocks: int = 10, **members: Any) -> ManagerConfig:
    watched = {"max_model_len_tokens": 4 * num_blocks, "enable_events": True, "log_stats": True}
    return make_config(num_blocks, **watched | members)


@dataclass(frozen=True)
class Twin:
    """A mistake: as which rules it is found, and at which rates of audits.

    `does_harm_at_once`: what departs from the rules and what is unsafe are one call.
    """

    name: str
    rules: frozenset[str]
    rates: tuple[int, ...] = (1, 20, 10_000)
    does_harm_at_once: bool = True

    def make(self) -> Implementation:
        made: Implementation = mistaken(self.name)
        return made


TWINS = (
    Twin("LeaksUnhashedBlocks", frozenset({"KV-POOL-15"})),
    Twin("GivesABlockTwice", frozenset({"KV-POOL-3", "KV-POOL-15"})),
    # Which events, or a look at the state, may show first.
    Twin(
        "KeepsKeysOfTakenBlocks",
        frozenset({"KV-HASH-1", "KV-EVT-7", "KV-POOL-17"}),
        does_harm_at_once=False,
    ),
    Twin("AnswersAnotherHit", frozenset({"KV-HASH-1"})),
    Twin("RefusalTakesABlock", frozenset({"KV-POOL-15", "KV-POOL-16"})),
    Twin("RefusalEvicts", frozenset({"KV-MGR-6"}), rates=(1,)),
    Twin("LosesEvents", frozenset({"KV-EVT-7"}), rates=(1, 20)),
    Twin("ReturnedUpToTheWrongOne", frozenset({"KV-ERR-2", "KV-POOL-15"})),
    Twin("ListsADifferentBlock", frozenset({"KV-GRP-1", "KV-POOL-3"})),
)


class Engine:
    """A small engine: requests with equal prefixes arrive, run, are preempted and end.

    Everything follows from `step`, so that two runs are equal.
    """

    def __init__(self, implementation: Implementation, manager: KVCacheManager) -> None:
        self.implementation = implementation
        self.manager = manager
        self.running: list[Request] = []
        self.number = 0

    def run(self, steps: int) -> None:
        """Run the steps: each admits one request, and decodes a token of all running ones."""
        for step in range(steps):
            self.manager.new_step_starts()
            for request in list(self.running):
                if request in self.running:
                    self.decode(request, step)
            self.admit(step)
            self.ask(step)
            self.manager.take_events()
            self.manager.make_prefix_cache_stats()

    def admit(self, step: int) -> None:
        family = 0 if step % 4 else step
        tokens = [family * 100 + n for n in range(4 + 5 * (step % 3))] + [step, step]
        request = self.implementation.make_request(
            self.manager,
            RequestInput(f"r{self.number}", tokens, cache_salt=None if step % 5 else "s"),
        )
        self.number += 1
        hit = self.manager.get_computed_blocks(request)
        granted = self.manager.allocate_slots(
            request,
            len(tokens) - hit.hit_length_tokens,
            num_new_computed_tokens=hit.hit_length_tokens,
            new_computed_blocks=hit.blocks,
        )
        if granted is not None:
            request.num_computed_tokens = len(tokens)
            request.status = RequestStatus.RUNNING
            self.running.append(request)

    def decode(self, request: Request, step: int) -> None:
        self.implementation.append_tokens(self.manager, request, [step])
        if request.num_tokens > 20 or self.manager.allocate_slots(request, 1) is None:
            self.end(request, step)
        else:
            if step % 9 == 4:  # the step does not run, and is planned again
                self.manager.withdraw(request, request.num_computed_tokens)
                self.manager.allocate_slots(request, 1)
            request.num_computed_tokens += 1

    def end(self, request: Request, step: int) -> None:
        self.running.remove(request)
        if step % 2:
            self.manager.free(request)
            return
        popped = self.manager.pop_blocks_for_free(request)[::-1]
        if popped:
            try:
                self.manager.free_blocks([*popped, popped[0]])
            except ValueError:
                self.manager.free_blocks(popped)

    def ask(self, step: int) -> None:
        if self.running:
            request = self.running[step % len(self.running)]
            self.manager.get_blocks(request)
            self.manager.get_num_common_prefix_blocks(request)
        if step % 7 == 3:
            last = self.manager.config.kv_cache.num_blocks - 1
            self.manager.evict_blocks([last - step % 3])
            self.manager.reset_prefix_cache()
        self.manager.take_new_block_ids()
