"""The options --jobs and --cluster, and the workers that they select."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import click

from kvcheck.cli._options import together
from kvcheck.processes import Processes
from kvcheck.tasks import Cluster, Workers

MOST_JOBS = 1000


workers_options = together(
    click.option(
        "--jobs",
        type=click.IntRange(1, MOST_JOBS),
        default=1,
        help="Processes to use.",
    ),
    click.option(
        "--cluster",
        metavar="ADDRESS",
        help="Use a Ray cluster instead of processes; 'local' starts one on this machine. Needs"
        " the extra cluster.",
    ),
)


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
