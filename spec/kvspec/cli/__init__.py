"""The one command, `kvspec`.

Needs the extra `cli` (click, rich). Importing this module needs neither: without them `main` says
how to install them.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence


def main(args: Sequence[str] | None = None) -> int:
    """Run `kvspec` with these arguments (default: the process's own); returns the exit code.

    0: done. 1: the thing checked failed. 2: bad input, or it could not run. 130: interrupted.
    141: the reader of the output went away.
    """
    missing = [name for name in ("click", "rich") if importlib.util.find_spec(name) is None]
    if missing:
        print(
            f"kvspec: error: {' and '.join(missing)} not installed; "
            "install the command line with: pip install 'kvspec[cli]'",
            file=sys.stderr,
        )
        return 2
    from kvspec.cli._run import run

    return run(sys.argv[1:] if args is None else list(args))
