"""Who does the work of a command besides its own process: the options, and what they name."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import click

from kvcheck.processes import Processes
from kvcheck.tasks import Cluster, Workers

MOST_JOBS = 1000

Command = TypeVar("Command", bound=Callable[..., Any])


def workers_options(command: Command) -> Command:
    """The options --jobs and --cluster of a command."""
    jobs = click.option(
        "--jobs",
        type=click.IntRange(1, MOST_JOBS),
        default=1,
        show_default=True,
        help="Processes to use.",
    )
    cluster = click.option(
        "--cluster",
        metavar="ADDRESS",
        help="Use a Ray cluster in place of processes; local: one on this machine. Needs the extra"
        " cluster.",
    )
    return jobs(cluster(command))


def workers_for(
    jobs: int, cluster: str | None, *, num_calls: int = 2
) -> AbstractContextManager[Workers | None]:
    """Who does the work besides this process, if anybody; of one call nobody.

    `num_calls`: what there is to divide, if that is known.
    """
    if num_calls < 2:
        return nullcontext()
    if cluster is not None:
        return Cluster(cluster)
    return nullcontext() if jobs == 1 else Processes(jobs)
