"""The fast twin of the reference: the same results, at memory speed.

The core is compiled where a C compiler was found and runs as plain Python elsewhere.

An engine embeds it as docs/embed.md shows: `implementation()` makes managers (`create`), requests
(`make_request`, `make_requests`) and, for a manager, whole steps (`batched`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvfast._implementation import FastImplementation

compiled: bool  # whether the compiled build of the core can be loaded; determined when first read


def implementation() -> FastImplementation:
    """Return kvfast in its best build; the entry point of `kvspec.implementations`."""
    from kvfast._implementation import FastImplementation

    return FastImplementation()


def uncompiled() -> FastImplementation:
    """Return kvfast in plain Python, slow: for debuggers, coverage and proofs."""
    from kvfast._implementation import FastImplementation

    return FastImplementation("uncompiled")


def diagnose() -> Mapping[str, str]:
    """Return the facts about kvfast that `kvspec doctor` shows (`kvspec.diagnostics`)."""
    from kvfast import _diagnose

    return _diagnose.facts()


def __getattr__(name: str) -> object:
    # Not at import, because this loads the extension modules.
    if name == "compiled":
        from kvfast import _build

        return _build.is_compiled()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
