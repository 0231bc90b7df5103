"""Planted mistakes: what is wrong, the rules it breaks, and how to make an implementation with it.

Each is a change of a few lines of the code that it is made from, in a text beside that code
(`kvcheck.mistakes.text` says how such a text reads). Packages name the folder of theirs in the
entry-point group `kvspec.mistakes`.

    kvspec check mistake:HandsOutBackwards
"""

from __future__ import annotations

from kvcheck.mistakes.registry import about_rule, find, installed, read
from kvcheck.mistakes.text import Mistake, MistakeError

__all__ = ["Mistake", "MistakeError", "about_rule", "find", "installed", "read"]
