"""Layout of the map of keys: the content of a slot, its home, and where probing continues.

Compiled, the same numbers are constants of `_compiled/probing_fields.pxd`.
"""

from __future__ import annotations

RUN_BLOCKS = 32
"""Blocks for which memory is read ahead."""
SIDE_MASK = 7
"""Eight slots of eight bytes share a cache line."""
ENTRY_MASK = 0x7FFFFFFF
STEPS_SHIFT = 31
STEPS_MASK = 255
"""A slot holds at most this number of steps; more are computed from the home."""
TAG_SHIFT = 39
TAG_OF_WORD_SHIFT = 40
"""The bits of a hash in its slot: those that do not determine the home."""
STEP = 9
"""From a full slot on to the next line, one place on: odd, so that it leads to every slot."""
STEP_INVERSE = 954437177
"""STEP times this is 1 in arithmetic of 32 bits: distances become steps."""
HOME_MASK = 0x7FFFFFFF
"""The bits of a home, whatever the size of the table."""
