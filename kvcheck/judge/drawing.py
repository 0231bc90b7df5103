"""Draw the operations of a violation as `kvspec view` draws records."""

from __future__ import annotations

from pathlib import Path

from kvcheck.judge.options import Options
from kvcheck.judge.report import said
from kvcheck.play.verdicts import HANG, Level, Violation
from kvcheck.view import model
from kvcheck.view.model import life_of_requests
from kvspec.interface import Feature, Implementation

MOST_CELLS = 20_000
"""Most blocks × operations of one recording; a page holds many."""


def story(
    violation: Violation, subject: Implementation, oracle: Implementation | None, options: Options
) -> model.Recording | None:
    """Return the reference's frames above the subject's, or None if they cannot be drawn.
    Below level identity, where block ids are the subject's own, it has only the subject's."""
    config, operations = violation.program.config, violation.operations
    size = len(operations) * config.kv_cache.num_blocks
    shows = Feature.SNAPSHOT in subject.capabilities.features
    if not operations or size > MOST_CELLS or violation.name == HANG or not shows:
        return None
    with_reference = oracle is not None and options.level is Level.IDENTITY
    try:
        header, frames = model.played(subject, config, operations)
        other: tuple[model.Frame, ...] = ()
        if oracle is not None and with_reference and not options.self_checks_only:
            header, above = model.played(oracle, config, operations)
            frames, other = above, frames
    except (Exception, SystemExit):  # whatever a subject raises
        return None
    last = len(operations) - 1
    expected, observed = said(violation)
    text = f"expected {expected}\nobserved {observed}"
    if violation.first_at:
        text += f"\nfirst at {violation.first_at}"
    made = [frame.operation for frame in frames if frame.operation is not None]
    return model.Recording(
        path=Path(violation.rule),
        header=header,
        frames=frames,
        lives=life_of_requests(made),
        num_operations=len(operations),
        replayed_on=options.name,
        violation=model.Violation(last, text, violation.rule),
        other=other,
        reference=options.oracle,
        is_part=True,
    )
