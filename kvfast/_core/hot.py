"""Hot fields: what most steps of a batch read of a request, in one array for all registered ones.

So a step need not visit the requests, which lie anywhere in memory. The fields of handle h begin at
`STRIDE * h`. The first two are the request's own, see `FastRequest`; the others the registry's.

Compiled, the same numbers are constants of `_compiled/hot_fields.pxd`.
"""

from __future__ import annotations

STRIDE = 4
"""Fields of a handle, of 64 bits each."""

NUM_OWN = 2
"""Fields of a request that is not registered."""

COMPUTED = 0
"""Its computed tokens; -1 while the assigned value is no count."""

RUNS = 1
"""0 unless it is RUNNING and its other counts are legal: then the request must be asked. Else 1 + a
number of tokens: up to there it takes no block and fills none in the row seen last, and all of its
list was reported. So whatever makes the list longer, or a new one, sets this to 1 again until a
step has reported it (`Registry.look_again`, `FastRequest.look_again`).
"""

ROW = 2
"""The row in which it was last seen; any other if there was none."""

SERIAL = 3
"""The row's `Tables.serial` then, else -1: while they are equal, the row is the request's."""
