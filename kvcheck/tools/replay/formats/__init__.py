"""The forms in which request traces are published: one module each, and which one a file has.

Every reader makes the same records of its file, one at a time. What each form says exactly, what
is an estimate and what it leaves open is written down in spec/replay.md, section 1.
"""
