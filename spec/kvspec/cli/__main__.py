"""`python -m kvspec.cli`: the same as `kvspec`."""

import sys

from kvspec.cli import main

if __name__ == "__main__":
    sys.exit(main())
