"""Options of the commands that read request traces."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import click

from kvcheck.cli._options import together
from kvcheck.tools.replay.formats.choice import FORMATS
from kvcheck.tools.replay.source import open_trace
from kvcheck.tools.replay.trace import TraceSource


def opened(
    trace: str, given: Mapping[str, Any], *, ordered: bool
) -> AbstractContextManager[TraceSource]:
    """Open a trace as the options of a replay say."""
    names = ("seed", "form", "tokenizer", "run_length")
    options = {name: given[name] for name in names}
    return open_trace(trace, ordered=ordered, endless=given["limit"] is not None, **options)


with_trace_options = together(
    click.option(
        "--format",
        "form",
        type=click.Choice(FORMATS),
        metavar="FORMAT",
        help=f"Format of TRACE: {', '.join(FORMATS)}.  [default: recognised by its content]",
    ),
    click.option(
        "--run-length",
        type=click.IntRange(min=1),
        metavar="N",
        help="Tokens per id of a trace in Mooncake's format.  [default: 512]",
    ),
    click.option(
        "--tokenizer",
        metavar="F",
        help="A tokenizer.json, to count the tokens of texts exactly; needs the extra tokenizer.",
    ),
)
