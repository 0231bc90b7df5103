"""python -m bench.device: all cases on the GPU, as a table in Markdown (or --json FILE).

Lines are written as they are measured, so an interrupted run leaves its results. All cases take
some two minutes. On a machine without a GPU `--device cpu --quick` shows only that everything runs:
its numbers are not those of a device, and are marked so.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch

from bench.device.cases import PAGE_BYTES, Bench, Case, page_cases, swap_cases, table_cases
from bench.device.report import OURS, claims, head, lines, machine, row_of
from bench.device.runs import run_cases
from bench.device.timing import rounds
from kvfast.device import Backend

KINDS = ("pages", "runs", "swaps", "tables")


def main() -> int:
    """Measure and write."""
    arguments = _arguments()
    device = torch.device(arguments.device)
    is_cuda = device.type == "cuda"
    if is_cuda and not torch.cuda.is_available():
        print(
            "There is no CUDA device. --device cpu --quick only shows that it runs.",
            file=sys.stderr,
        )
        return 2
    if is_cuda:
        torch.cuda.set_device(device)
    quick = bool(arguments.quick)
    facts = machine(device)
    rows: list[dict[str, object]] = []
    for line in head(facts, shlex.join(["python", "-m", "bench.device", *sys.argv[1:]])):
        print(line)
    for case in _cases(_bench(device, quick=quick), arguments.only or KINDS, quick=quick):
        measured = rounds(
            case.contestants, device, num_rounds=3 if quick else 15, num_calls=2 if quick else 20
        )
        rows.append(row_of(case, measured))
        for line in lines(rows[-1]):
            print(line, flush=True)
        if arguments.json:
            text = json.dumps({"machine": facts, "rows": rows}, indent=1) + "\n"
            Path(arguments.json).write_text(text, encoding="utf-8")
    print("")
    for line in claims(rows):
        print(line)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.device", description=__doc__)
    parser.add_argument("--device", default="cuda", help="cuda (default), cuda:1, …, or cpu")
    parser.add_argument("--quick", action="store_true", help="few and small cases, few rounds")
    parser.add_argument("--only", action="append", choices=KINDS, help="these cases; repeatable")
    parser.add_argument("--json", metavar="FILE", help="also write every round's times")
    return parser.parse_args()


def _bench(device: torch.device, *, quick: bool) -> Bench:
    """Make the bench: a million blocks (64 GiB) if half of the memory holds them."""
    backends: dict[str, Backend] = {"kvfast, torch": "torch"}
    num_blocks = 2048 if quick else 1 << 14
    if device.type == "cuda":
        backends[OURS] = "triton"
        room = torch.cuda.mem_get_info(device)[0] // 2 // PAGE_BYTES
        num_blocks = num_blocks if quick else min(1 << 20, room)
    return Bench(device, num_blocks, backends, num_calls=2 if quick else 20)


def _cases(bench: Bench, only: tuple[str, ...] | list[str], *, quick: bool) -> Iterator[Case]:
    tokens = [1, 256] if quick else [1, 64, 1024, 16384, 262144]
    blocks = [1, 64] if quick else [1, 64, 1024, 16384]
    if "tables" in only:
        yield from table_cases(bench, [1, 64] if quick else [1, 16, 256, 1024, 4096])
    if "runs" in only:
        yield from run_cases(bench, [1, 64] if quick else [1, 16, 256, 1024, 4096])
    if "pages" in only:
        yield from page_cases(bench, tokens, blocks)
    if "swaps" in only:
        # Pinned memory is scarce: 4,096 blocks are 256 MiB.
        few = bench if quick else replace(bench, num_blocks=min(4096, bench.num_blocks))
        yield from swap_cases(few, blocks[:3])


if __name__ == "__main__":
    sys.exit(main())
