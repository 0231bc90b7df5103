"""Count the hits of a trace with the simulators installed beside this Python: see `peers.py`."""

from __future__ import annotations

import gzip
import json
import sys
import tempfile
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

RUN = 512


def kvlint(lines: list[dict[str, Any]], trace: str, blocks: int | None) -> float:
    blocks_of = import_module("kvlint.sim.vllm_blocks").VLLMBlockSimulator
    simulator = blocks_of(1, blocks)  # an id stands for a block
    hit = 0
    for number, line in enumerate(lines):
        whole = line["hash_ids"][: line["input_length"] // RUN]
        hit += simulator.feed_tokens(str(number), whole).cached_tokens * RUN
    return float(hit / sum(line["input_length"] for line in lines))


def kvcache_simulator(lines: list[dict[str, Any]], trace: str, blocks: int | None) -> float:
    found = import_module("kvcache_sim.cpp_backend").run_cpp_sweep(
        import_module("kvcache_sim.trace").parse_trace_file(trace, block_size=RUN),
        capacities=[blocks or 1],
        policies=["lru"],
        warmup_requests=len(lines) // 2,
    )
    rate = found.ceiling.hitRate if blocks is None else found.results["lru", blocks].hitRate
    return float(rate)


def dynamo(lines: list[dict[str, Any]], trace: str, blocks: int | None) -> float:
    endless = sum(len(line["hash_ids"]) + line["output_length"] // RUN + 1 for line in lines)
    engine = {"num_gpu_blocks": blocks or endless, "block_size": RUN}
    found = import_module("dynamo._core").run_mocker_trace_replay(
        [trace],
        extra_engine_args={"engine": engine},
        trace_block_size=RUN,
        replay_concurrency=1,
    )
    return float(found.summary["first_admission_prefix_cache_reused_ratio"])


PEERS = {"kvlint": kvlint, "kvcache-simulator": kvcache_simulator, "ai-dynamo-runtime": dynamo}


def main(trace: str, pools: list[int | None]) -> None:
    """Print for each simulator its version, and the hit rates of the pools."""
    found: dict[str, Any] = {}
    text = gzip.decompress(Path(trace).read_bytes()).decode()
    lines = [json.loads(line) for line in text.splitlines()]
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder, "trace.jsonl")
        plain.write_text(text)
        for name, count in PEERS.items():
            try:
                rates = [count(lines, str(plain), blocks) for blocks in pools]
                found[name] = [version(name), rates]
            except ImportError as error:
                found[name] = [None, str(error)]
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], [int(each) or None for each in sys.argv[2:]])
