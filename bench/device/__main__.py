"""python -m bench.device: all cases on the GPU, as a table in Markdown (or --json FILE).

On a machine without a GPU `--device cpu --quick` shows that everything runs, and nothing else: its
numbers are not those of a device, and are marked so.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import torch

from bench.device.cases import COPY, Bench, Case, page_cases, swap_cases, table_cases
from bench.device.timing import ratio, rounds, spread
from kvfast.device import Backend


def main() -> int:
    """Measure and write."""
    arguments = _arguments()
    device = torch.device(arguments.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        print(
            "There is no CUDA device. --device cpu --quick only shows that it runs.",
            file=sys.stderr,
        )
        return 2
    backends: dict[str, Backend] = {"kvfast, torch": "torch"}
    if device.type == "cuda":
        backends["kvfast, Triton"] = "triton"
    quick = bool(arguments.quick)
    bench = Bench(
        device, 2048 if quick else 1 << 20 >> (0 if device.type == "cuda" else 6), backends
    )
    rows = []
    for case in _cases(bench, quick):
        measured = rounds(
            case.contestants, device, num_rounds=3 if quick else 15, num_calls=2 if quick else 20
        )
        rows.append(_row(case, measured))
        print(f"{case.phase}, {case.size}", file=sys.stderr)
    document: dict[str, object] = {"machine": machine(device), "rows": rows}
    if arguments.json:
        text = json.dumps(document, indent=1) + "\n"
        Path(arguments.json).write_text(text, encoding="utf-8")
    print("\n".join(table(document)))
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.device", description=__doc__)
    parser.add_argument("--device", default="cuda", help="cuda (default), cuda:1, …, or cpu")
    parser.add_argument("--quick", action="store_true", help="few and small cases, few rounds")
    parser.add_argument("--json", metavar="FILE", help="also write every round's times")
    return parser.parse_args()


def _cases(bench: Bench, quick: bool) -> Iterator[Case]:
    tokens = [1, 256] if quick else [1, 64, 1024, 16384, 262144]
    blocks = [1, 64] if quick else [1, 64, 1024, 16384]
    yield from page_cases(bench, tokens, blocks)
    yield from swap_cases(bench if quick else _smaller(bench), blocks[:3])
    yield from table_cases(bench, [1, 64] if quick else [1, 16, 256, 1024, 4096])


def _smaller(bench: Bench) -> Bench:
    """Pinned memory is scarce: 4,096 blocks are 256 MiB."""
    return Bench(bench.device, 4096, bench.backends)


def machine(device: torch.device) -> dict[str, str]:
    """What the numbers belong to."""
    is_cuda = device.type == "cuda"
    return {
        "chip": torch.cuda.get_device_name(device) if is_cuda else "none: host memory, no figures",
        "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        "torch": torch.__version__,
    }


def _row(case: Case, measured: dict[str, list[float]]) -> dict[str, object]:
    plain = measured[COPY]
    return {
        "phase": case.phase,
        "size": case.size,
        "moved_bytes": case.moved_bytes,
        "staged_bytes": case.staged_bytes,
        "seconds": {name: asdict(spread(times)) for name, times in measured.items()},
        "of_copy_bandwidth": {
            name: asdict(ratio(plain, times)) for name, times in measured.items()
        },
        "rounds": measured,
    }


def table(document: dict[str, object]) -> Iterator[str]:
    """Markdown: microseconds (quartiles), and the share of the bandwidth of a plain copy."""
    facts, rows = document["machine"], document["rows"]
    if not isinstance(facts, dict) or not isinstance(rows, list):
        raise TypeError("no document of this script")
    yield f"{facts['chip']}, torch {facts['torch']}, {facts['date']}"
    yield ""
    yield "| phase | size | way | µs (quartiles) | of a copy's bandwidth | staged bytes |"
    yield "|---|---|---|---|---|---|"
    for row in rows:
        for name, one in row["seconds"].items():
            times = [one[key] * 1e6 for key in ("median", "low", "high")]
            share = row["of_copy_bandwidth"][name]["median"]
            shown = f"{100 * share:.0f} %" if row["moved_bytes"] else "–"
            staged = "" if row["staged_bytes"] is None else row["staged_bytes"]
            yield (
                f"| {row['phase']} | {row['size']} | {name}"
                f" | {times[0]:.1f} ({times[1]:.1f} … {times[2]:.1f}) | {shown} | {staged} |"
            )


if __name__ == "__main__":
    sys.exit(main())
