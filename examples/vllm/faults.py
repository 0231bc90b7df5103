"""Faults of vLLM's scheduler that its manager has no part in: errors, and a hit on no content.

    python -m examples.vllm.faults

`recomputed`, with the policy to recompute: `first` loads two blocks while it runs. `second` and
`third` hit these blocks in the same step, and the rest of their prompts is loaded while they wait.
Block 2 fails. `second` is to compute it again, so that `third` keeps all tokens of its prompt as
computed; vLLM 0.24.0 computes the last one again only where no load failed. In the next step
`third` has no token to compute. vLLM's own manager serves them: kvfast has no part in it.

`ended`, with the policy to fail: `second` hits both blocks, and computes a third one on them. Both
requests end. vLLM drops the key of block 2, and not that of the block that `second` computed on it.
Once `third` has computed block 2 anew, `fourth` hits both. On kvfast it does not (KV-MGR-24).

`queued`, asynchronously: a session samples the token that ends its turn while a step is under
way, whose output ends it again. vLLM 0.24.0 puts it into its queue twice, and fails once the user
goes on. On kvfast it is there once, and goes on; from 0.33.0 on also on vLLM's.
"""

from __future__ import annotations

from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput

from examples.vllm.connector import MadeUpConnector
from examples.vllm.engine import (
    END,
    Prompt,
    Setup,
    attention,
    make_scheduler,
    model_folder,
    prepare,
    vllm_config,
)

SHARED, REST = (1, 2, 3, 4, 5, 6, 7, 8), (9, 10, 11, 12)


class LoadsTheFirst(MadeUpConnector):
    """It has two blocks for `first`, and holds no request's blocks."""

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        """Return tokens after the hit; no load is awaited."""
        self.announced[request.request_id] = False
        return len(SHARED) if request.request_id == "first" else 0, False


class LoadsTheRest(MadeUpConnector):
    """It has two blocks for who hits none, and the rest of the prompt for who hits some."""

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        """Return tokens after the hit, and whether the load is awaited."""
        waits = num_computed_tokens > 0
        self.announced[request.request_id] = waits
        return request.num_tokens - num_computed_tokens if waits else len(SHARED), waits


def scheduler_of(scheduler_class: Any, connector: type[MadeUpConnector], fails: str) -> Any:
    """Make a scheduler with this connector and policy for loads that fail; `add` adds to it."""
    prepare()
    setup = Setup((attention("FullAttentionSpec", 4),), 20, 4, 4, loads="both", fails=fails)
    config = vllm_config(setup, model_folder())
    config.kv_transfer_config.kv_connector = connector.__name__
    config.kv_transfer_config.kv_connector_module_path = connector.__module__
    return make_scheduler(scheduler_class, setup, config)


def add(scheduler: Any, name: str, rest: tuple[int, ...]) -> None:
    """Add a request for the shared tokens and these."""
    setup = Setup((attention("FullAttentionSpec", 4),), 20, 4, 4)
    scheduler.add_request(Prompt(name, SHARED + rest, max_tokens=9).request(setup))


def update(scheduler: Any, plan: Any, token: int = 30, **done: Any) -> None:
    """Process the step: it sampled this token for each request; `done`: by the worker's loads."""
    names = list(plan.num_scheduled_tokens)
    places = {name: place for place, name in enumerate(names)}
    output = ModelRunnerOutput(names, places, [[token] for _ in names])
    output.kv_connector_output = KVConnectorOutput(**done) if done else None
    scheduler.update_from_output(plan, output)


def recomputed(scheduler_class: Any = Scheduler) -> str:
    """Return how the step after the failed load ends, with the policy to recompute."""
    scheduler = scheduler_of(scheduler_class, LoadsTheRest, "recompute")
    for name, rest in (("first", (20,)), ("second", REST), ("third", REST)):
        add(scheduler, name, rest)
    plan = scheduler.schedule()
    update(scheduler, plan, finished_recving={"second", "third"}, invalid_block_ids={2})
    third = scheduler.requests["third"]
    said = f"third has {third.num_computed_tokens} of {third.num_tokens} tokens computed; "
    try:
        counts = scheduler.schedule().num_scheduled_tokens
    except AssertionError:
        return f"{said}schedule() fails by an assertion"
    return f"{said}schedule() answers {counts}"


def ended(scheduler_class: Any = Scheduler) -> str:
    """Return whether `fourth` hits the block that was computed on a failed load."""
    scheduler = scheduler_of(scheduler_class, LoadsTheFirst, "fail")
    lists: dict[str, list[int]] = {}
    for names, failed in ((("first", "second"), {2}), (("third",), set()), (("fourth",), set())):
        for name in names:
            add(scheduler, name, (20,) if name == "first" else (*REST, 21))
        plan = scheduler.schedule()
        lists |= {new.req_id: new.block_ids[0] for new in plan.scheduled_new_reqs}
        update(scheduler, plan, invalid_block_ids=failed)
    stale = lists["second"][2]
    return f"fourth has {lists['fourth']}; {stale} was computed on a block that never arrived"


def queued(scheduler_class: Any = AsyncScheduler) -> str:
    """Return how often a session that has ended twice waits, and whether it can go on."""
    prepare()
    setup = Setup((attention("FullAttentionSpec", 4),), 20, 4, 4, is_async=True)
    scheduler = make_scheduler(scheduler_class, setup, vllm_config(setup, model_folder()))
    session = Prompt("session", SHARED, max_tokens=9, is_session=True)
    scheduler.add_request(session.request(setup))
    for plan in (scheduler.schedule(), scheduler.schedule()):
        update(scheduler, plan, END)
    number = scheduler.get_request_counts()[1]
    scheduler.add_request(session.request(setup))
    try:
        counts = scheduler.schedule().num_scheduled_tokens
    except RuntimeError as error:
        return f"the session waits {number} times; schedule() fails: {error}"
    return f"the session waits {number} times; schedule() answers {counts}"


if __name__ == "__main__":
    print(recomputed(), ended(), queued(), sep="\n")
