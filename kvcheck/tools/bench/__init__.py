"""How fast managers are, phase by phase: what `kvspec bench` does.

Every phase is timed alone, by single and by batched calls, in rounds that all managers take part
in; so is a whole trace. See `kvcheck.tools.bench.scenarios` and `kvcheck.tools.bench.replay` for what is timed,
`kvcheck.tools.bench.measure` for how, and `kvcheck.tools.bench.pools` for what pools cost.
"""

from __future__ import annotations

from kvcheck.tools.bench.calls import Calls, contract_calls
from kvcheck.tools.bench.errors import UnequalWorkError

__all__ = ["Calls", "UnequalWorkError", "contract_calls"]
