"""Results on a device, as Markdown: a row for each way, then our claims about them."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version

import torch

from bench.device.cases import COPY, Case
from bench.device.timing import ratio, spread

OURS = "kvfast, Triton"
LARGE_BYTES = 1 << 30
"""Moved at least, where shares of a bandwidth are claimed: far more than any cache holds."""


def machine(device: torch.device) -> dict[str, str]:
    """Return the machine that the numbers belong to."""
    is_cuda = device.type == "cuda"
    try:
        triton = version("triton")
    except PackageNotFoundError:
        triton = "none"
    return {
        "chip": torch.cuda.get_device_name(device) if is_cuda else "none: host memory, no figures",
        "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        "torch": torch.__version__,
        "triton": triton,
    }


def row_of(case: Case, measured: dict[str, list[float]]) -> dict[str, object]:
    """Return a case as in the document; times in seconds."""
    plain = measured.get(COPY)
    shares = {} if plain is None else {name: ratio(plain, one) for name, one in measured.items()}
    return {
        "phase": case.phase,
        "size": case.size,
        "moved_bytes": case.moved_bytes,
        "staged_bytes": case.staged_bytes,
        "new_blocks": case.new_blocks,
        "seconds": {name: asdict(spread(times)) for name, times in measured.items()},
        "of_copy_bandwidth": {name: asdict(one) for name, one in shares.items()},
        "failed": case.failed,
        "rounds": measured,
    }


def head(facts: Mapping[str, str], command: str) -> Iterator[str]:
    """Yield the machine, the command, and the head of the table."""
    yield f"{facts['chip']}, torch {facts['torch']}, Triton {facts['triton']}, {facts['date']}:"
    yield ""
    yield f"    {command}"
    yield ""
    yield "Of a call on the device, twenty of them in a CUDA graph; swaps with the host's part."
    yield "What moves less than the second-level cache holds is found there, by all ways alike."
    yield ""
    yield "| phase | size | way | µs (quartiles) | GB/s | of a copy's bandwidth | staged bytes |"
    yield "|---|---|---|---:|---:|---:|---:|"


def lines(row: Mapping[str, object]) -> Iterator[str]:
    """Yield the lines of a case; microseconds, and bytes read plus written."""
    seconds, shares, failed = row["seconds"], row["of_copy_bandwidth"], row["failed"]
    if not (isinstance(seconds, dict) and isinstance(shares, dict) and isinstance(failed, dict)):
        raise TypeError("no row of this script")
    moved, staged = row["moved_bytes"], row["staged_bytes"]
    begin = f"| {row['phase']} | {row['size']} |"
    for name, one in seconds.items():
        times = [one[key] * 1e6 for key in ("median", "low", "high")]
        rate, share = "–", "–"
        if isinstance(moved, int) and moved:
            rate = f"{moved / one['median'] / 1e9:,.0f}"
            share = f"{100 * shares[name]['median']:.0f} %" if name in shares else "–"
        told = staged if staged is not None and name != COPY else ""
        yield (
            f"{begin} {name} | {times[0]:,.1f} ({times[1]:,.1f} … {times[2]:,.1f})"
            f" | {rate} | {share} | {told} |"
        )
    for name, why in failed.items():
        yield f"{begin} {name} | failed: {why} | | | |"


def claims(rows: list[dict[str, object]]) -> Iterator[str]:
    """Yield our claims about our kernels, with the figures for them."""
    for row in rows:
        seconds, shares = row["seconds"], row["of_copy_bandwidth"]
        phase, size, moved = row["phase"], row["size"], row["moved_bytes"]
        if not (isinstance(seconds, dict) and isinstance(shares, dict) and isinstance(moved, int)):
            raise TypeError("no row of this script")
        if OURS not in seconds:
            continue
        if phase in ("write", "gather") and moved >= LARGE_BYTES and OURS in shares:
            share = 100 * shares[OURS]["median"]
            yield _claim(f"{phase}, {size}: at least 85 % of a copy", f"{share:.1f} %", share >= 85)
        if phase == "tables and slots" and size == "1,024 requests":
            time = seconds[OURS]["median"] * 1e6
            yield _claim("tables and slots, 1,024 requests: 15 µs", f"{time:.1f} µs", time <= 15)
            staged, new = row["staged_bytes"], row["new_blocks"]
            if isinstance(staged, int) and isinstance(new, int):
                each = staged / new
                yield _claim("staged: 16 bytes for each new block", f"{each:.1f}", each <= 16)


def _claim(what: str, found: str, holds: bool) -> str:
    return f"- {what}: {found}, {'holds' if holds else '**does not hold**'}"
