"""Exhaustive exploration: every state that a small configuration can reach, every operation there.

`kvcheck.explore.configurations` says what is explored, `kvcheck.explore.search` does it, and
`kvspec explore` is the command.
"""
