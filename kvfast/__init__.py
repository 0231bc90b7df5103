"""The fast twin of the reference: the same answers, at memory speed.

The manager is not there yet, so kvfast is not registered as an implementation. What is there: the
free queue of the block pool, in a build that is compiled where a C compiler was found and in plain
Python anywhere else.
"""

from collections.abc import Mapping

compiled: bool  # whether the compiled build of the core can be loaded; answered when asked


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
