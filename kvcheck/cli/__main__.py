"""`python -m kvcheck.cli`: the same as `kvspec`."""

import sys

from kvcheck.cli import main

if __name__ == "__main__":
    sys.exit(main())
