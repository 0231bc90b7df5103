"""Write the table of other simulators on one trace: `python bench/peers.py FOLDER PYTHON`.

FOLDER has the traces of Mooncake. PYTHON is that of an environment with the packages that
`peers_in.py` imports: `pip install kvlint kvcache-simulator ai-dynamo-runtime`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import kvfast
from kvcheck.tools.replay.driver import Driver
from kvcheck.tools.replay.options import ReplayOptions
from kvcheck.tools.replay.source import open_trace
from kvcheck.tools.replay.trace import TraceRecord
from kvcheck.tools.replay.units import units_of
from kvcheck.tools.replay.whatif import endless_hits, look_up, lru_hits

TRACES = {
    "mooncake_conversation.jsonl.gz": (6_887, 36_285),
    "mooncake_synthetic.jsonl.gz": (4_101, 13_577),
}
RUN = 512
PAGE = Path(__file__).parent.parent / "docs" / "peers.md"
MARK = "<!-- written by bench/peers.py -->\n"
COUNTED = {
    "kvlint": "ids as blocks, without outputs",
    "kvcache-simulator": "last half of the trace, without outputs, the cut block counted",
    "ai-dynamo-runtime": "its mocker of vLLM, one request at a time",
}


def replayed(records: Iterable[TraceRecord], num_blocks: int) -> float:
    options = ReplayOptions(num_blocks, RUN, max_running=1)
    name = "peers"
    driver = Driver(
        kvfast.implementation(), options, records, trace_name=name, check_invariants=False
    )
    return driver.run().counts.hit_rate


def without_outputs(record: TraceRecord, cut_counts: bool) -> TraceRecord:
    """Return the request as it is seen without outputs, and with the last token not computed.

    `cut_counts`: its last, incomplete block is as good as a whole one.
    """
    whole = record.input_length // RUN + (cut_counts and record.input_length % RUN > 0)
    length = whole * RUN + 1
    return replace(record, input_length=length, output_length=0, hash_ids=(*record.hash_ids, 0))


def as_counted(records: list[TraceRecord], pools: Iterable[int | None], name: str) -> list[float]:
    """Return the hit rates of `whatif`, counting what the peer counts; outputs are left out."""
    halves = name == "kvcache-simulator"
    changed = [without_outputs(record, halves) for record in records]
    looked_up = look_up(units_of(changed, RUN))
    first = len(records) // 2 if halves else 0
    tokens = sum(record.input_length for record in records[first:])

    def hits(count: int, pool: int | None) -> int:
        part = looked_up[:count]
        return endless_hits(part) if pool is None else lru_hits(part, pool + 1)

    return [RUN * (hits(len(records), pool) - hits(first, pool)) / tokens for pool in pools]


def table(path: Path, sizes: tuple[int, ...], python: str) -> Iterator[str]:
    """Yield the lines of a trace: each tool, and `whatif` counting as it does."""
    with open_trace(str(path)) as source:
        records = list(source)
    pools = [*sizes, None]
    shown = [f"{size:,} blocks" for size in sizes]
    yield f"| `{path.name}`, {len(records):,} requests | {' | '.join(shown)} | endless |"
    yield "|---|" + "---:|" * len(pools)
    looked_up = look_up(units_of(records, None))
    tokens = sum(record.input_length for record in records)
    rates = [RUN * lru_hits(looked_up, size) / tokens for size in sizes]
    rates.append(RUN * endless_hits(looked_up) / tokens)
    yield row(f"kvspec {version('kvspec')} `whatif`", rates)
    endless = 2 + sum(-(-(r.input_length + r.output_length) // RUN) for r in records)
    rates = [replayed(records, size) for size in (*sizes, endless)]
    yield row("kvspec `replay`, kvfast, one request at a time", rates)
    asked = [python, str(Path(__file__).with_name("peers_in.py")), str(path)]
    asked += [str((size or 1) - 1) for size in pools]
    found = json.loads(subprocess.run(asked, check=True, capture_output=True, text=True).stdout)
    for name, (its_version, said) in found.items():
        if its_version is None:
            yield f"| {name}: could not be installed ({said}) |" + " |" * len(pools)
            continue
        yield row(f"{name} {its_version}: {COUNTED[name]}", said)
        if name != "ai-dynamo-runtime":
            less = [None if size is None else size - 1 for size in pools]
            yield row(f"kvspec `whatif`, counted as {name} does", as_counted(records, less, name))
    yield ""


def row(name: str, rates: Iterable[float]) -> str:
    cells = " | ".join(f"{rate:.3%}" for rate in rates)
    return f"| {name} | {cells} |"


if __name__ == "__main__":
    head = PAGE.read_text(encoding="utf-8").partition(MARK)[0]
    folder = Path(sys.argv[1])
    lines = [line for name in TRACES for line in table(folder / name, TRACES[name], sys.argv[2])]
    PAGE.write_text(head + MARK + "\n" + "\n".join(lines), encoding="utf-8")
