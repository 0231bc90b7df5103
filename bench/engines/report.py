"""Results as tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.metadata import version
from statistics import median

from bench.engines.rounds import MAKING, SCHEDULE, STEP, UPDATE, Measured
from bench.tables import stamp

DEVICE_MS = (2, 5, 10, 20, 40)


def tables(measured: Sequence[Measured], command: str) -> Iterator[str]:
    """Yield the tables line by line."""
    yield (f"{stamp()}, vLLM {version('vllm')}:")
    yield from ("", f"    {command}", "")
    yield (
        f"Medians of {len(measured[0].rounds)} rounds, in µs of processor time per step; ratio:"
        " stock / kvfast in the same round, with quartiles. Come: requests per step, in place of"
        " others that ended; decodes never end, which no server sees. Batched: steps that were one"
        " call."
    )
    yield ""
    sides = ["kvfast", "ratio"]
    head = ["load", "come", "schedule", *sides, "update", *sides, "sum, ratio"]
    yield from _lines([*head, "batched"], [_row(each) for each in measured])
    stories = [each for each in measured if each.case.story is not None]
    if stories:
        head = ["load", "making a request, µs", "kvfast", "ratio"]
        yield from _lines(head, [[each.case.name, *each.both(MAKING)] for each in stories])
    yield "Shares of the time, in a round of its own with clocks around the calls of the manager:"
    yield ""
    yield from _lines(["load", "stock", "on kvfast"], [_shares(each) for each in measured])
    yield (
        "What a step gains end to end, beside a device step of so many ms: without asynchronous"
        " scheduling the two add up; with it the scheduler is hidden as long as it is the shorter"
        " one, and a gain needs a scheduler that is slower than the device."
    )
    yield ""
    head = ["load", *(f"{ms} ms" for ms in DEVICE_MS)]
    big = [each for each in measured if each.case.decoding >= 256]
    yield from _lines(head, [_gains(each) for each in big or measured])


def _row(each: Measured) -> list[str]:
    ratio = each.ratio(STEP)
    share = f"{each.batched:.1%}"
    come = f"{each.come_per_step:.2f}"
    return [each.case.name, come, *each.both(SCHEDULE), *each.both(UPDATE), ratio, share]


def _shares(each: Measured) -> list[str]:
    cells = [each.case.name]
    for found in each.shares:
        total = sum(found.values())
        cells.append(", ".join(f"{name} {part / total:.0%}" for name, part in found.items()))
    return cells


def _gains(each: Measured) -> list[str]:
    stock, ours = (median(each.microseconds(side, STEP)) / 1e3 for side in (0, 1))
    cells = [each.case.name]
    for device in DEVICE_MS:
        if each.case.setup.is_async:
            gain = max(device, stock) / max(device, ours)
        else:
            gain = (device + stock) / (device + ours)
        cells.append(f"{gain:.2f}")
    return cells


def _lines(head: list[str], rows: list[list[str]]) -> Iterator[str]:
    yield "| " + " | ".join(head) + " |"
    yield "|---" + "|---:" * (len(head) - 1) + "|"
    for row in rows:
        yield "| " + " | ".join(row) + " |"
    yield ""
