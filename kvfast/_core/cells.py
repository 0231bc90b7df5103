"""Cells: what most steps of a batch read of a request, in one array for all registered ones.

So a step needs not look at each request, wherever in memory it is. The cells of handle h begin at
`STRIDE * h`. The first two are the request's own, see `FastRequest`; the others the registry's.

Compiled, the same numbers are constants of `_compiled/cell_fields.pxd`.
"""

from __future__ import annotations

STRIDE = 4
"""Cells of a handle, of 64 bits."""

NUM_OWN = 2
"""Cells of a request that is not registered."""

COMPUTED = 0
"""Its computed tokens; -1 while the scheduler assigned what is no count."""

RUNS = 1
"""1 while it is RUNNING and its preemptions are a count; else 0, and the request must be asked."""

ROW = 2
"""The row in which it was last seen; any other if there was none."""

SERIAL = 3
"""The row's `Tables.serial` then, else -1: while they are equal, the row is the request's."""
