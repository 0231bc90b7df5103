"""The report of a replay, as JSON and as text; spec/replay.md, section 7, lists the keys."""

from __future__ import annotations

import platform
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, TypeAlias

from kvcheck.tools.replay.against import Live, beside
from kvcheck.tools.replay.result import ReplayResult
from kvcheck.tools.replay.source import DEMO
from kvspec.interface import Capabilities

FORMAT = "kvspec-replay"
FORMAT_VERSION = 2
WIDTH = 80
"""Characters in a line, where nothing is known of a terminal."""
NUM_BLOCKS, BLOCK_SIZE = 300, 64
"""The pool where none is given: it suits the shipped trace."""


Rows: TypeAlias = Sequence[tuple[str, ...]]
"""Labels, values, and what they mean if that is said."""


EXPLAINED = "From the trace's repeat rate to the hit rate (spec/replay.md, section 6)"


@dataclass(frozen=True)
class ReplayContext:
    """The trace, the implementation and the selection of requests that belong to a result.

    `notes`: what is inexact in the trace. `prefill_rate`: tokens that an engine computes in a
    second. `live`: counters of an engine that ran it.
    """

    trace: str
    implementation: Capabilities
    sample: float
    limit: int | None
    check_invariants: bool
    notes: tuple[str, ...] = ()
    prefill_rate: int | None = None
    live: Live | None = None


def report(result: ReplayResult, context: ReplayContext) -> dict[str, Any]:
    """Return all measurements as a JSON document; equal inputs differ only in `seconds`."""
    waterfall = result.waterfall

    def counted(*names: str) -> dict[str, Any]:
        return {name: getattr(result.counts, name) for name in names}

    content = {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "trace": context.trace,
        "notes": list(context.notes),
        "implementation": {
            "name": context.implementation.name,
            "version": context.implementation.version,
        },
        "versions": {"kvspec": metadata.version("kvspec"), "python": platform.python_version()},
        "options": {
            **result.options.to_json(),
            "sample": context.sample,
            "limit": context.limit,
            "check_invariants": context.check_invariants,
        },
        **counted("requests", "tokens_queried", "tokens_hit", "hit_rate"),
        "prefill_tokens_per_second": context.prefill_rate,
        "trace_repeat_rate": float(waterfall.repeat_rate),
        **counted("preemptions", "preempted_requests", "preempted_tokens_queried"),
        **counted("preempted_tokens_hit", "evictions", "peak_usage", "mean_usage"),
        **counted("steps", "tokens_computed", "tokens_generated"),
        **counted("tokens_loaded", "blocks_copied"),
        "explanation": {
            "ids": waterfall.ids,
            "repeated_ids": waterfall.repeated_ids,
            "repeated_tokens": waterfall.repeated_tokens,
            "items": [
                {**asdict(item), "rate_change": float(item.rate_change)} for item in waterfall.items
            ],
            "residual": float(waterfall.residual),
        },
        "seconds": result.seconds,
    }
    if context.live is not None:
        content["against"] = beside(context.live, content)
    return content


def wrapped(lines: Iterable[str], width: int) -> list[str]:
    """Wrap lines; what follows in a line is indented by four more."""
    found = []
    for line in lines:
        inner = " " * (len(line) - len(line.lstrip()) + 4)
        found += textwrap.wrap(
            line, width, subsequent_indent=inner, break_long_words=False, break_on_hyphens=False
        )
    return found


def report_text(content: dict[str, Any], width: int = WIDTH) -> str:
    """Return the report as text for a terminal."""
    head = wrapped([heading(content), *note_lines(content)], width)
    sections = [
        _section("\n".join(head), number_rows(content), width),
        _section(EXPLAINED, explanation_rows(content), width),
    ]
    return "\n".join(sections)


def heading(content: dict[str, Any]) -> str:
    """Return a line that names the trace, the implementation and the pool."""
    return f"{Path(content['trace']).name} {how(content)}"


def verdict(content: dict[str, Any]) -> str:
    """Return the hits in one line."""
    hits = _share(content["tokens_hit"], content["tokens_queried"])
    return (
        f"{Path(content['trace']).name}: {content['tokens_hit']:,} of"
        f" {content['tokens_queried']:,} tokens hit ({hits})"
    )


def how(content: dict[str, Any]) -> str:
    """Return the implementation and the pool in words."""
    options = content["options"]
    checked = "all invariants checked" if options["check_invariants"] else "invariants not checked"
    by, policy = content["implementation"], options["policy"]
    return (
        f"through {by['name']} {by['version']}{'' if policy == 'lru' else f' by {policy}'},"
        f" {options['num_blocks']:,} blocks of {options['block_size']} tokens, {checked}"
    )


