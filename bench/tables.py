"""The document of `kvspec bench --json` as tables in Markdown, and as a picture.

python bench/tables.py out.json                     # tables, to stdout
python bench/tables.py out.json --plot pools.svg    # also the picture; needs matplotlib
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from kvspec.bench.plot import plot_bytes

Document = dict[str, Any]
Found = dict[str, Any]


def tables(document: Document) -> Iterator[str]:
    """Line by line; a table for each kind of case, columns for each contestant."""
    kinds: tuple[tuple[str, Callable[[Found], bool], Callable[[Found], str], float], ...] = (
        ("prompts, hot; ns", _is_hot, _prompt, 1.0),
        ("decoding; ns", lambda found: found["case"]["kind"] == "decode", _running, 1.0),
        ("the pool grows, cold; ns", _is_cold, _pool, 1.0),
        ("a whole trace; ms", lambda found: found["case"]["kind"] == "replay", _replay, 1e6),
    )
    names = [each["name"] for each in document["implementations"]]
    for title, belongs, label, ns in kinds:
        rows = [found for found in document["measurements"] if belongs(found)]
        if rows:
            rows.sort(key=lambda found: document["phases"].index(found["phase"]))
            yield from _table(title, rows, label, ns, names, document["baseline"])
    if document["pools"]:
        yield from _pools(document)


def _table(
    title: str,
    rows: list[Found],
    label: Callable[[Found], str],
    ns: float,
    names: list[str],
    baseline: str,
) -> Iterator[str]:
    taking_part = [name for name in names if any(name in row["results"] for row in rows)]
    head = [title]
    for name in taking_part:
        head += [name] if name == baseline else [name, "ratio"]
    yield _line(head)
    yield _line(["---"] * len(head))
    for row in rows:
        cells = [f"{row['phase'].removeprefix('replay: ')}{label(row)}"]
        for name in taking_part:
            result = row["results"].get(name)
            cells.append("" if result is None else _spread(result["ns_per_unit"], ns))
            if name != baseline:
                has_ratio = result is not None and result["ratio"] is not None
                cells.append(_spread(result["ratio"], 1.0) if has_ratio else "")
        yield _line(cells)
    yield ""


def _pools(document: Document) -> Iterator[str]:
    head = (
        "pools, per block",
        "",
        "made in ms",
        "bytes",
        "bytes, full",
        "objects",
        "objects, full",
    )
    yield _line([*head])
    yield _line(["---"] * len(head))
    for cost in sorted(document["pools"], key=lambda each: each["num_blocks"]):
        size = cost["num_blocks"]
        numbers = (cost[key] for key in ("bytes_", "full_bytes", "objects", "full_objects"))
        per_block = ["" if each is None else short(each / size) for each in numbers]
        yield _line([f"{size:,} blocks", cost["name"], short(cost["create_s"] * 1e3), *per_block])
    yield ""


def _is_hot(found: Found) -> bool:
    """Prompts that are not cold; hashing once per length, as it knows no hit."""
    case = found["case"]
    return case["kind"] == "prompt" and not case["cold"] and not _repeats(found)


def _is_cold(found: Found) -> bool:
    """Full pools; hashing does not know them."""
    return bool(found["case"].get("cold")) and not _repeats(found)


def _repeats(found: Found) -> bool:
    return found["phase"] == "hash" and bool(found["case"].get("hit_percent"))


def _prompt(found: Found) -> str:
    case = found["case"]
    cached = "" if found["phase"] == "hash" else f", {case['hit_percent']} % cached"
    return f", {case['num_requests']} × {case['prompt_tokens']:,} tokens{cached}"


def _running(found: Found) -> str:
    return f", {found['case']['num_requests']:,} running"


def _pool(found: Found) -> str:
    return f", {found['case']['num_blocks']:,} blocks"


def _replay(found: Found) -> str:
    return ""


def _spread(spread: dict[str, float], ns: float) -> str:
    low, middle, high = (short(spread[key] / ns) for key in ("q1", "median", "q3"))
    return f"{middle} ({low} … {high})"


def short(value: float) -> str:
    """Three digits that count."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    """See the top of this file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("document", type=Path)
    parser.add_argument("--plot", type=Path, metavar="FILE")
    given = parser.parse_args()
    document = json.loads(given.document.read_text("utf-8"))
    for line in tables(document):
        print(line)
    if given.plot is not None:
        picture = plot_bytes(document, image_format=given.plot.suffix.lstrip("."))
        given.plot.write_bytes(picture)


if __name__ == "__main__":
    main()
