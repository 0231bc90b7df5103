"""Measure managers phase by phase, for `kvspec bench`.

Every phase is timed alone, by single and by batched calls, in rounds that include all managers; so
is a whole trace. `script` and `replay` define what is done, `work` by which calls, `measure` when.
"""
