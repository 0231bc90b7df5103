"""Faults of vLLM's scheduler that its manager has no part in: hits on no content.

    python -m examples.vllm.faults

With the policy to fail loads: `first` loads two blocks while it runs, and block 2 fails. `second`
hits both in the same step, and computes a third one on them. Both requests end. vLLM drops the key
of block 2, and not that of the block that `second` computed on it. Once `third` has computed block
2 anew, `fourth` hits both. On kvfast it does not (KV-MGR-24).

With the policy to recompute them: both blocks fail, and `first` computes them again, 4 tokens in a
step. `second` comes in the first of these steps, and hits both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import RequestStatus

from examples.vllm import engine
from examples.vllm.connector import MadeUpConnector

SHARED = (1, 2, 3, 4, 5, 6, 7, 8)


class Loads(MadeUpConnector):
    """It holds no request's blocks, and has two of them for `first`."""

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        """Return tokens after the hit, and that the load is not awaited."""
        self.announced[request.request_id] = False
        return len(SHARED) * (request.request_id == "first"), False


def on(scheduler_class: Any, fails: str, **options: Any) -> tuple[Any, engine.Setup]:
    """Return a scheduler whose connector loads what `Loads` has, and its setup."""
    engine.prepare()
    attends = (engine.layer("FullAttentionSpec", 4),)
    setup = engine.Setup(attends, 20, 4, 4, loads="sync", fails=fails, **options)
    config = engine.vllm_config(setup, engine.model_folder())
    config.kv_transfer_config.kv_connector = Loads.__name__
    config.kv_transfer_config.kv_connector_module_path = Loads.__module__
    return engine.make_scheduler(scheduler_class, setup, config), setup


def step(scheduler: Any, lost: set[int]) -> dict[str, tuple[list[int], int]]:
    """Run a step, with these blocks lost; return blocks and hits of those that are new in it."""
    plan = scheduler.schedule()
    ran = list(plan.num_scheduled_tokens)
    requests = (scheduler.requests[name] for name in ran)
    sampled = [[30] * (each.num_computed_tokens >= each.num_tokens) for each in requests]
    output = ModelRunnerOutput(ran, {name: i for i, name in enumerate(ran)}, sampled)
    output.kv_connector_output = KVConnectorOutput(invalid_block_ids=lost)
    scheduler.update_from_output(plan, output)
    new = plan.scheduled_new_reqs
    return {each.req_id: (each.block_ids[0], each.num_computed_tokens) for each in new}


def ended(scheduler_class: Any = Scheduler) -> str:
    """Return whether `fourth` hits the block that was computed on a failed load."""
    scheduler, setup = on(scheduler_class, "fail")
    new: dict[str, Any] = {}
    for names, lost in ((("first", "second"), {2}), (("third",), set()), (("fourth",), set())):
        for name in names:
            tokens = SHARED + ((20,) if name == "first" else (9, 10, 11, 12, 21))
            scheduler.add_request(engine.Prompt(name, tokens, max_tokens=9).request(setup))
        new |= step(scheduler, lost)
    stale = new["second"][0][2]
    return f"fourth has {new['fourth'][0]}; {stale} was computed on a block that never arrived"


def recomputed(scheduler_class: Any = Scheduler, *, is_aborted: bool = False) -> str:
    """Return how many tokens of `second` count as computed, of which `first` lacks the second four.

    With the policy to recompute, and chunks of 4 tokens.
    """
    scheduler, setup = on(scheduler_class, "recompute", most_of_prompt=4)
    scheduler.add_request(engine.Prompt("first", (*SHARED, 20), max_tokens=9).request(setup))
    step(scheduler, {1, 2})
    if is_aborted:
        scheduler.finish_requests("first", RequestStatus.FINISHED_ABORTED)
    scheduler.add_request(engine.Prompt("second", (*SHARED, 21), max_tokens=9).request(setup))
    return f"second is behind {step(scheduler, set())['second'][1]} tokens"


# What lock step has vLLM do instead.


def withdraw_what_does_not_run(scheduler: Any) -> None:
    """Have vLLM do what kvfast does with tokens that no step computes (KV-MGR-24).

    It would keep their keys when a planned request is preempted, and when a load fails
    (docs/reports/vllm-0.33-preempted-in-its-step.md, vllm-0.33-recomputed-load.md, `ended`).
    """
    manager, handle = scheduler.kv_cache_manager, scheduler._handle_invalid_blocks
    groups = manager.kv_cache_config.kv_cache_groups
    sizes = [group.kv_cache_spec.block_size for group in groups]
    allocate_slots, evict_blocks = manager.allocate_slots, manager.evict_blocks
    planned, again = dict[str, tuple[Any, int]](), set[str]()
    counts = manager.coordinator.single_type_managers[0].num_cached_block

    def note_and_allocate(request: Any, new: int, hit: int = 0, *rest: Any, **options: Any) -> Any:
        hit = options.get("num_new_computed_tokens", hit)
        if (name := request.request_id) in again:  # another one may have computed them since
            (blocks,) = manager.get_blocks(name).blocks
            while counts[name] < len(blocks) and blocks[counts[name]].block_hash is not None:
                counts[name] += 1
        granted = allocate_slots(request, new, *rest, **{**options, "num_new_computed_tokens": hit})
        if granted is not None and new and not options.get("delay_cache_blocks"):
            end = request.num_computed_tokens + hit + new
            end += options.get("num_external_computed_tokens", 0)
            planned[request.request_id] = request, min(end, request.num_tokens)
        return granted

    def withdraw(request: Any) -> None:
        lists = manager.get_blocks(request.request_id).blocks
        if request.num_computed_tokens < planned.pop(request.request_id, (request, 0))[1]:
            for blocks, size in zip(lists, sizes, strict=False):
                for block in blocks[request.num_computed_tokens // size :]:
                    evict_blocks({block.block_id})

    def withdrawing(release: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def withdraw_and_release(request: Any) -> Any:
            withdraw(request)
            again.discard(request.request_id)
            return release(request)

        return withdraw_and_release

    def handle_and_withdraw(lost: Any, *given: Any) -> Any:
        affected = handle(lost, *given)
        for request in [each for each in scheduler.running if each.request_id in affected]:
            planned[request.request_id] = request, request.num_computed_tokens + 1
            withdraw(request)
            counts[request.request_id] = request.num_computed_tokens // sizes[0]
            again.add(request.request_id)
        return affected

    manager.allocate_slots = note_and_allocate
    scheduler._handle_invalid_blocks = handle_and_withdraw
    manager.free = withdrawing(manager.free)
    manager.pop_blocks_for_free = withdrawing(manager.pop_blocks_for_free)


def queue_once(scheduler: Any) -> None:
    """Have vLLM's scheduler do what kvfast does with a session that ends twice."""
    update, handle = scheduler._update_request_with_output, scheduler._handle_stopped_request
    before: dict[str, Any] = {}

    def note_and_update(request: Any, *given: Any, **more: Any) -> Any:
        before[request.request_id] = request.status
        return update(request, *given, **more)

    def handle_once(request: Any) -> bool:
        status = before[request.request_id]
        if status is not RequestStatus.WAITING_FOR_STREAMING_REQ:
            return bool(handle(request))
        request.status = status
        return False

    scheduler._update_request_with_output = note_and_update
    scheduler._handle_stopped_request = handle_once


if __name__ == "__main__":
    print(ended(), recomputed(), recomputed(is_aborted=True), sep="\n")
