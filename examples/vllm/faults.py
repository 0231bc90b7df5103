"""A fault of vLLM's scheduler that its manager has no part in: a hit on no content.

    python -m examples.vllm.faults

With the policy to fail loads: `first` loads two blocks while it runs, and block 2 fails. `second`
hits both in the same step, and computes a third one on them. Both requests end. vLLM drops the key
of block 2, and not that of the block that `second` computed on it. Once `third` has computed block
2 anew, `fourth` hits both. On kvfast it does not (KV-MGR-24).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import RequestStatus

from examples.vllm.connector import MadeUpConnector
from examples.vllm.engine import (
    Prompt,
    Setup,
    attention,
    make_scheduler,
    model_folder,
    prepare,
    vllm_config,
)

SHARED = (1, 2, 3, 4, 5, 6, 7, 8)


class Loads(MadeUpConnector):
    """It holds no request's blocks, and has two of them for `first`."""

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        """Return tokens after the hit, and that the load is not awaited."""
        self.announced[request.request_id] = False
        return len(SHARED) * (request.request_id == "first"), False


def ended(scheduler_class: Any = Scheduler) -> str:
    """Return whether `fourth` hits the block that was computed on a failed load."""
    prepare()
    setup = Setup((attention("FullAttentionSpec", 4),), 20, 4, 4, loads="sync", fails="fail")
    config = vllm_config(setup, model_folder())
    config.kv_transfer_config.kv_connector = Loads.__name__
    config.kv_transfer_config.kv_connector_module_path = Loads.__module__
    scheduler = make_scheduler(scheduler_class, setup, config)
    lists: dict[str, list[int]] = {}
    for names, failed in ((("first", "second"), {2}), (("third",), set()), (("fourth",), set())):
        for name in names:
            tokens = SHARED + ((20,) if name == "first" else (9, 10, 11, 12, 21))
            scheduler.add_request(Prompt(name, tokens, max_tokens=9).request(setup))
        plan = scheduler.schedule()
        lists |= {new.req_id: new.block_ids[0] for new in plan.scheduled_new_reqs}
        ran = list(plan.num_scheduled_tokens)
        output = ModelRunnerOutput(
            ran, {name: i for i, name in enumerate(ran)}, [[30] for _ in ran]
        )
        output.kv_connector_output = KVConnectorOutput(invalid_block_ids=failed)
        scheduler.update_from_output(plan, output)
    stale = lists["second"][2]
    return f"fourth has {lists['fourth']}; {stale} was computed on a block that never arrived"


# What lock step has vLLM do instead.


def withdraw_what_does_not_run(manager: Any) -> None:
    """Have vLLM's manager do what kvfast does with tokens that no step computes (KV-MGR-24).

    It would keep their keys when a planned request is preempted, and when a load fails
    (docs/reports/vllm-0.33-preempted-in-its-step.md, `ended`).
    """
    groups = manager.kv_cache_config.kv_cache_groups
    sizes = [group.kv_cache_spec.block_size for group in groups]
    allocate_slots, evict_blocks = manager.allocate_slots, manager.evict_blocks
    planned = dict[str, tuple[Any, int]]()

    def note_and_allocate(request: Any, new: int, hit: int = 0, *rest: Any, **options: Any) -> Any:
        hit = options.get("num_new_computed_tokens", hit)
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
            return release(request)

        return withdraw_and_release

    def evict_and_withdraw(block_ids: Any) -> None:
        evict_blocks(block_ids)
        for request, end in tuple(planned.values()):
            if request.num_computed_tokens < end:
                withdraw(request)

    manager.allocate_slots, manager.evict_blocks = note_and_allocate, evict_and_withdraw
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
    print(ended())
