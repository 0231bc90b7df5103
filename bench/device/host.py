"""python -m bench.device.host: what the host does in a step of the tables, on its own.

1,024 requests decode one token each, every sixteenth begins a block. `stage` checks and packs the
message, `step` also reads the plan and its result; what runs on the device afterwards is left out.
With --against CHECKOUT the same is measured with kvfast of another checkout: a process of each by
turns, the order changing, and ratios of the two processes of a round.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from array import array
from collections.abc import Callable
from pathlib import Path

import torch

from bench.device.timing import ratio, spread
from kvfast.device import DeviceTables
from kvspec.batched import StepPlan, StepResult
from kvspec.config import KVCacheConfig, KVCacheGroup, ManagerConfig
from kvspec.specs import FullAttentionSpec

NUM_REQUESTS = 1024
NUM_CALLS = 1500
HERE = Path(__file__).parents[2]


class HostOnly(DeviceTables):
    """Tables whose device does nothing."""

    def apply(self) -> None:
        """Do nothing."""


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.device.host", description=__doc__)
    parser.add_argument("--against", metavar="CHECKOUT", type=Path, help="another kvfast")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--once", action="store_true", help="this kvfast alone, as JSON")
    arguments = parser.parse_args()
    if arguments.once:
        print(json.dumps(seconds()))
        return 0
    roots = [HERE] if arguments.against is None else [HERE, arguments.against]
    measured: list[dict[str, list[float]]] = [{"stage": [], "step": []} for _ in roots]
    for number in range(arguments.rounds):
        for index in sorted(range(len(roots)), reverse=bool(number % 2)):
            for name, one in _in_process(roots[index]).items():
                measured[index][name].append(one)
    for name, times in measured[0].items():
        here = spread(times)
        print(f"{name}: {here.median * 1e6:.0f} µs ({here.low * 1e6:.0f} … {here.high * 1e6:.0f})")
        if len(roots) > 1:
            other = ratio(times, measured[1][name])
            print(f"  of the other's: {other.median:.2f} ({other.low:.2f} … {other.high:.2f})")
    return 0


def _in_process(root: Path) -> dict[str, float]:
    """Run this script, and return `seconds` with kvfast and kvspec of a checkout."""
    path = os.pathsep.join(str(one) for one in (root, root / "spec"))
    # The script is found by its place: `bench` of the other checkout may not have it.
    code = f"import sys; sys.path.append({str(HERE)!r}); sys.argv[1:] = ['--once'];"
    code += f"import runpy; runpy.run_path({__file__!r}, run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    )
    answer: dict[str, float] = json.loads(done.stdout)
    return answer


def seconds() -> dict[str, float]:
    """Measure host seconds per call, lower quartile of many, as others use the machine."""
    spec = FullAttentionSpec(16, 8, 128, "bfloat16")
    cache = KVCacheConfig(NUM_REQUESTS * 64 + 1, (KVCacheGroup(("layer",), spec),))
    config = ManagerConfig(cache, 2 * NUM_CALLS + 1024)
    tables = HostOnly(config, max_requests=NUM_REQUESTS, max_tokens=NUM_REQUESTS)
    handles, counts = array("q", range(NUM_REQUESTS)), array("q", [1] * NUM_REQUESTS)
    new = range(0, NUM_REQUESTS, 16)
    rows = torch.tensor([[handle, 0, 32, 1 + handle] for handle in new], dtype=torch.int32)
    plan = StepPlan(decoding=handles)
    result = StepResult(counts, array("q"), num_deltas=len(rows))
    return {
        "stage": _lower_quartile(lambda: tables.stage(handles, counts, rows)),
        "step": _lower_quartile(lambda: tables.step(plan, result, rows)),
    }


def _lower_quartile(call: Callable[[], object]) -> float:
    times = []
    for _ in range(NUM_CALLS):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return spread(times).low


if __name__ == "__main__":
    sys.exit(main())
