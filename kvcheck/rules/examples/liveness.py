"""Examples of the chapter on liveness: what must happen in the end."""

from __future__ import annotations

from kvcheck.play.verdicts import Level
from kvcheck.rules.examples.bench import Bench
from kvcheck.rules.examples.example import example
from kvspec.interface import Feature, KVCacheManager
from kvspec.request import Request


@example("KV-LIVE-1", level=Level.SAFETY)
def admitted_in_the_end(bench: Bench) -> None:
    """A request that fits is admitted when enough others were freed."""
    manager = bench.manager(7)
    others = [bench.started(manager, name, (number,) * 6) for number, name in enumerate("abc")]
    late = bench.request(manager, "late", range(20, 44))
    gate = {"full_sequence_must_fit": True} if bench.has(Feature.ADMISSION) else {}
    num_frees = 0
    while bench.admit(manager, late, has_scheduled_reqs=False, **gate) is None:
        bench.holds("it is admitted when the pool is idle", num_frees < len(others))
        manager.free(others[num_frees])
        num_frees += 1
    bench.equal("its blocks", 6, len(manager.get_blocks(late).to_lists()[0]))


@example("KV-LIVE-2", level=Level.SAFETY)
def all_end(bench: Bench) -> None:
    """Served oldest first, with the youngest preempted on a refusal, every request ends."""
    manager = bench.manager(7)
    requests = [bench.request(manager, f"r{number}", (number,) * 8) for number in range(4)]
    running: list[Request] = []
    for _ in range(200):
        manager.new_step_starts()
        if serve(bench, manager, running):
            waiting = [r for r in requests if r not in running and r.num_tokens < 16]
            for request in waiting:
                if bench.admit(manager, request, has_scheduled_reqs=bool(running)) is None:
                    break
                running.append(request)
        for request in [r for r in running if r.num_tokens == 16]:
            manager.free(request)
            running.remove(request)
    bench.equal("tokens of each in the end", [16] * 4, [r.num_tokens for r in requests])


def serve(bench: Bench, manager: KVCacheManager, running: list[Request]) -> bool:
    """One token for each running request, oldest first; whether nobody was preempted."""
    num_running = len(running)
    for request in list(running):
        if request not in running:
            continue
        if request.num_computed_tokens == request.num_tokens:
            bench.subject.append_tokens(manager, request, (request.num_tokens,))
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


LIVENESS = (admitted_in_the_end, all_end)
