"""The options --jobs and --cluster, and the workers that they select."""

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
    jobs = click.option(
        "--jobs",
        type=click.IntRange(1, MOST_JOBS),
        default=1,
        help="Processes to use.",
    )
    cluster = click.option(
        "--cluster",
        metavar="ADDRESS",
        help="Use a Ray cluster instead of processes; 'local' starts one on this machine. Needs"
        " the extra cluster.",
    )
    return jobs(cluster(command))


def workers_for(
    jobs: int, cluster: str | None, *, num_calls: int = 2
) -> AbstractContextManager[Workers | None]:
    """Return the workers that share the calls; None if this process makes all of them.

    `num_calls`: the number of calls, if known; a single call needs no workers.
    """
    if num_calls < 2:
        return nullcontext()
    if cluster is not None:
        return Cluster(cluster)
    return nullcontext() if jobs == 1 else Processes(jobs)
