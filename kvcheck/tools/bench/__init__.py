"""How fast managers are, phase by phase: what `kvspec bench` does.

Every phase is timed alone, by single and by batched calls, in rounds that all managers take part
in; so is a whole trace. See `scenarios` and `replay` for what is timed,
`measure` for how, and `pools` for what pools cost.
"""

from __future__ import annotations

from kvcheck.tools.bench.calls import Calls, contract_calls
from kvcheck.tools.bench.errors import UnequalWorkError

__all__ = ["Calls", "UnequalWorkError", "contract_calls"]
