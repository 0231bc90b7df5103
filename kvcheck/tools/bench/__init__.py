"""Measure managers phase by phase, for `kvspec bench`.

Every phase is timed alone, by single and by batched calls, in rounds that include all managers; so
is a whole trace. `scenarios` and `replay` define what is timed, `measure` how, and `pools` the cost
of pools.
"""
