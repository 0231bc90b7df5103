"""Which exceptions the core may let out, and the words for those that it may not."""

from __future__ import annotations

import re
import traceback

from kvcheck.play.difference import first_difference
from kvspec.errors import KVSpecError
from kvspec.snapshot import Snapshot
from tests.fuzz import values
from tests.fuzz.values import Foreign

SIGNATURE = re.compile(r"argument|positional|keyword")
LIKE_A_LIST = re.compile(r"kvfast/_core/views\.py$|_collections_abc\.?\w*>?$")
CORE = re.compile(r"(?:^|/)(?:kvfast|kvspec)/|/fuzz/planted\.py$")


def is_allowed(error: BaseException) -> bool:
    """Whether a line may raise it."""
    if isinstance(error, Foreign):
        return True
    if isinstance(error, KVSpecError):  # nothing here leaves a manager spoilt
        return type(error).__name__ not in ("InvariantViolation", "SpoiltError")
    if isinstance(error, TypeError) and SIGNATURE.search(str(error)):
        return True
    if LIKE_A_LIST.search("".join(_files(error)[-1:])):
        return isinstance(error, TypeError | ValueError | IndexError)
    # What an object of the caller raised, or Python without the core's help, is none of its doing.
    if "'Posing'" in str(error):
        return True
    files = _files(error)
    return files[-1] == values.__file__ or not any(map(CORE.search, files))


def _files(error: BaseException) -> list[str]:
    return [frame.filename for frame in traceback.extract_tb(error.__traceback__)]


def described(error: BaseException) -> str:
    """The key of an exception, and its traceback."""
    last = [f for f in traceback.extract_tb(error.__traceback__) if CORE.search(f.filename)]
    where = f" in {last[-1].filename.rpartition('/')[2]} {last[-1].name}" if last else ""
    return f"{type(error).__name__}{where}\n" + "".join(traceback.format_exception(error)[-12:])


def differing(one: Snapshot, other: Snapshot) -> str:
    """Where two snapshots first differ."""
    found = first_difference(one, other)
    return "" if found is None else f"{found[0]}: {found[1]} → {found[2]}"
