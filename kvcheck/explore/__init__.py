"""Exhaustive exploration: every state that a small configuration can reach, every operation there.

`kvcheck.explore.configurations` lists the configurations, `kvcheck.explore.search` explores them,
and `kvspec explore` is the command.
"""
