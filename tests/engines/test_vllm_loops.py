"""The loops over vLLM's requests, plain and compiled, over made-up requests; vLLM is not needed."""

from __future__ import annotations

from importlib import import_module
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

import kvfast
from kvfast.engines.vllm import loops, taking
from kvfast.engines.vllm.usual import is_usual

RUNNING, PREEMPTED, ABORTED = 5, 6, 9


class Requests:
    """Steps of a made-up scheduler over the loops of one build; all that they answer or change."""

    def __init__(self, made_of: SimpleNamespace, seed: int) -> None:
        self.made_of = made_of
        self.rng = rng = Random(seed)
        self.is_async, self.in_flight = rng.random() < 0.5, rng.random() < 0.5
        self.requests = {f"r{i}": self.request(f"r{i}") for i in range(rng.randint(1, 9))}
        self.prefills = set(self.requests)

    def request(self, name: str) -> Any:
        rng = self.rng
        prompt = [rng.randrange(50) for _ in range(rng.randint(1, 12))]
        request = SimpleNamespace(
            request_id=name,
            status=RUNNING,
            client_index=rng.randrange(2),
            sampling_params=SimpleNamespace(
                _eos_token_id=rng.choice((None, 7)),
                stop_token_ids=rng.choice((None, [3, 4])),
                repetition_detection=rng.choice((None, None, 1)),
            ),
            max_tokens=rng.randint(2, 20),
            num_prompt_tokens=len(prompt),
            _all_token_ids=prompt,
            _output_token_ids=[],
            block_hashes=[],
            num_computed_tokens=rng.randrange(len(prompt)),
            num_output_placeholders=0,
            next_decode_eligible_step=0,
            async_tokens_to_discard=int(rng.random() < 0.1),
            num_in_flight_tokens=0,
            num_stale_output_tokens=rng.choice((0, 0, 3)),
            drop_stale_output=rng.random() < 0.5,
            spec_token_ids=[],
            is_prefill_chunk=True,
            mm_features=[],
            events=[],
            prefill_stats=rng.choice((None, None, 1)),
            stop_reason=None,
            trace_headers=None,
            num_nans_in_logits=0,
        )
        request.update_block_hashes = lambda: request.block_hashes.append(b"")
        return request

    def step(self, number: int) -> list[Any]:
        rng, told = self.rng, []
        running = [each for each in self.requests.values() if each.status == RUNNING]
        for each in running:
            if not self.is_async:
                each.spec_token_ids = [rng.randrange(50) for _ in range(rng.randint(0, 2))]
        names = [each.request_id for each in running]
        seats = self.made_of.Seats(running, names, list(range(len(running))), [None] * len(running))
        chosen = seats.choose(rng.randint(1, 20), 30, rng.choice((0, 4)), number)
        if chosen is None:
            return ["beyond"]
        if rng.random() < 0.2 and len(chosen.counts) == len(names):
            seats.read()
        plan = [chosen.counts, chosen.same, chosen.most, chosen.computed, chosen.outputs]
        scheduled = chosen.seats.scheduled(chosen)
        rows = [
            v for h in chosen.seats.handles if rng.random() < 0.5 for v in (h, 0, 0, 8, h, 1, 1, 9)
        ]
        view = memoryview(bytearray(16 * 100)).cast("i")
        view[: len(rows)] = memoryview(bytearray(4 * len(rows))).cast("i")
        for i, value in enumerate(rows):
            view[i] = value
        got = chosen.seats.granted(view.cast("B").cast("i", [100, 4]), len(rows) // 4, 2)
        told += [plan, dict(scheduled), chosen.drafts, chosen.total, got]
        later = [-1] if self.is_async else None
        eligible_at, prefills = rng.choice((0, 1)), set[Any]()
        chosen.seats.advance(
            chosen.counts, chosen.drafts, prefills, later, eligible_at, self.in_flight
        )
        taker = self.made_of.Taker(
            RUNNING, PREEMPTED, 4, 30,
            lambda *answer: answer, lambda request, *answer: (request.request_id, *answer),
            lambda request, _: request._output_token_ids[-1] % 5 != 0, self.stopped,
            told.append, (lambda *cached: told.append(cached[1])) if self.is_async else None,
            self.in_flight, rng.random() < 0.5, rng.choice((0, 1)),
            (lambda request: told.append(request.request_id)) if self.in_flight else None,
        )  # fmt: skip
        for name in scheduled:
            if rng.random() < 0.05:
                self.requests[name].status = rng.choice((PREEMPTED, ABORTED))
        sampled = [self.sampled(name, chosen.drafts) for name in scheduled]
        places = {name: i for i, name in enumerate(scheduled)}
        told.append(taker.take_all(seats, scheduled, self.requests, sampled, places, chosen.drafts))
        told += [taker.num_rewound, sampled]
        return told + [vars(each) | {"update_block_hashes": 0} for each in self.requests.values()]

    def sampled(self, name: str, drafts: dict[str, list[int]]) -> list[int]:
        if self.requests[name].is_prefill_chunk:
            return []
        return [
            self.rng.randrange(50)
            for _ in range(1 + self.rng.randint(0, len(drafts.get(name, ()))))
        ]

    def stopped(self, request: Any, status: int) -> str:
        request.status = ABORTED
        return f"stopped at {status}"


@pytest.mark.skipif(not kvfast.compiled, reason="not compiled")
def test_both_builds_of_the_loops_do_the_same() -> None:
    built = [import_module(f"kvfast._compiled.vllm_{name}") for name in ("loops", "taking")]
    compiled_loops = SimpleNamespace(Seats=built[0].Seats, Taker=built[1].Taker)
    plain_loops = SimpleNamespace(Seats=loops.Seats, Taker=taking.Taker)
    counts = dict.fromkeys(("steps", "drafts", "ended"), 0)
    for seed in range(150):
        plain, compiled = Requests(plain_loops, seed), Requests(compiled_loops, seed)
        for number in range(1, 12):
            expected = plain.step(number)
            assert str(compiled.step(number)) == str(expected), (seed, number)
            counts["steps"] += 1
            counts["drafts"] += "b''" in str(expected)
            counts["ended"] += "stopped at" in str(expected)
    assert min(counts.values()) > 100


@pytest.mark.parametrize(
    ("member", "value", "expected"),
    [
        ("num_nans_in_logits", None, True),
        ("num_nans_in_logits", {}, True),  # as vLLM's V1 runner answers
        ("num_nans_in_logits", {"r": 1}, False),
        ("prompt_logprobs_dict", {"r": None}, False),
        ("pooler_output", [None], False),
        ("logprobs", (), False),
        ("kv_connector_output", object(), False),
        ("sampled_token_ids", [], False),
    ],
)
def test_an_output_of_tokens_alone_is_usual(member: str, value: object, expected: bool) -> None:
    output: dict[str, object] = {
        "sampled_token_ids": [[1]],
        "logprobs": None,
        "prompt_logprobs_dict": {},
        "pooler_output": [],
        "kv_connector_output": None,
        "num_nans_in_logits": {},
    }
    scheduler = SimpleNamespace(connector=None, perf_metrics=None, defer_block_free=False)
    plan = SimpleNamespace(num_invalid_spec_tokens={})
    given = SimpleNamespace(**{**output, member: value})
    assert is_usual(scheduler, plan, given) is expected
