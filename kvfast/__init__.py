"""The fast twin of the reference: the same answers, at memory speed.

The core is compiled where a C compiler was found and runs as plain Python anywhere else.

An engine embeds it as docs/embed.md shows: `implementation()` makes managers (`create`), requests
(`make_request`, `make_requests`) and, over a manager, whole steps (`batched`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvfast._implementation import FastImplementation

compiled: bool  # whether the compiled build of the core can be loaded; answered when asked


def implementation() -> FastImplementation:
    """kvfast in the best build there is; the entry point of `kvspec.implementations`."""
    from kvfast._implementation import FastImplementation

    return FastImplementation()


def uncompiled() -> FastImplementation:
    """kvfast in plain Python, slow: for debuggers, coverage and proofs."""
    from kvfast._implementation import FastImplementation

    return FastImplementation("uncompiled")


def diagnose() -> Mapping[str, str]:
    """What `kvspec doctor` shows about kvfast; the entry point of `kvspec.diagnostics`."""
    from kvfast import _diagnose

    return _diagnose.facts()


def __getattr__(name: str) -> object:
    # Not at import: finding the answer loads the extension modules.
    if name == "compiled":
        from kvfast import _build

        return _build.is_compiled()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
