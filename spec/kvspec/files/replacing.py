"""Files that are whole under their name, whenever the writer or the machine stops."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Yield a file to write, which replaces `path` when the block ends without an error.

    Until then the old file stays in place. The new file is on the disk before it gets the name, and
    the name before this returns. A killed writer leaves `.NAME.partial`, which the next one
    overwrites; two writers of one path take turns. A device such as /dev/null is written to, not
    replaced. Raises OSError, which names `path`, also if `.NAME.partial` is a link, a pipe or a
    second name of another file.
    """
    if path.exists() and not path.is_file():
        with path.open("wb") as device:
            yield device
        return
    target = path.resolve()  # behind a link
    partial = target.with_name(f".{target.name}.partial")
    try:
        with _alone(partial) as file:
            try:
                yield file
                file.flush()
                if target.exists():
                    os.fchmod(file.fileno(), target.stat().st_mode & 0o777)
                os.fsync(file.fileno())
                os.replace(partial, target)
            except BaseException:
                partial.unlink(missing_ok=True)
                raise
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


_FLAGS = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
"""Not through a link, and without waiting for the other end of a pipe."""


def _alone(partial: Path) -> BinaryIO:
    """Open the file, empty and locked; closing it releases the lock."""
    while True:
        found = os.open(partial, _FLAGS, 0o666)
        about = os.fstat(found)
        if not stat.S_ISREG(about.st_mode) or about.st_nlink > 1:
            os.close(found)
            raise OSError(errno.EEXIST, f"{partial.name} beside it is no file of its own")
        file = os.fdopen(found, "r+b")
        with suppress(ImportError):  # no locks there: two writers of one path are the caller's
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        try:
            is_there = os.path.samestat(os.fstat(file.fileno()), partial.stat())
        except FileNotFoundError:
            is_there = False
        if is_there:  # and not what another writer has just given its name
            file.truncate()
            return file
        file.close()
