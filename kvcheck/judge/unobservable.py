"""Rules that no caller of an implementation can see broken, each with the reason."""

from __future__ import annotations

from collections.abc import Mapping

UNOBSERVABLE: Mapping[str, str] = {
    "KV-POL-1": "A profile is a file that kvspec reads; an implementation never sees it.",
    **dict.fromkeys(
        (f"KV-FLEET-{number}" for number in (10, 11, 13, 14, 15, 16, 18)),
        "It concerns messages, but a run passes batches without messages.",
    ),
    **dict.fromkeys(
        (f"KV-HAZ-{number}" for number in range(1, 7)),
        "It concerns copies, which `kvspec hazards` checks in a record of an engine.",
    ),
    "KV-ERR-7": "A run makes one call at a time.",
    "KV-ERR-8": "A run cannot exhaust the memory of an implementation.",
}
"""Rule -> why a run cannot check it. Every other rule has an example."""
