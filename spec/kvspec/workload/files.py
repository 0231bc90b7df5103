"""Files that appear whole or not at all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from kvspec.errors import KVSpecError


class OutputError(KVSpecError):
    """A result file that cannot be written; carries its path."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: cannot be written: {problem}")
        self.path = path
        self.problem = problem


def check_writable(path: str) -> None:
    """Raise OutputError now rather than after a long run: the folder must take new files."""
    target = _target(path)
    if target.is_dir():
        raise OutputError(path, "is a folder")
    if not target.parent.is_dir():
        raise OutputError(path, f"there is no folder {str(target.parent)!r}")
    if not os.access(target.parent, os.W_OK):
        raise OutputError(path, f"no permission to write in {str(target.parent)!r}")


def write_files(contents: Mapping[str, bytes]) -> None:
    """Write each path's bytes: first all under other names beside it, then all renamed.

    Raises OutputError; when that happens before the renaming, nothing has changed.
    """
    beside: list[tuple[Path, Path]] = []
    try:
        for path, content in contents.items():
            target = _target(path)
            if target.exists() and not target.is_file():
                continue  # a pipe or a device such as /dev/null can't be replaced by a file
            temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
            beside.append((temporary, target))
            _write(temporary, content, "xb", path)
        for path, content in contents.items():
            if not any(target == _target(path) for _, target in beside):
                _write(_target(path), content, "wb", path)
        for temporary, target in beside:
            try:
                temporary.replace(target)
            except OSError as error:
                raise OutputError(str(target), error.strerror or str(error)) from error
    finally:
        for temporary, _ in beside:
            temporary.unlink(missing_ok=True)


def _target(path: str) -> Path:
    """Where a path leads: a link stays a link, what it points to is replaced."""
    return Path(os.path.realpath(path))


def _write(file: Path, content: bytes, mode: str, path: str) -> None:
    """Write one file; `path` is how the user called it."""
    try:
        with open(file, mode) as stream:
            stream.write(content)
    except OSError as error:
        raise OutputError(path, error.strerror or str(error)) from error
