"""How fast managers are, phase by phase: what `kvspec bench` does.

Every phase is timed alone, by single and by batched calls, in rounds that all managers take part
in; so is a whole trace. See `kvspec.bench.scenarios` and `kvspec.bench.replay` for what is timed,
`kvspec.bench.measure` for how, and `kvspec.bench.pools` for what pools cost.
"""

from __future__ import annotations

from kvspec.bench.calls import Calls, contract_calls
from kvspec.bench.errors import UnequalWorkError

__all__ = ["Calls", "UnequalWorkError", "contract_calls"]
