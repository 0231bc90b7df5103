"""Exhaustive exploration: every state that a small configuration can reach, every operation there.

`kvspec.explore.configurations` says what is explored, `kvspec.explore.search` does it, and
`kvspec explore` is the command.
"""
