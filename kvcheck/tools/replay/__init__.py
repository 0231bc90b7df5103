"""Real and generated request traces, and a logical-clock engine that replays them.

Everything that decides a number of the report is written down in spec/replay.md.
"""
