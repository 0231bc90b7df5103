"""Examples of the chapter on liveness: what must eventually happen."""

from __future__ import annotations

from kvcheck.play.verdicts import Level
from kvcheck.rules.bench import Bench
from kvcheck.rules.example import example
from kvcheck.rules.judging import equal, holds
from kvcheck.rules.managed import Managed
from kvspec.interface import Feature
from kvspec.request import Request


@example("KV-LIVE-1", level=Level.SAFETY)
def a_request_that_fits_is_admitted_when_enough_others_were_freed(bench: Bench) -> None:
    manager = bench.manager(7)
    others = [manager.started(name, (number,) * 6) for number, name in enumerate("abc")]
    late = manager.request("late", range(20, 44))
    gate = {"full_sequence_must_fit": True} if bench.has(Feature.ADMISSION) else {}
    num_frees = 0
    while manager.admit(late, has_scheduled_reqs=False, **gate) is None:
        holds(num_frees < len(others), "it is admitted when the pool is idle")
        manager.free(others[num_frees])
        num_frees += 1
    equal(len(manager.get_blocks(late).to_lists()[0]), 6, "its blocks")


@example("KV-LIVE-2", level=Level.SAFETY)
def all_end(bench: Bench) -> None:
    """Check that every request ends, served oldest first with the youngest preempted."""
    manager = bench.manager(7)
    requests = [manager.request(f"r{number}", (number,) * 8) for number in range(4)]
    running: list[Request] = []
    for _ in range(200):
        manager.new_step_starts()
        if serve(bench, manager, running):
            waiting = [r for r in requests if r not in running and r.num_tokens < 16]
            for request in waiting:
                if manager.admit(request, has_scheduled_reqs=bool(running)) is None:
                    break
                running.append(request)
        for request in [r for r in running if r.num_tokens == 16]:
            manager.free(request)
            running.remove(request)
    equal([r.num_tokens for r in requests], [16] * 4, "tokens of each in the end")


def serve(bench: Bench, manager: Managed, running: list[Request]) -> bool:
    """Run one token of each request, oldest first; return whether none was preempted."""
    num_running = len(running)
    for request in list(running):
        if request not in running:
            continue
        if request.num_computed_tokens == request.num_tokens:
            manager.append(request, (request.num_tokens,))
        pending = request.num_tokens - request.num_computed_tokens
        while manager.allocate_slots(request, pending) is None:
            youngest = running.pop()
            manager.free(youngest)
            youngest.num_computed_tokens = 0
            youngest.num_preemptions += 1
            if youngest is request:
                break
        else:
            request.num_computed_tokens = request.num_tokens
    return len(running) == num_running
