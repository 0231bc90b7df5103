"""A block manager with the members that the nano-vllm adapter uses, to test it without nano-vllm.

Written for these tests: prefixes are tuples, and a dict finds them. `write_package` makes it an
importable `nanovllm` whose `__init__` must not run.
"""

from __future__ import annotations

from pathlib import Path

TEXTS = Path(__file__).with_name("stand_in")


def write_package(folder: Path) -> None:
    """Write `nanovllm` with its two modules below `folder`."""
    for text in TEXTS.rglob("*.txt"):
        module = folder / text.relative_to(TEXTS).with_suffix(".py")
        module.parent.mkdir(parents=True, exist_ok=True)
        module.write_text(text.read_text("utf-8"))
