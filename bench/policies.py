"""Write the table of hit rates under other orders of eviction: `python bench/policies.py FOLDER`.

FOLDER has the traces of Mooncake, sessions of Weka's kv-cache-tester and trajectories of tau-bench,
a line each. None names tenants: here each session, or conversation by the second id of its prompts,
belongs to one of four, and those of tenant 0 have priority. Sessions begin together.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from time import perf_counter

from kvcheck.tools.replay.policies import LRU, policy_hits, policy_of
from kvcheck.tools.replay.source import open_trace
from kvcheck.tools.replay.trace import TraceRecord
from kvcheck.tools.replay.units import Units, units_of
from kvcheck.tools.replay.whatif import optimal_hits, sizes_between

NAMES = ("arc", "lfu", "ttl:300", "pin:3", "priority", "quota:25")
SESSIONS = ("{}/weka.jsonl.gz", "{}/tau_airline.jsonl.gz")
TRACES = (
    *("{}/mooncake_conversation.jsonl.gz", "{}/mooncake_synthetic.jsonl.gz"),
    *(*SESSIONS, "synth:rag"),
)
PAGE = Path(__file__).parent.parent / "docs" / "policies.md"
MARK = "<!-- written by bench/policies.py -->\n"


def together(records: Iterable[TraceRecord]) -> Iterable[TraceRecord]:
    """Let sessions, each a line, begin at once; those without times take turns."""
    began: dict[int, int] = {}
    own = [
        replace(
            each,
            timestamp_ms=each.timestamp_ms - began.setdefault(each.line, each.timestamp_ms),
            tenant=str(each.line % 4),
        )
        for each in records
    ]
    return sorted(own, key=lambda each: (each.timestamp_ms, each.part))


def with_tenants(units: Units) -> Units:
    """Give each request a tenant and a priority."""
    owners = [
        int(asked.tenant or (asked.units[1] % 4 if len(asked.units) > 1 else 3))
        for asked in units.requests
    ]
    requests = [
        replace(asked, tenant=str(owner), priority=int(owner == 0))
        for asked, owner in zip(units.requests, owners, strict=True)
    ]
    return replace(units, requests=requests)


def table(name: str) -> Iterator[str]:
    """Yield the lines of a trace: sizes of the pool, then tenant 0 alone, then times."""
    with open_trace(name) as source:
        is_of_sessions = Path(name).name in {Path(each).name for each in SESSIONS}
        units = with_tenants(units_of(together(source) if is_of_sessions else source, None))
    own = replace(units, requests=[each for each in units.requests if each.tenant == "0"])
    share = sum(sum(units.weights[unit] for unit in each.units) for each in own.requests)
    seconds = dict.fromkeys(("lru", *NAMES), 0.0)
    shown = f"`{Path(name).name}`, {len(units.requests):,} requests, blocks of {units.block_size}"
    yield f"| {shown} | {' | '.join(seconds)} | best |"
    yield "|---|" + "---:|" * (len(seconds) + 1)
    for num_blocks in sizes_between([units], 5)[0][:4]:
        rates, of_one = [], []
        for policy in seconds:
            began = perf_counter()
            make = (lambda n: LRU(n, 0)) if policy == "lru" else policy_of(policy)
            hits = policy_hits(units, num_blocks, make)
            seconds[policy] += perf_counter() - began
            rates.append(f"{hits.total() * units.block_size / units.tokens:.2%}")
            of_one.append(f"{hits['0'] / share:.2%}")
        best = optimal_hits(units, num_blocks) * units.block_size / units.tokens
        yield f"| {num_blocks:,} blocks | {' | '.join(rates)} | {best:.2%} |"
        yield f"| of these, blocks of tenant 0 | {' | '.join(of_one)} | |"
    costs = (f"{each / seconds['lru']:.1f}" for each in seconds.values())
    yield f"| time a request, over LRU's | {' | '.join(costs)} | |"
    yield ""


if __name__ == "__main__":
    head = PAGE.read_text(encoding="utf-8").partition(MARK)[0]
    lines = [line for name in TRACES for line in table(name.format(sys.argv[1]))]
    PAGE.write_text(head + MARK + "\n" + "\n".join(lines), encoding="utf-8")
