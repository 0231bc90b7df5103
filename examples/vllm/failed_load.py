"""A failed load that three requests share ends vLLM 0.24.0's scheduler with an assertion.

    python -m examples.vllm.failed_load

`first` loads two blocks while it runs. `second` and `third` hit these blocks in the same step, and
the rest of their prompts is loaded while they wait. Block 2 fails. `second` is to compute it again,
so that `third` keeps all tokens of its prompt as computed; vLLM computes the last one again only
where no load failed. In the next step `third` has no token to compute. vLLM's own manager serves
them: kvfast has no part in it.
"""

from __future__ import annotations

from typing import Any

from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput

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

SHARED, REST = (1, 2, 3, 4, 5, 6, 7, 8), (9, 10, 11, 12)


class LoadsTheRest(MadeUpConnector):
    """It has two blocks for who hits none, and the rest of the prompt for who hits some."""

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        """Return tokens after the hit, and whether the load is awaited."""
        waits = num_computed_tokens > 0
        self.announced[request.request_id] = waits
        return request.num_tokens - num_computed_tokens if waits else len(SHARED), waits


def told(scheduler_class: Any = Scheduler) -> str:
    """Return how the step after the failed load ends."""
    prepare()
    setup = Setup((attention("FullAttentionSpec", 4),), 20, 4, 4, loads="both", fails="recompute")
    config = vllm_config(setup, model_folder())
    config.kv_transfer_config.kv_connector = LoadsTheRest.__name__
    config.kv_transfer_config.kv_connector_module_path = LoadsTheRest.__module__
    scheduler = make_scheduler(scheduler_class, setup, config)
    for name, rest in (("first", (20,)), ("second", REST), ("third", REST)):
        scheduler.add_request(Prompt(name, SHARED + rest, max_tokens=9).request(setup))
    plan = scheduler.schedule()
    worker = KVConnectorOutput(finished_recving={"second", "third"}, invalid_block_ids={2})
    output = ModelRunnerOutput(["first"], {"first": 0}, [[30]], kv_connector_output=worker)
    scheduler.update_from_output(plan, output)
    third = scheduler.requests["third"]
    said = f"third has {third.num_computed_tokens} of {third.num_tokens} tokens computed; "
    try:
        counts = scheduler.schedule().num_scheduled_tokens
    except AssertionError:
        return f"{said}schedule() fails by an assertion"
    return f"{said}schedule() answers {counts}"


if __name__ == "__main__":
    print(told())
