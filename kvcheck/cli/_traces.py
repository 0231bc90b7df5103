"""The options of every command that reads a request trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from kvcheck.tools.replay.formats.choice import FORMATS

_Command = TypeVar("_Command", bound=Callable[..., Any])


def with_trace_options(command: _Command) -> _Command:
    """Add `--format`, `--run-length` and `--tokenizer`."""
    run_length = click.option(
        "--run-length",
        type=click.IntRange(min=1),
        metavar="N",
        help="Tokens that an id of Mooncake's form stands for.  [default: 512]",
    )
    tokenizer = click.option(
        "--tokenizer",
        metavar="F",
        help="A tokenizer.json, to count the tokens of texts exactly.",
    )
    return click.option(
        "--format",
        "form",
        type=click.Choice(FORMATS),
        help="What TRACE is.  [default: what its content says]",
    )(run_length(tokenizer(command)))
