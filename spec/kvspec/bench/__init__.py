"""How fast managers are, phase by phase: what `kvspec bench` does.

Every phase is timed alone, through single calls, in rounds that all managers take part in. See
`kvspec.bench.scenarios` for what is timed, and `kvspec.bench.measure` for how.
"""

from __future__ import annotations

from kvspec.bench.calls import Calls, contract_calls
from kvspec.bench.errors import UnequalWorkError

__all__ = ["Calls", "UnequalWorkError", "contract_calls"]
