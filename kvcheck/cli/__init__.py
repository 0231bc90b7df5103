"""The one command, `kvspec`.

Needs the extra `cli` (click, rich). Importing this module needs neither: without them `main` says
how to install them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(args: Sequence[str] | None = None) -> int:
    """Run `kvspec` with these arguments (default: the process's own); returns the exit code.

    0: done. 1: the thing checked failed. 2: bad input, or it could not run. 130: interrupted.
    141: the reader of the output went away.
    """
    try:
        from kvcheck.cli._run import run

        return run(sys.argv[1:] if args is None else list(args))
    except KeyboardInterrupt:  # while the imports above were under way
        print("kvspec: error: interrupted", file=sys.stderr)
        return 130
    except ModuleNotFoundError as error:
        if error.name not in ("click", "rich"):
            raise
        print(
            f"kvspec: error: the command line needs {error.name}; "
            "install it with: pip install 'kvspec[cli]'",
            file=sys.stderr,
        )
        return 2