def note_lines(content: dict[str, Any]) -> list[str]:
    """Return a line for each note on what is inexact in the trace, or unlike an engine's run."""
    reasons = content.get("against", {}).get("reasons", ())
    options, notes = content["options"], [*content["notes"]]
    is_default = (options["num_blocks"], options["block_size"]) == (NUM_BLOCKS, BLOCK_SIZE)
    if is_default and content["trace"] != DEMO:
        notes.append(f"{NUM_BLOCKS} blocks suit {DEMO}; yours: --num-blocks, or --model")
    if "groups" in options:
        model = f"{options['model']} in {options['memory_gib']:g} GiB on each worker"
        notes.append(f"{model}: {'; '.join(options['groups'])}")
        notes.append("where a window or a state is gone, the prompt is not reachable")
    return [
        *(f"  note: {note}" for note in notes),
        *(f"  beside the engine: {reason}" for reason in reasons),
    ]


def number_rows(content: dict[str, Any]) -> list[tuple[str, str]]:
    """Return labels and values of the main numbers."""
    hits = _share(content["tokens_hit"], content["tokens_queried"])
    again = _share(content["preempted_tokens_hit"], content["preempted_tokens_queried"])
    return [
        ("requests", f"{content['requests']:,}"),
        ("tokens queried", f"{content['tokens_queried']:,}"),
        ("tokens hit", f"{content['tokens_hit']:,}  ({hits})"),
        *_rows_beside(content),
        *_rows_of_host(content),
        ("trace repeat rate", f"{content['trace_repeat_rate']:.2%} of ids"),
        ("evictions", f"{content['evictions']:,}"),
        ("preemptions", f"{content['preemptions']:,}"),
        (
            "hit after preemption",
            f"{content['preempted_tokens_hit']:,} of"
            f" {content['preempted_tokens_queried']:,} tokens  ({again})",
        ),
        ("usage", f"peak {content['peak_usage']:.1%}, mean {content['mean_usage']:.1%}"),
        ("steps", f"{content['steps']:,}"),
        ("tokens computed", f"{content['tokens_computed']:,}"),
        ("tokens generated", f"{content['tokens_generated']:,}"),
        ("seconds", f"{content['seconds']:,.2f}"),
    ]


def _rows_of_host(content: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what a host tier gave back, and what it was given."""
    if num_blocks := content["options"]["num_host_blocks"]:
        loaded, copied = content["tokens_loaded"], content["blocks_copied"]
        yield (
            "from the host",
            f"{loaded:,} tokens loaded, {copied:,} blocks copied to its {num_blocks:,}",
        )


def _rows_beside(content: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the seconds of computing that hits save, and the hits of a running engine."""
    rate = content["prefill_tokens_per_second"]
    if rate is not None:
        saved, all_of_it = content["tokens_hit"] / rate, content["tokens_queried"] / rate
        yield "prefill saved", f"{saved:,.1f} s of {all_of_it:,.1f} s, at {rate:,} tokens a second"
    live = content.get("against")
    if live is not None:
        hits = _share(live["tokens_hit"], live["tokens_queried"])
        change = f"{100 * live['difference']:+.2f} points"
        yield (
            "the engine's",
            f"{live['tokens_hit']:,} of {live['tokens_queried']:,}  ({hits}, {change})",
        )


def explanation_rows(content: dict[str, Any]) -> Rows:
    """Return a row for each item of the explanation that has an effect."""
    rows: list[tuple[str, ...]] = [("trace repeat rate", f"{content['trace_repeat_rate']:>9.3%}")]
    for item in content["explanation"]["items"]:
        if item["rate_change"] == 0:
            continue
        tokens = "" if item["tokens"] is None else f"{item['tokens']:+,}"
        change = f"{100 * item['rate_change']:>+8.3f} "
        rows.append((item["name"].replace("_", " "), f"{change} {tokens:>11}", item["meaning"]))
    rows.append(("hit rate", f"{content['hit_rate']:>9.3%}"))
    rows.append(("unexplained", f"{content['explanation']['residual']:>9.3%}"))
    return rows


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.2%}" if whole else "none queried"


def _section(title: str, rows: Rows, width: int) -> str:
    """Write labels and values, and beside these, on several lines, what they mean."""
    widest = max(len(label) for label, *_ in rows)
    lines = [title]
    for label, value, *meaning in rows:
        start = f"  {label:<{widest}}  {value}"
        inside = textwrap.wrap(" ".join(meaning), max(20, width - len(start) - 2)) or [""]
        lines.append(f"{start}  {inside[0]}".rstrip())
        lines += [" " * (len(start) + 2) + each for each in inside[1:]]
    return "\n".join([*lines, ""])
