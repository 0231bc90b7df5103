"""Options of the commands that read request traces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from kvcheck.tools.replay.formats.choice import FORMATS

_Command = TypeVar("_Command", bound=Callable[..., Any])


def with_trace_options(command: _Command) -> _Command:
    run_length = click.option(
        "--run-length",
        type=click.IntRange(min=1),
        metavar="N",
        help="Tokens per id of a trace in Mooncake's format.  [default: 512]",
    )
    tokenizer = click.option(
        "--tokenizer",
        metavar="F",
        help="A tokenizer.json, to count the tokens of texts exactly; needs the extra tokenizer.",
    )
    return click.option(
        "--format",
        "form",
        type=click.Choice(FORMATS),
        metavar="FORMAT",
        help=f"Format of TRACE: {', '.join(FORMATS)}.  [default: recognised by its content]",
    )(run_length(tokenizer(command)))
