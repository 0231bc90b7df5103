"""How a machine is run on a bug that is known: the same each time, and nothing is made smaller."""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, settings


def planted(max_examples: int, *, steps: int = 40) -> settings:
    return settings(
        max_examples=max_examples,
        stateful_step_count=steps,
        deadline=None,
        database=None,
        derandomize=True,
        report_multiple_bugs=False,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
